"""The msd kernels with a scale for each column, tile by tile, against whole arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from op_calls import BF16, Array, assert_same
from tiny import log, play, tiny_spec
from weight_calls import OP, Kind, build, check, inputs_of, played, tile, weight_call, weight_specs

from npusim import chip, devices, run
from npusim.data.dtypes import FLOAT16, INT32
from npusim.isa import Cast, CrossCoreWaitFlag, Load
from npusim.kernel.program import Program
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.oracle import msd_split_k, multicore
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd_multicore
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd_split_k as split_k
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd import EIGHT_BITS, FOUR_BITS
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_multicore import MulticorePlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_split_k import SplitKPlan
from npusim.trace import Span

A2 = devices.load("ascend910b2")
Call = dict[str, Any]
INT4_TURNED = Kind(weight="int4", layout="NDT")
INT4 = INT4_TURNED._replace(offset=True, bias=True)
OF_128 = Kind(weight="int4", size=128)


def precise(call: Call, form: str) -> Array:
    """What the kernel of *form* makes of *call*, whatever form the call would get."""
    p = check(A2, **call)
    p = replace(p, choice=replace(p.choice, form=form))
    return played(A2, p, tile(A2, p))


def test_the_precise_form_sums_the_digits() -> None:
    call = weight_call(np.random.default_rng(0), 3, 4224, 64, Kind(layout="NDT", offset=True))
    inputs = inputs_of(**call)
    expected = inputs.round_to_x(multicore(inputs, precise=True))
    assert_same(precise(call, "multicore_hp"), expected)
    assert not np.array_equal(precise(call, "multicore"), expected)


def test_the_one_shape_that_gets_the_precise_form() -> None:
    call = weight_specs(36, 8192, 1280, Kind(layout="NDT"))
    found = run(OP, **call, device=A2, timing=False)
    assert isinstance(found.plan, MulticorePlan)
    assert found.plan.form == "multicore_hp"


# ---- split_k ----


@pytest.mark.parametrize(("k", "n"), [(25600, 64), (65504, 32)])
def test_there_are_up_to_six_blocks_of_k(k: int, n: int) -> None:
    plan = tile(A2, check(A2, **weight_specs(1, k, n, Kind())))
    assert isinstance(plan, SplitKPlan)
    assert plan.k_blocks == -(-k // plan.block_k) == {25600: 4, 65504: 6}[k]


def test_a_round_is_a_strip_for_each_vector_core() -> None:
    plan = tile(A2, check(A2, **weight_specs(32, 28672, 8192, Kind())))
    assert isinstance(plan, SplitKPlan)
    assert (plan.round_n, plan.k_blocks, plan.task_n) == (48 * 128, 3, 512)
    # 12 x 3 tasks would be two for each of 18 cube cores: 48 strips need 24 of them.
    assert (plan.block_dim, plan.epilogue_cores_m) == (24, 1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("half_rounds", [1, 2, 3])
@pytest.mark.parametrize("weight", ["ND", "int4"])
def test_the_ring_is_filled_again_and_again(half_rounds: int, weight: str) -> None:
    kind = INT4 if weight == "int4" else Kind(offset=True, bias=True)
    call = weight_call(np.random.default_rng(0), 2, 64, 2336, kind)
    p = check(A2, **call)
    p = replace(p, choice=replace(p.choice, form="split_k"))
    plan = tile(A2, p)
    assert isinstance(plan, SplitKPlan)
    products = (
        2
        * half_rounds
        * plan.k_blocks
        * len((FOUR_BITS if weight == "int4" else EIGHT_BITS).factors)
        * 2
        * 256
        * 4
    )
    plan = replace(
        plan,
        round_n=256,
        half_rounds=half_rounds,
        task_n=128,
        epilogue_cores_m=2,
        workspaces=plan.workspaces | {"products": products},
    )
    inputs = inputs_of(**call)
    expected = inputs.round_to_x(msd_split_k(inputs))
    assert_same(played(A2, p, plan), expected)


# ---- numbers ----


# ---- the stages of a vector core ----


def vector_spans(call: Call) -> list[Span]:
    """What the first vector core of a run does, in the order of its program."""
    found = run(OP, **call, device=A2, values=False)
    assert found.trace is not None
    return list(found.trace.spans(1))


def copies(epilogue: Program, *names: str) -> list[tuple[int, int]]:
    """Start and end of what a tiny chip loads and stores, everything being in its L2."""
    spec = tiny_spec(l2__capacity_bytes=1 << 20)
    trace = play(spec, epilogue, sizes=dict.fromkeys(names, 4096), l2="warm")
    return [(start, end) for pipe, start, _, end in log(trace) if pipe != "vector"]


def test_products_are_loaded_behind_the_cast() -> None:
    p, spec = check(A2, **weight_specs(2, 32, 64, Kind())), tiny_spec()
    core = VectorCore("epilogue", spec, "aiv")
    epilogue = msd_multicore.Epilogue(core, p, max_rows=1, max_columns=64)
    for here in epilogue.tiles(0, 64):
        epilogue.prepare(here)
        epilogue.write(here)

    names = "antiquant_scale", "most", "sums", "products", "output"
    # 64 B a cycle and 2 of latency; a vector micro-op of one repeat takes 6, or 7 where two of its
    # operands share a bank: casts end at 10, 23, 35, broadcasts at 17, 75.
    first = [(0, 4), (2, 5), (3, 6), (4, 10), (8, 14)]
    # Seven more: 35 + 6 + 7 + 7 + 7 + 6. Stores take 4 cycles and 4 of latency.
    stored = (68, 76)
    # Numbers of rows are asked for at 17, products at the ends of both casts.
    second = [(17, 21), (19, 23), (23, 29), (35, 41)]
    # Nine vector micro-ops after the first store began: 68 + 7 + 6 x 4 + 7 x 3 + 6.
    expected = [*first, stored, *second, (126, 134)]
    assert copies(core.build(), *names) == expected


def test_first_offsets_are_made_beside_the_cube() -> None:
    call = weight_specs(64, 128, 24 * 512, Kind(offset=True))
    spans = vector_spans(call)
    waits = [span for span in spans if span.op == CrossCoreWaitFlag("group", "mte2", 2)]
    assert len(waits) == 1
    early = [span for span in spans if span.end < waits[0].end]
    # (sums,) x (columns,): a product of all rows for each of 512 / 64 vectors
    assert [str(span.op).partition(" ")[0] for span in early].count("mul") == 8
    products = [span for span in spans if str(span.op).partition("<- ")[2].startswith("products")]
    assert waits[0].end <= products[0].start
    # 15 rows of 512 at a time: five tiles.
    assert len(products) == 2 * 5


def test_a_result_waits_for_the_store_of_the_one_before() -> None:
    spans = vector_spans(weight_specs(64, 128, 24 * 512, Kind()))
    stores = [span for span in spans if " output" in str(span.op)]
    slots = {str(span.op).partition("<- ")[2] for span in stores[:-1]}
    casts = [
        span
        for span in spans
        if isinstance(span.op, Cast) and span.op.mode == "round" and span.op.dst.dtype is FLOAT16
    ]
    assert len(stores) == len(casts) == 5
    assert len(slots) == 1
    for store, cast in zip(stores[:-1], casts[1:], strict=True):
        assert store.end <= cast.start


def test_split_k_loads_nothing_ahead() -> None:
    p, spec = check(A2, **weight_specs(1, 13728, 64, Kind())), tiny_spec()
    plan = tile(A2, p)
    assert isinstance(plan, SplitKPlan)
    core = VectorCore("epilogue", spec, "aiv")
    epilogue = split_k.Epilogue(core, p, replace(plan, k_blocks=1), 1)
    epilogue.write(slice(0, 1), 0, GmView.of("products", INT32, 2, 64))
    names = "antiquant_scale", "most", "products", "output"
    # The scale is cast by 10; the row's number is spread by 19 and two planes are cleared by 31;
    # each product is cast and added in 6 + 7 cycles; after the last one there are 7 + 8 + 6 more.
    expected = [(0, 4), (10, 13), (31, 37), (50, 56), (90, 98)]
    assert copies(core.build(), *names) == expected


@pytest.mark.parametrize("weight", ["ND", "int4"])
def test_every_load_of_split_k_waits_for_the_vector_pipe(weight: str) -> None:
    call = weight_specs(40, 13728, 1024, INT4_TURNED if weight == "int4" else Kind())
    assert loads_behind_the_vector_pipe(call, "x", "products") > 2


def test_per_group_loads_no_x_ahead() -> None:
    call = weight_specs(16, 14080, 512, OF_128)
    assert loads_behind_the_vector_pipe(call, "x") > 0


def loads_behind_the_vector_pipe(call: Call, *names: str) -> int:
    """How many loads of *names* come behind work of the vector pipe; all of them must."""
    done, waited = 0, 0
    for span in vector_spans(call):
        if span.pipe == "vector":
            done = max(done, span.end)
        elif isinstance(span.op, Load) and span.op.src.name in names:
            assert span.start >= done
            waited += done > 0
    return waited


# ---- the vendor's tilings ----


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "device", "form", "cores"),
    [
        (64, 2560, 5120, Kind(offset=True), "ascend910b4", "multicore", 20),
        (1, 4320, 10240, Kind(layout="NDT"), "ascend910b4", "multicore", 20),
        (8, 10240, 8640, Kind(), "ascend910b4", "multicore", 17),
        (1, 10240, 1536, Kind(bias=True), "ascend910b4", "multicore", 6),
        (36, 8192, 1280, Kind(layout="NDT", offset=True), "ascend910b2", "multicore_hp", 20),
        (36, 8192, 1280, Kind(layout="NZT", offset=True), "ascend910b2", "multicore_hp", 20),
        (4, 20480, 5120, Kind(layout="NDT"), "ascend910b2", "split_k", 23),
        (4, 20480, 5120, Kind(layout="NZT"), "ascend910b2", "split_k", 23),
        (10, 8192, 3072, INT4_TURNED, "ascend910b2", "split_k", 24),
        (1, 11008, 4096, OF_128, "ascend910b2", "msd_group", 22),
        (1, 4096, 22016, OF_128, "ascend910b2", "msd_group", 22),
        (1, 12288, 1792, Kind(BF16, size=64), "ascend910b4", "msd_group", 20),
    ],
)
def test_blocks_that_the_vendor_launches(
    m: int, k: int, n: int, kind: Kind, device: str, form: str, cores: int
) -> None:
    """ops-nn@e5c3fa9 tests/ut/op_host/test_weight_quant_batch_matmul_v2_msd{,_group}_tiling.cpp."""
    spec, call = devices.load(device), weight_specs(m, k, n, kind)
    plan = tile(spec, check(spec, **call))
    assert (plan.form or plan.template, plan.block_dim) == (form, cores)
    assert plan.is_mix
    blocks = build(spec, check(spec, **call), plan)
    assert len(blocks) == 3 * cores
    assert chip.verify(blocks, spec, flags_may_stay_up=form == "msd_group")


# ---- the tile of the cube ----

# Weight -> whether the vendor's common tiling serves it, which has one buffer in L0C.
COMMON = {"ND": False, "ND.T": True, "NZ": True, "NZ.T": False}


@pytest.mark.parametrize("form", COMMON)
@pytest.mark.parametrize("m", [1, 16, 24, 31, 32, 33, 48, 64])
def test_the_tile_of_the_cube_for_any_m(m: int, form: str) -> None:
    """Digits that do not fit next to two pieces of the weight are streamed, not cut smaller."""
    plan = tile(A2, check(A2, **weight_specs(m, 4096, 11008, Kind(layout=form))))
    assert isinstance(plan, MulticorePlan)
    cube, rows = plan.cube, -(-2 * m // 16) * 16
    assert (cube.m, cube.n, cube.k, cube.steps_a, cube.steps_b) == (rows, 256, 128, 4, 4)
    l1_bytes = A2.cores["aic"].usable_bytes("l1")
    assert (cube.keep == "a") is (rows * 4096 + 8 * 128 * 256 <= l1_bytes)
    assert cube.l0c_depth == (1 if COMMON[form] or 2 * rows * 256 * 4 > 131072 else 2)


def test_digits_beyond_256_kib_are_streamed() -> None:
    """However much of L1 is left: 2 x 16 rows of 8192 digits are the most that stay."""
    kept = [
        tile(A2, check(A2, **weight_specs(m, 8192, 64, Kind(layout="NDT")))).cube.keep  # type: ignore[union-attr]
        for m in (16, 17)
    ]
    assert kept == ["a", None]


def test_times_grow_smoothly_with_the_rows() -> None:
    """Digits that no longer stay in L1 cost little: no step of a third between m 24 and 33."""
    times_us = [
        run(OP, **weight_specs(m, 4096, 11008, Kind()), device="ascend910b2").time_us
        for m in (24, 31, 33)
    ]
    assert max(times_us) < 1.1 * min(times_us)  # type: ignore[type-var, operator]
