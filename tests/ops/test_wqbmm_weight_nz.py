"""The weight_nz template of npu_weight_quant_batchmatmul, on 310P: the kernel against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import Array, assert_same

from npusim import Run, Tensor, TensorSpec, devices, ops, run
from npusim.data.dtypes import INT8
from npusim.data.layout import NZ, to_fractals
from npusim.isa import Barrier, Cast, CopyToL1, Load, LoadData, Mmad
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz import SHAPES, WeightNzPlan

OP = "npu_weight_quant_batchmatmul"
DEVICE = "ascend310p3"
SPEC = devices.load(DEVICE)
reference = ops.load(OP).reference


def weight_nz(call: dict[str, Any], device: str = DEVICE, **how: Any) -> Run:
    result = run(OP, device=device, **({"timing": False} | how), **call)
    assert isinstance(result.plan, WeightNzPlan)
    return result


def fractal(weight: Array) -> Tensor:
    """An (n, k) matrix as the (k, n) operand that lies as FRACTAL_NZ of it."""
    return Tensor(
        TensorSpec(weight.shape, "int8", "FRACTAL_NZ"), to_fractals(weight, NZ, (16, 32))
    ).T


def parts(
    m: int,
    k: int,
    n: int,
    seed: int = 0,
    *,
    offset: bool = True,
    bias: bool = True,
    transposed: bool = False,
) -> dict[str, Any]:
    """Arguments of a call."""
    rng = np.random.default_rng(seed)
    shape = (k, m) if transposed else (m, k)
    x = rng.standard_normal(shape).astype(np.float16)
    call: dict[str, Any] = {
        "x": x.T if transposed else x,
        "weight": fractal(rng.integers(-128, 128, (n, k), dtype=np.int8)),
        "antiquant_scale": (0.02 * rng.random(n)).astype(np.float16),
    }
    if offset:
        call["antiquant_offset"] = (20 * rng.standard_normal(n)).astype(np.float16)
    if bias:
        call["bias"] = rng.standard_normal(n).astype(np.float16)
    return call


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "transposed"),
    [
        (1, 1, 1, False),
        (3, 33, 7, True),  # less than a block a row: one core
        (17, 40, 17, False),  # an edge of the output narrower than a block
        (5, 300, 150, True),  # a piece of 44 of k after one of 256
        (150, 520, 300, False),  # two parts of columns, cores along m
        (130, 144, 1144, False),  # 8 columns more than leave L0C at a time
    ],
)
def test_a_tiled_run_equals_the_reference(m: int, k: int, n: int, transposed: bool) -> None:
    for offset, bias in ((True, True), (False, False)):
        call = parts(m, k, n, offset=offset, bias=bias, transposed=transposed)
        expected = reference(**call, spec=SPEC)
        for byte_exact in (False, True):
            assert_same(weight_nz(call, byte_exact=byte_exact).output, expected)


@draws(12)
@given(
    m=st.integers(1, 150),
    k=st.integers(1, 600),
    n=st.integers(1, 500),
    seed=st.integers(0, 99),
    offset=st.booleans(),
    bias=st.booleans(),
    transposed=st.booleans(),
    device=st.sampled_from([DEVICE, "ascend310p1"]),
)
def test_any_legal_shape(
    m: int, k: int, n: int, seed: int, offset: bool, bias: bool, transposed: bool, device: str
) -> None:
    call = parts(m, k, n, seed, offset=offset, bias=bias, transposed=transposed)
    spec = devices.load(device)
    assert_same(weight_nz(call, device).output, reference(**call, spec=spec))


def test_an_nd_weight_gives_the_same() -> None:
    call = parts(6, 70, 50)
    plain = np.asarray(call["weight"])
    wanted = weight_nz(call).output
    assert isinstance(wanted, np.ndarray)
    for weight in (np.ascontiguousarray(plain), np.ascontiguousarray(plain.T).T):
        assert_same(weight_nz(call | {"weight": weight}).output, wanted)


def test_a_shape_of_the_table_equals_the_reference() -> None:
    call = parts(4, 4096, 2048)
    result = weight_nz(call)
    assert isinstance(result.plan, WeightNzPlan)
    assert result.plan.tiles is SHAPES[4, 2048, 4096]
    assert_same(result.output, reference(**call, spec=SPEC))


def test_overflow_saturates() -> None:
    call = parts(4, 64, 48)
    call["x"][0], call["x"][1] = 0, np.float16(60000)
    call["antiquant_scale"][5] = 1000
    call["antiquant_offset"][5] = 65504
    call["bias"][5] = 65504
    output = weight_nz(call).output
    assert_same(output, reference(**call, spec=SPEC))
    assert isinstance(output, np.ndarray)
    assert output[0, 5] == output[1, 5] == 65504


def test_special_values_pass() -> None:
    call = parts(4, 64, 48)
    call["x"][0, 3], call["x"][1, 5], call["x"][2] = np.inf, np.nan, 0
    call["antiquant_scale"][9], call["antiquant_offset"][10] = np.nan, -np.inf
    output = weight_nz(call).output
    assert_same(output, reference(**call, spec=SPEC))
    np.testing.assert_array_equal(output[2], call["bias"])


def test_the_identity_shows_the_weight() -> None:
    weight = np.arange(-64, 64, dtype=np.int8).reshape(2, 64)
    call = {
        "x": np.eye(64, dtype=np.float16),
        "weight": fractal(weight),
        "antiquant_scale": np.float16([0.5, 2]),
        "antiquant_offset": np.float16([0.25, -64]),
    }
    wanted = np.stack([(weight[0] + 0.25) * 0.5, (weight[1] - 64.0) * 2], 1)
    assert_same(weight_nz(call).output, wanted.astype(np.float16))


def test_the_weight_is_cast_into_one_group_of_banks_and_not_loaded_ahead() -> None:
    # Of 256 columns, 128 a core: two k tiles, each with two parts of the weight and one of x.
    trace = run(OP, device=DEVICE, **spec_of(4, 256, 512)).trace
    assert trace is not None
    spans = [span for span in trace.spans() if span.core == 0]
    loads = [x for x in spans if isinstance(x.op, Load) and x.op.src.name == "weight"]
    casts = [x for x in spans if isinstance(x.op, Cast) and x.op.src.dtype is INT8]
    copies = [x for x in spans if isinstance(x.op, CopyToL1)]
    onward = [x for x in spans if isinstance(x.op, LoadData)]
    sums = [x for x in spans if isinstance(x.op, Mmad)]
    # A row of 128 a repeat, 8 blocks of one group; 14 cycles ahead and 18 behind.
    assert [cast.end - cast.start for cast in casts] == [14 + 8 * 128 + 18] * 4
    for cast, load in zip(casts, loads[1:], strict=False):
        assert cast.end <= load.start
    # The next k tile begins when this one lies in L1; its second part waits for mte1.
    assert copies[2].end <= loads[2].start < sums[0].end
    assert onward[len(onward) // 2 - 1].end <= loads[3].start


@pytest.mark.parametrize(("columns", "drains"), [(256, 0), (192, 2), (96, 0)])
def test_all_pipes_stop_before_a_narrower_last_part(columns: int, drains: int) -> None:
    # Two k tiles; 192 columns are parts of 128 and 64.
    trace = run(OP, device=DEVICE, **spec_of(4, 8 * columns, 512)).trace
    assert trace is not None
    barriers = [x.op for x in trace.spans() if x.core == 0 and isinstance(x.op, Barrier)]
    assert [barrier.on for barrier in barriers].count(None) == drains


def spec_of(m: int, n: int, k: int) -> dict[str, Any]:
    return {
        "x": TensorSpec((m, k), "float16"),
        "weight": TensorSpec((n, k), "int8", "FRACTAL_NZ").T,
        "antiquant_scale": TensorSpec((1, n), "float16"),
        "antiquant_offset": TensorSpec((1, n), "float16"),
        "bias": TensorSpec((n,), "float16"),
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "shape", [(4, 11008, 4096), (512, 4096, 2048), (896, 4096, 2048), (14512, 3376, 48)]
)
def test_shapes_of_the_table_fit_the_buffers(shape: tuple[int, int, int]) -> None:
    plan = weight_nz(spec_of(*shape)).plan
    assert isinstance(plan, WeightNzPlan)
    assert plan.tiles is SHAPES[shape]
    assert plan.block_dim == plan.tiles.cores_m * plan.tiles.cores_n


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(1, 65535, 1), (1, 1, 6001), (2000, 15, 33), (513, 2048, 64)])
def test_extreme_shapes_build(shape: tuple[int, int, int]) -> None:
    call = spec_of(*shape)
    assert weight_nz(call).output == TensorSpec(shape[:2], "float16")
    call["x"] = TensorSpec((shape[2], shape[0]), "float16").T
    assert weight_nz(call).output == TensorSpec(shape[:2], "float16")


def test_cores_share_columns_first() -> None:
    plan = weight_nz(spec_of(100, 1024, 64)).plan
    assert isinstance(plan, WeightNzPlan)
    assert (plan.core_m, plan.core_n, plan.block_dim) == (112, 128, 8)
    plan = weight_nz(spec_of(100, 208, 64)).plan
    assert isinstance(plan, WeightNzPlan)
    assert (plan.core_m, plan.core_n, plan.block_dim) == (32, 112, 8)
