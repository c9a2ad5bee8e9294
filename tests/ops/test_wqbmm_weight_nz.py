"""The weight_nz template of npu_weight_quant_batchmatmul: its pipes, and how it is split."""

from __future__ import annotations

from typing import Any

import pytest
from weight_calls import OP, Kind, weight_specs

from npusim import Run, TensorSpec, run
from npusim.data.dtypes import INT8
from npusim.isa import Barrier, Cast, CopyToL1, Load, LoadData, Mmad
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz import SHAPES, WeightNzPlan

DEVICE = "ascend310p3"


def weight_nz(call: dict[str, Any]) -> Run:
    result = run(OP, device=DEVICE, timing=False, **call)
    assert isinstance(result.plan, WeightNzPlan)
    return result


def spec_of(m: int, n: int, k: int, *, trans_x: bool = False) -> dict[str, Any]:
    kind = Kind(layout="NZT", offset=True, bias=True, trans_x=trans_x)
    return weight_specs(m, k, n, kind)


def test_no_part_of_the_weight_is_loaded_ahead() -> None:
    # Of 256 columns, 128 a core: two k tiles, each with two parts of the weight and one of x.
    trace = run(OP, device=DEVICE, **spec_of(4, 256, 512)).trace
    assert trace is not None
    spans = [span for span in trace.spans() if span.core == 0]
    loads = [x for x in spans if isinstance(x.op, Load) and x.op.src.name == "weight"]
    casts = [x for x in spans if isinstance(x.op, Cast) and x.op.src.dtype is INT8]
    copies = [x for x in spans if isinstance(x.op, CopyToL1)]
    onward = [x for x in spans if isinstance(x.op, LoadData)]
    [x for x in spans if isinstance(x.op, Mmad)]
    # A row of 128 a repeat, 8 blocks of one group; 14 cycles ahead and 18 behind.
    assert [cast.end - cast.start for cast in casts] == [14 + 8 * 128 + 18] * 4
    for cast, load in zip(casts, loads[1:], strict=False):
        assert cast.end <= load.start
    # The next k tile begins when this one lies in L1 and its loads are handed to mte1, whose queue
    # is full of them for a while; its second part waits for mte1.
    assert copies[2].end <= loads[2].start
    assert onward[len(onward) // 2 - 1].end <= loads[3].start


@pytest.mark.parametrize(("columns", "drains"), [(256, 0), (192, 2), (96, 0)])
def test_all_pipes_stop_before_a_narrower_last_part(columns: int, drains: int) -> None:
    # Two k tiles; 192 columns are parts of 128 and 64.
    trace = run(OP, device=DEVICE, **spec_of(4, 8 * columns, 512)).trace
    assert trace is not None
    barriers = [x.op for x in trace.spans() if x.core == 0 and isinstance(x.op, Barrier)]
    assert [barrier.on for barrier in barriers].count(None) == drains


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
    for trans_x in (False, True):
        found = weight_nz(spec_of(*shape, trans_x=trans_x))
        assert found.output == TensorSpec(shape[:2], "float16")


def test_cores_share_columns_first() -> None:
    plan = weight_nz(spec_of(100, 1024, 64)).plan
    assert isinstance(plan, WeightNzPlan)
    assert (plan.core_m, plan.core_n, plan.block_dim) == (112, 128, 8)
    plan = weight_nz(spec_of(100, 208, 64)).plan
    assert isinstance(plan, WeightNzPlan)
    assert (plan.core_m, plan.core_n, plan.block_dim) == (32, 112, 8)
