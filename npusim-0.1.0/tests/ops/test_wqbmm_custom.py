"""The template custom: its ring, the steps of a vector core, and how it is split."""

from __future__ import annotations

import numpy as np
import pytest
from op_calls import BF16, assert_as_reference
from tiny import log, play, tiny_spec
from weight_calls import OP, Kind, check, tile, weight_call, weight_specs

from npusim import devices, run
from npusim.data.dtypes import FLOAT16, INT8
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, Global, Load, Store
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import repeat
from npusim.ops._dequantised_weight import (
    Dequantiser,
    MatrixTile,
    tile_view,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.custom import CustomPlan, precision
from npusim.trace import Span

A2 = devices.load("ascend910b2")
pytestmark = pytest.mark.filterwarnings("ignore:npu_weight_quant_batchmatmul.*it is taken")


def plan_of(m: int, k: int, n: int, kind: Kind) -> CustomPlan:
    plan = tile(A2, check(A2, **weight_specs(m, k, n, kind, template="custom")))
    assert isinstance(plan, CustomPlan)
    return plan


WIDE = 3 * 24 * 256 + 300
"""Columns of four rounds, one more than the ring has slots; the last one is for two cores."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("k", "kind"),
    [
        (9, Kind(offset=True)),
        (9, Kind(BF16, layout="NDT", bias=True)),
        (16, Kind(layout="NZ")),
        (16, Kind(weight="int4", layout="NZT", offset=True)),
    ],
)
def test_a_slot_of_the_ring_is_filled_again(rng: np.random.Generator, k: int, kind: Kind) -> None:
    plan = plan_of(3, k, WIDE, kind)
    assert (plan.rounds, plan.slots) == (4, 3)
    call = weight_call(rng, 3, k, WIDE, kind)
    assert_as_reference(OP, device=A2, template="custom", **call)


# ---- the steps of a vector core ----


def test_fp16_is_copied_to_where_it_is_stored_from() -> None:
    call = weight_specs(1, 4, 128, Kind(), template="custom")
    p, spec = check(A2, **call), tiny_spec(l2__capacity_bytes=1 << 20)
    builder = VectorCore("dequantise", spec)
    kernel = Dequantiser(builder, p.quantised_weight, precision(p), 4, 128)
    out = GmMatrix("out", FLOAT16, 4, 128, True)
    repeat(builder, *kernel.call(MatrixTile(0, 0, 4, 128), out, 0, 0))
    sizes = dict.fromkeys(("weight", "antiquant_scale", "out"), 4096)
    trace = play(spec, builder.build(), sizes=sizes, l2="warm")
    # 512 and 256 B at 64 B a cycle, 2 of latency. A head of 2, a repeat for each 256 B of fp16, and
    # 3 of tail: the cast also takes a turn for each row that it reads and writes in one bank, the
    # product three for the bank of the scales.
    assert log(trace) == [
        ("mte2", 0, 8, 10),
        ("mte2", 8, 12, 14),
        ("vector", 14, 22, 25),
        ("vector", 25, 34, 37),
        ("vector", 37, 43, 46),
        ("mte3", 46, 78, 82),
    ]


def test_a_tile_of_fractals_is_a_burst_a_column() -> None:
    weight = GmMatrix("weight", INT8, 70, 99, k_is_first=True, layout="FRACTAL_NZ")
    tile = MatrixTile(row=16, column=32, rows=40, columns=50)
    # 70 rows are filled up to 80; rows 16 to 56 end in the fractal of row 64, columns 32 to 82 lie
    # in the second and the third column of fractals, each 32 bytes wide.
    assert tile_view(weight, tile).operand == Global(
        "weight", (80 + 16) * 32, burst_bytes=48 * 32, bursts=2, stride_bytes=80 * 32
    )


def spans_of(core: int, k: int, n: int) -> list[Span]:
    """What vector core *core* of a run does, in the order of its program."""
    call = weight_specs(1, k, n, Kind(single=True), template="custom")
    found = run(OP, **call, device=A2, values=False, every_core=True)
    assert found.trace is not None
    return [span for span in found.trace.spans() if span.core == core]


def names_of(spans: list[Span]) -> list[str]:
    """Stores, and what concerns other cores, in order."""
    found = []
    for span in spans:
        match span.op:
            case Store():
                found.append("store")
            case CrossCoreSetFlag(_, _, event):
                found.append(f"set {event}")
            case CrossCoreWaitFlag(_, _, event):
                found.append(f"wait {event}")
    return found


def test_a_round_is_handed_over_a_tile_later() -> None:
    # Four rounds of 24 x 256 columns, 12 tiles of 512 each: one for each of the first 12 cores.
    spans = spans_of(1, 9, WIDE)
    hand_over = ["set 6", "wait 6", "set 8"]
    assert names_of(spans) == [
        "store",
        *(*hand_over, "store"),
        # The cube cores have read the first round, then the second one.
        *(*hand_over, "wait 9", "store"),
        *(*hand_over, "wait 9", "store"),
        *hand_over,
    ]
    # The second tile has been loaded and widened before the first round is over.
    loads = [span for span in spans if isinstance(span.op, Load) and span.op.src.name == "weight"]
    over = next(span for span in spans if isinstance(span.op, CrossCoreWaitFlag))
    assert loads[1].end < over.end


# ---- the tiling ----


def test_one_round_where_the_columns_fit_the_cores() -> None:
    plan = plan_of(128, 512, 5120, Kind())
    assert (plan.base.m, plan.base.n, plan.base.k) == (128, 256, 64)
    assert (plan.cores_m, plan.cores_n, plan.rounds, plan.slots) == (1, 20, 1, 1)
    assert plan.workspaces == {"dequantised": 512 * 5120 * 2}


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        (Kind(), (48, 512)),
        (Kind(layout="NDT"), (40, 512)),
        (Kind(BF16), (32, 512)),
        (Kind(BF16, layout="NDT"), (32, 512)),
        (Kind(layout="NZ"), (864, 32)),
        (Kind(BF16, layout="NZ"), (544, 32)),
        (Kind(layout="NZT"), (64, 384)),
        (Kind(BF16, layout="NZT"), (64, 256)),
        (Kind(BF16, "int4", "NZ", size=64, trans_x=True), (256, 64)),
        (Kind(weight="int4", layout="NZT"), (64, 384)),
    ],
)
def test_pieces_are_those_of_the_vendor(kind: Kind, piece: tuple[int, int]) -> None:
    plan = plan_of(70, 128, 64, kind._replace(offset=True))
    assert (plan.tile_rows, plan.tile_columns) == piece


def test_the_last_round_may_be_short() -> None:
    plan = plan_of(1, 64, 25 * 256, Kind())
    assert (plan.cores_n, plan.base.n, plan.rounds, plan.slots) == (24, 192, 2, 2)


def test_the_columns_of_a_core_are_cut_evenly() -> None:
    # 13824 / 24 = 576 columns a core: three tiles of 192, not two of 256 and one of 64.
    plan = plan_of(96, 512, 13824, Kind(BF16))
    assert (plan.cores_n, plan.base.n, plan.base.k, plan.rounds) == (24, 192, 64, 3)


def test_many_rows_are_shared_along_m_too() -> None:
    plan = plan_of(2048, 64, 1024, Kind())
    assert (plan.cores_m, plan.base.m, plan.cores_n, plan.rounds) == (6, 128, 4, 1)


def test_k_along_rows_is_padded_to_256() -> None:
    plan = plan_of(16, 300, 64, Kind(layout="NDT"))
    assert plan.workspaces == {"dequantised": 512 * plan.round_n * 2}
