"""npu_format_cast: the kernels against numpy, and what is refused."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, INFERENCE, LINES, Array, Row, constraints

from npusim import OpError, Tensor, TensorSpec, devices, ops, run
from npusim.ops.npu_format_cast import pieces_of_cores

OP = "npu_format_cast"
KINDS = (np.float16, BF16, np.float32, np.int8, np.int32)
SHAPES = [
    (1, 1), (16, 16), (15, 17), (17, 33), (100, 40), (3, 5, 7), (2, 3, 33, 65), (2, 1, 1, 2, 1, 9),
    (300, 1000), (5, 3000), (600, 3), (1, 5000), (70, 545),
]  # fmt: skip


def kinds(device: str) -> tuple[Any, ...]:
    is_old = devices.load(device).series == "Atlas inference"
    return tuple(kind for kind in KINDS if not (is_old and kind is BF16))


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def noise(shape: tuple[int, ...], kind: Any, seed: int = 0) -> Array:
    """Any bits at all, NaNs of every kind among them."""
    size = np.dtype(kind).itemsize
    raw = np.random.default_rng(seed).integers(1, 256, (*shape, size), dtype=np.uint8)
    return raw.view(kind)[..., 0]


def fractals(x: Array) -> Array:
    """The bits of *x* in FRACTAL_NZ: pad, cut, exchange."""
    *batch, rows, columns = x.shape
    width = 32 // x.dtype.itemsize
    down, across = -(-rows // 16), -(-columns // width)
    edges = [(0, 0)] * len(batch) + [(0, down * 16 - rows), (0, across * width - columns)]
    cut = np.pad(bits(x), edges).reshape(prod(batch), down, 16, across, width)
    return cut.transpose(0, 3, 1, 2, 4).reshape(*batch, across, down, 16, width)


def cast(x: Any, acl_format: Any, device: str) -> Any:
    return run(OP, x, acl_format, device=device, timing=False).output


def assert_there_and_back(x: Array, device: str) -> None:
    there = cast(x, 29, device)
    assert isinstance(there, Tensor)
    assert there.spec == TensorSpec(x.shape, x.dtype.name, "FRACTAL_NZ")
    np.testing.assert_array_equal(bits(there.storage), fractals(x))
    back = cast(there, 2, device)
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(bits(back), bits(x))


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", LINES.values())
def test_every_type_goes_there_and_back(device: str, subtests: pytest.Subtests) -> None:
    for shape in SHAPES:
        with subtests.test(shape=shape):
            for kind in kinds(device):
                assert_there_and_back(noise(shape, kind), device)


@draws(60)
@given(
    st.sampled_from(tuple(LINES.values())),
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 120),
    st.integers(1, 300),
    st.integers(0, 3),
)
def test_any_shape_goes_there_and_back(
    device: str, batch: list[int], rows: int, columns: int, kind: int
) -> None:
    assert_there_and_back(noise((*batch, rows, columns), kinds(device)[kind], rows), device)


@pytest.mark.parametrize("device", LINES.values())
def test_a_transposed_tensor_keeps_its_order_in_memory(device: str) -> None:
    x = noise((40, 70), np.int8)
    back = cast(Tensor.of(x, "FRACTAL_NZ").T, 2, device)
    np.testing.assert_array_equal(back, x.T)
    assert back.T.flags.c_contiguous
    spec = TensorSpec((40, 70), "int8", "FRACTAL_NZ").T
    assert cast(spec, 2, device) == TensorSpec((70, 40), "int8", transposed=True)


def test_what_is_in_the_format_comes_back_as_it_is() -> None:
    x = noise((40, 70), np.int8)
    tensor = Tensor.of(x, "FRACTAL_NZ")
    for came, acl_format in ((x, 2), (x.T, "ND"), (tensor, 29), (tensor.T, "FRACTAL_NZ")):
        result = run(OP, came, acl_format, device="ascend910b2")
        assert result.output is came
        assert (result.plan, result.trace, result.time_us) == (None, None, 0.0)
    spec = TensorSpec((40, 70), "int8", "FRACTAL_NZ")
    assert cast(spec, 29, "ascend910b2") == spec


@pytest.mark.parametrize(("number", "name"), [(2, "ND"), (29, "FRACTAL_NZ")])
def test_formats_go_by_number_or_name(number: int, name: str) -> None:
    spec = TensorSpec((40, 70), "int8", "FRACTAL_NZ" if number == 2 else "ND")
    by_number = run(OP, spec, number, device="ascend310p3")
    by_name = run(OP, spec, name, device="ascend310p3")
    assert by_number.cycles == by_name.cycles
    assert by_number.output == by_name.output == TensorSpec((40, 70), "int8", name)
    assert cast(spec, np.int64(number), "ascend310p3") == by_name.output


@pytest.mark.parametrize("device", LINES.values())
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 3, 5)])
def test_an_empty_matrix_stays_empty(shape: tuple[int, ...], device: str) -> None:
    result = run(OP, np.zeros(shape, np.int8), 29, device=device)
    assert isinstance(result.output, Tensor)
    assert result.output.spec == TensorSpec(shape, "int8", "FRACTAL_NZ")
    assert (result.plan, result.cycles) == (None, 0)
    back = cast(result.output, 2, device)
    assert (back.shape, back.dtype) == (shape, np.int8)


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", every(devices.names()))
@pytest.mark.parametrize("to", [29, 2])
def test_large_tensors_fit_the_buffer_on_every_chip(
    to: int, device: str, subtests: pytest.Subtests
) -> None:
    # Row by row on one core of a 310P.
    rows = 2000 if device in INFERENCE else 20000
    for shape in ((8192, 8192), (4096, 1000), (16, 50000), (rows, 3)):
        with subtests.test(shape=shape):
            spec = TensorSpec(shape, "int8", "ND" if to == 29 else "FRACTAL_NZ")
            result = run(OP, spec, to, device=device)
            assert result.time_us is not None
            assert result.time_us > prod(shape) / result.device.gm.read_bytes_per_s * 1e6


@given(
    st.sampled_from(tuple(LINES.values())),
    st.tuples(st.integers(1, 40), st.integers(1, 600), st.integers(1, 3000)),
    st.booleans(),
)
def test_pieces_cover_both_layouts_once(
    device: str, shape: tuple[int, int, int], to_fractals: bool
) -> None:
    spec, operator = devices.load(device), ops.load(OP)
    x = TensorSpec(shape, "int8", "ND" if to_fractals else "FRACTAL_NZ")
    problem: Any = operator.check(spec, x, 29 if to_fractals else 2)
    plan: Any = operator.tile(spec, problem)
    found = pieces_of_cores(problem, plan)
    cores = set(found.core.tolist())
    assert cores == set(range(plan.block_dim))
    assert plan.block_dim <= len(spec.vector_cores)
    assert np.unique(found.nd_bytes).size == np.unique(found.nz_bytes).size == found.core.size
    assert (found.rows * found.width_bytes).sum() == prod(shape)
    moved = (-(-found.rows // 16) * 16 * found.blocks * 32).sum()
    assert moved == TensorSpec(shape, "int8", "FRACTAL_NZ").nbytes


@pytest.mark.parametrize(("columns", "conflicts"), [(256, 8), (240, 1)])
def test_rows_of_a_line_meet_in_the_banks(columns: int, conflicts: int) -> None:
    """Blocks 16 apart are in one group of banks, 8 cycles a repeat; blocks 15 apart in eight."""

    def vector_cycles(rows: int) -> int:
        x = TensorSpec((rows, columns), "float16")
        trace = run("npu_format_cast", x, 29, device="ascend910b2", values=False).trace
        return sum(core["vector"].busy_cycles for core in trace.counters().values())

    # 16 rows more on each of 48 cores are two repeats more for each column of blocks.
    few, more = (vector_cycles(rows) for rows in (48 * 16, 48 * 32))
    repeats = 48 * columns // 16 * 2
    # A bank that is read may be written in the same cycle, which then takes one more.
    assert conflicts <= (more - few) / repeats < conflicts + 1


@pytest.mark.parametrize("device", LINES.values())
@pytest.mark.parametrize("shape", [(8192, 8192), (64, 16384), (16, 65536)], ids=str)
def test_no_core_has_much_more_than_its_share(shape: tuple[int, int], device: str) -> None:
    spec, operator = devices.load(device), ops.load(OP)
    problem: Any = operator.check(spec, TensorSpec(shape, "float16"), 29)
    plan: Any = operator.tile(spec, problem)
    found = pieces_of_cores(problem, plan)
    loads = np.bincount(found.core, found.rows * found.width_bytes)
    assert loads.max() < 1.2 * loads.sum() / len(spec.vector_cores)


# ---- what is refused ----

BASE = {"x": TensorSpec((4, 4), "int8"), "acl_format": 29}

ROWS = [
    *(
        Row(
            {"acl_format": wrong},
            f"acl_format must be 2 (ND) or 29 (FRACTAL_NZ), not {wrong!r}; pass one of them",
            {"acl_format": 2},
        )
        for wrong in (3, 0, "NZ", 29.0, None, True, [29])
    ),
]
test_each_constraint = constraints(OP, BASE, ROWS)


def test_parameters_of_other_chips_are_taken_as_none_only() -> None:
    x = np.zeros((16, 32), np.int8)
    wanted = run("npu_format_cast", x, 29, device="ascend910b2").output
    found = run(
        "npu_format_cast", x, 29, customize_dtype=None, input_dtype=None, device="ascend910b2"
    ).output
    np.testing.assert_array_equal(found.storage, wanted.storage)
    message = (
        r"^npu_format_cast: input_dtype must be None on the chips that are simulated, not given; "
        r"leave it out \[161002\]$"
    )
    with pytest.raises(OpError, match=message):
        run("npu_format_cast", x, 29, input_dtype="int8", device="ascend910b2")
