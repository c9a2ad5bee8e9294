"""The template custom: tiled values against whole arrays, and what other templates agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Array
from tiny import log, play, tiny_spec
from weight_calls import HALF, OP, Kind, assert_bits, check, reference, weight_call

from npusim import TensorSpec, devices, ops, run
from npusim.data.dtypes import FLOAT16
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, Load, Store
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import repeat
from npusim.ops._dequantised_weight import (
    Dequantiser,
    MatrixTile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.custom import CustomPlan, precision
from npusim.trace import Span

A2 = devices.load("ascend910b2")
pytestmark = pytest.mark.filterwarnings("ignore:npu_weight_quant_batchmatmul.*it is taken")


def custom(call: dict[str, Any], **how: Any) -> Array:
    """What the simulated chip makes of *call*."""
    values = run(OP, **call, template="custom", device=A2, timing=False, **how).output
    assert isinstance(values, np.ndarray)
    return values


def plan_of(m: int, k: int, n: int, kind: Kind) -> CustomPlan:
    call = weight_call(np.random.default_rng(0), m, k, n, kind)
    operator = ops.load(OP)
    plan = operator.tile(A2, operator.check(A2, **call, template="custom"))
    assert isinstance(plan, CustomPlan)
    return plan


SMALL = [
    # One element; one fractal; tails everywhere.
    ((1, 1, 1), Kind()),
    ((16, 32, 16), Kind(offset=True)),
    ((33, 99, 70), Kind(offset=True, bias=True)),
    ((33, 99, 70), Kind(BF16, offset=True, bias=True, trans_x=True)),
    ((33, 99, 70), Kind(layout="NDT", offset=True, bias=True, quant=1)),
    ((33, 99, 70), Kind(BF16, layout="NDT", single=True, offset=True)),
    ((33, 99, 70), Kind(single=True, quant=2, trans_x=True)),
    # Columns of fractals, cut short by k and by n.
    ((17, 99, 70), Kind(layout="NZ", offset=True)),
    ((17, 99, 70), Kind(BF16, layout="NZ", bias=True)),
    ((17, 99, 70), Kind(layout="NZT", quant=2)),
    ((17, 99, 70), Kind(BF16, layout="NZT", offset=True)),
    # Several rows of tiles, pieces longer than k and than n, a last group that is short.
    ((150, 300, 333), Kind(size=64, offset=True, trans_x=True, quant=2)),
    ((150, 300, 333), Kind(BF16, layout="NDT", size=96, offset=True, bias=True)),
    ((300, 70, 40), Kind(bias=True)),
    ((5, 1100, 24), Kind(layout="NDT", size=32, offset=True)),
    # int4 in every layout that takes it.
    ((17, 200, 72), Kind(weight="int4", size=32, offset=True)),
    ((17, 200, 72), Kind(BF16, "int4", "NDT", size=32, offset=True)),
    ((17, 40, 8), Kind(BF16, "int4", single=True, bias=True)),
    ((17, 192, 192), Kind(weight="int4", layout="NZ", size=64, offset=True, trans_x=True)),
    ((17, 256, 64), Kind(BF16, "int4", "NZ", size=128)),
    ((17, 200, 33), Kind(BF16, "int4", "NZT", offset=True)),
    ((17, 200, 33), Kind(weight="int4", layout="NZT")),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("sizes", "kind"), SMALL)
def test_tiles_are_the_whole(
    rng: np.random.Generator, sizes: tuple[int, int, int], kind: Kind
) -> None:
    call = weight_call(rng, *sizes, kind)
    expected = reference(**call, template="custom", spec=A2)
    for byte_exact in (False, True):
        assert_bits(custom(call, byte_exact=byte_exact), expected)


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
    assert_bits(custom(call), reference(**call, template="custom", spec=A2))


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Any small call that custom takes."""
    m, k = draw(st.integers(1, 140)), draw(st.integers(1, 200))
    # One column has one scale, which is one for all, and FRACTAL_NZ wants one for each.
    n = draw(st.integers(2, 300))
    weight = draw(st.sampled_from(["int8", "int4"]))
    layout = draw(st.sampled_from(["ND", "NDT", "NZT", "NZ"]))
    is_nz, is_int4 = layout.startswith("NZ"), weight == "int4"
    size = 0
    if layout == "NZ" and is_int4:
        size = draw(st.sampled_from([64, 128]))
        k, n = size * draw(st.integers(2, 3)), 64 * draw(st.integers(1, 4))
    elif not is_nz and k > 32:
        size = draw(st.sampled_from([0, 32, 32 * ((k - 1) // 32)]))
    if is_int4 and layout.endswith("T"):
        k = -(-k // 8) * 8
    elif is_int4:
        n = -(-n // 8) * 8
    kind = Kind(
        draw(st.sampled_from([HALF, BF16])),
        weight,
        layout,
        size,
        single=not is_nz and not size and draw(st.booleans()),
        offset=draw(st.booleans()),
        bias=draw(st.booleans()),
        quant=0 if is_nz else draw(st.integers(0, 2)),
        trans_x=(not is_nz or is_int4) and draw(st.booleans()),
    )
    return weight_call(np.random.default_rng(draw(st.integers(0, 99))), m, k, n, kind)


@draws(25)
@given(calls())
def test_any_call(call: dict[str, Any]) -> None:
    assert_bits(custom(call), reference(**call, template="custom", spec=A2))
    # The same call without values runs the same programs.
    timed = run(OP, **_described(call), template="custom", device=A2, timing=False)
    assert isinstance(timed.output, TensorSpec)


def _described(call: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in call.items():
        if isinstance(value, np.ndarray):
            turned = value.ndim > 1 and not value.flags.c_contiguous
            plain = TensorSpec((value.T if turned else value).shape, value.dtype.name)
            found[name] = plain.T if turned else plain
        else:
            found[name] = getattr(value, "spec", value)
    return found


@pytest.mark.parametrize("kind", [Kind(offset=True), Kind(BF16, offset=True)])
def test_what_is_not_a_number_stays_in_its_row_or_column(
    rng: np.random.Generator, kind: Kind
) -> None:
    call = weight_call(rng, 20, 40, 50, kind)
    x, scale, offset = (call[name].copy() for name in ("x", "antiquant_scale", "antiquant_offset"))
    x[3, 7], x[5], x[9, 0] = np.nan, 0, np.inf
    scale[0, 11], offset[0, 13] = np.inf, np.nan
    call |= {"x": x, "antiquant_scale": scale, "antiquant_offset": offset}
    y = custom(call)
    assert_bits(y, reference(**call, template="custom", spec=A2))
    wide = y.astype(np.float32)
    lost = {11, 13}
    kept = [column for column in range(50) if column not in lost]
    assert np.isnan(wide[3]).all()
    assert np.isnan(wide[:, 13]).all()
    assert (wide[5, kept] == 0).all()
    assert np.isfinite(wide[np.ix_([0, 1, 19], kept)]).all()
    assert not np.isfinite(wide[9]).any()


@pytest.mark.parametrize("x", [HALF, BF16])
def test_layouts_do_not_change_values(x: Any) -> None:
    m, k, n = 20, 70, 90
    calls = [
        weight_call(np.random.default_rng(5), m, k, n, Kind(x, layout=layout, offset=True))
        for layout in ("ND", "NDT", "NZ", "NZT")
    ]
    first = custom(calls[0])
    for call in calls[1:]:
        assert_bits(custom(call), first)


def test_fp16_agrees_with_nz_splitk_on_one_core_along_k(rng: np.random.Generator) -> None:
    call = weight_call(rng, 70, 640, 64, Kind(layout="NZT", offset=True))
    assert_bits(custom(call), reference(**call, template="nz_splitk", spec=A2))


def test_groups_may_lie_either_way(rng: np.random.Generator) -> None:
    for layout in ("ND", "NDT"):
        call = weight_call(rng, 20, 128, 40, Kind(layout=layout, size=64, offset=True))
        turned = {
            name: np.asfortranarray(call[name]) for name in ("antiquant_scale", "antiquant_offset")
        }
        assert_bits(custom(call | turned), custom(call))


def test_the_vendor_takes_it_for_what_no_other_kernel_can(rng: np.random.Generator) -> None:
    for kind in (Kind(single=True), Kind(quant=2), Kind(trans_x=True), Kind(size=64)):
        call = weight_call(rng, 20, 128, 64, kind)
        found = run(OP, **call, device=A2, timing=False)
        assert found.template == "custom"
        assert isinstance(found.output, np.ndarray)
        assert_bits(found.output, reference(**call, spec=A2))


# ---- the steps of a vector core ----


def test_fp16_is_copied_to_where_it_is_stored_from() -> None:
    call = {
        "x": TensorSpec((1, 4), "float16"),
        "weight": TensorSpec((4, 128), "int8"),
        "antiquant_scale": TensorSpec((128,), "float16"),
    }
    p, spec = check(A2, **call, template="custom"), tiny_spec(l2__capacity_bytes=1 << 20)
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


def spans_of(core: int, k: int, n: int) -> list[Span]:
    """What vector core *core* of a run does, in the order of its program."""
    call = {
        "x": TensorSpec((1, k), "float16"),
        "weight": TensorSpec((k, n), "int8"),
        "antiquant_scale": TensorSpec((1,), "float16"),
    }
    found = run(OP, **call, device=A2, values=False, template="custom", every_core=True)
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


def test_a_round_is_handed_over_when_the_first_tile_of_the_next_is_made() -> None:
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


def test_a_k_is_padded_to_256_where_it_runs_along_the_rows() -> None:
    plan = plan_of(16, 300, 64, Kind(layout="NDT"))
    assert plan.workspaces == {"dequantised": 512 * plan.round_n * 2}
