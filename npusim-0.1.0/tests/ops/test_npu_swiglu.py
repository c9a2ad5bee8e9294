"""npu_swiglu: its contract, its tiles, and the kernel against numpy.

Sources: ops-nn@e5c3fa9 activation/swi_glu; what 310P refuses stands in the document of aclnn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import (
    A2,
    A3,
    BF16,
    FLOATS,
    INFERENCE,
    OLD,
    Array,
    Row,
    assert_as_reference,
    constraints,
    floats,
    shapes,
)

from npusim import TensorSpec, devices, ops, run

OP = "npu_swiglu"
OPERATOR = ops.load(OP)


def swiglu(x: Array, dim: int = -1, device: str = "ascend910b2") -> Array:
    found = run(OP, x, dim, device=device, timing=False).output
    assert isinstance(found, np.ndarray)
    return found


# ---- contract ----

BASE = {"x": ones(3, 64)}
ROWS = [
    *(
        Row({"dim": dim},
            f"dim must lie in [-2, 1] for x of shape (3, 64), not {dim}; pass -1 for the last "
            f"dimension", {"dim": 1})
        for dim in (2, -3)
    ),
    Row({"x": ones(4, 63)},
        "dimension 1 of x must be even, to be cut in half, not 63; pad both halves",
        {"x": ones(4, 64)}),
    Row({"dim": 0}, "dimension 0 of x must be even, to be cut in half, not 3; pad both halves",
        {"x": ones(2, 64), "dim": -2}),
    Row({"x": ones(3, 48)},
        "half of x from dim on must be a multiple of 64 bytes on {series}, not 48 bytes; pad both "
        "halves", {"x": ones(3, 48, dtype=np.float32)[:, :32]}, OLD),
    Row({"x": ones(0, 64)},
        "x must not be empty on {series}, not of shape (0, 64); leave the call out", lines=OLD),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


def test_nothing_in_gives_nothing() -> None:
    assert swiglu(ones(0, 64)).shape == (0, 32)


# ---- tiles ----


# What the vendor's tiling gives for 48 cores and 196352 bytes (swi_glu_tiling.cpp).
@pytest.mark.parametrize(
    ("shape", "dtype", "size", "tiles", "cores"),
    [
        ((1024, 2048), "float16", (19, 512), 108, 48),
        ((4096, 8192), "bfloat16", (19, 512), 1728, 48),
        ((2048, 4096), "float32", (27, 256), 608, 48),
        ((256, 4096), "bfloat16", (19, 512), 56, 48),
        ((8, 4608), "bfloat16", (6, 1536), 4, 4),
        ((16, 3200), "bfloat16", (6, 1536), 6, 6),
        ((1, 4096), "bfloat16", (1, 2048), 1, 1),
        ((41040, 3200), "bfloat16", (6, 1600), 6840, 48),
    ],
    ids=str,
)
def test_tiles(
    shape: tuple[int, int], dtype: str, size: tuple[int, int], tiles: int, cores: int
) -> None:
    spec = devices.load("ascend910b2")
    problem = OPERATOR.check(spec, TensorSpec(shape, dtype))
    plan: Any = OPERATOR.tile(spec, problem)
    assert (plan.row_step, plan.column_step) == size
    assert (plan.tiles(problem), plan.block_dim, plan.depth) == (tiles, cores, 2)


def test_one_buffer_each_where_that_makes_one_round_of_two() -> None:
    spec = devices.load("ascend910b2")
    problem = OPERATOR.check(spec, TensorSpec((192, 6144), "float16"))
    plan: Any = OPERATOR.tile(spec, problem)
    # 8 x 6 tiles of 14016 elements at most, where 9808 would have made 66 of them.
    assert (plan.row_step, plan.column_step) == (27, 512)
    assert (plan.tiles(problem), plan.block_dim, plan.depth) == (48, 48, 1)


def test_a_core_takes_every_48th_tile() -> None:
    spec = devices.load("ascend910b2")
    problem = OPERATOR.check(spec, TensorSpec((1024, 2048), "float16"))
    blocks: Any = OPERATOR.build(spec, problem, OPERATOR.tile(spec, problem))
    starts = [block.bindings["output"].base_bytes for block in blocks]
    # Two tiles of 512 columns across, 19 rows of 1024 elements down.
    assert starts[:4] == [0, 1024, 19 * 2048, 19 * 2048 + 1024]
    shifts = [call.shifts["output"] for call in blocks[0].program.calls if call.shifts]
    assert shifts == [0, 24 * 19 * 2048, 48 * 19 * 2048]


# ---- values ----


@draws(40)
@given(st.data())
def test_a_tiled_run_equals_the_reference(data: st.DataObject) -> None:
    device = data.draw(st.sampled_from(devices.names()))
    spec = devices.load(device)
    shape, dim = list(data.draw(shapes())), -1
    kind = data.draw(st.sampled_from(FLOATS[spec.series]))
    if spec.series == "Atlas inference":
        shape[-1] = -(-shape[-1] // 64) * 64
    else:
        dim = data.draw(st.integers(-len(shape), len(shape) - 1))
        shape[dim] = 2 * -(-shape[dim] // 2)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = floats(rng, tuple(shape), kind)
    if data.draw(st.booleans()):
        x = rng.normal(0, 3, shape).astype(kind)
    assert_as_reference(OP, x, dim, device=device)


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
def test_tiles_of_parts_of_rows_equal_the_reference(kind: Any) -> None:
    x = np.random.default_rng(3).normal(0, 3, (41, 4000)).astype(kind)
    assert_as_reference(OP, x, device="ascend910b2")


A = [-3, -1.5, -0.5, 0, 0.25, 1, 2, 4]
B = [1, 2, -1, 0.5, -2, 3, 1.5, -1]


@pytest.mark.parametrize("device", every(A2 + A3 + INFERENCE))
def test_bits_that_were_worked_out_apart(device: str) -> None:
    """Form 1, (1 / d) a b, is that of float32 alone; in 16 bits the two agree here."""
    row = np.array([[*A, *[0] * 24, *B, *[0] * 24]])
    y = swiglu(row.astype(np.float16), device=device)[0, :8]
    assert [f"{word:04X}" for word in y.view(np.uint16)] == [
        *("B08E", "B861", "320A", "0000", "B47F", "4063", "4149", "C3DB"),
    ]
    y = swiglu(row.astype(np.float32), device=device)[0, :2]
    assert [f"{word:08X}" for word in y.view(np.uint32)] == ["BE11B13A", "BF0C1A52"]


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
def test_it_is_near_the_exact_result(kind: Any) -> None:
    x = np.random.default_rng(5).normal(0, 3, (20, 300)).astype(kind)
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    found = swiglu(x).astype(np.float64)
    # Six roundings of 2**-24 each, and one to the type of y.
    last = {2: 2.0**-8 if kind is BF16 else 2.0**-11, 4: 0.0}[np.dtype(kind).itemsize]
    np.testing.assert_allclose(found, a / (1 + np.exp(-a)) * b, rtol=2.0**-21 + last, atol=6e-8)


def test_special_numbers() -> None:
    x = np.array([[np.inf, -np.inf, np.nan, -200, -200, 2, 2, 2, 2, -2]], np.float32)
    y = swiglu(x)[0]
    assert y.tolist()[:1] == [np.inf]
    assert np.isnan(y[1:3]).all()
    # exp(200) is infinite: zero, with the sign of the product.
    assert [str(number) for number in y[3:]] == ["-0.0", "0.0"]


def test_tiles_may_fill_the_buffer_of_atlas_inference(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 40_960)).astype(np.float32)
    found = run("npu_swiglu", x, device="ascend310p3").output
    np.testing.assert_array_equal(np.asarray(found), ops.load("npu_swiglu").reference(x))
