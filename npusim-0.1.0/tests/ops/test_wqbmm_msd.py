"""The msd kernels with a scale for each column, tile by tile, against whole arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Array, assert_same
from tiny import log, play, tiny_spec
from weight_calls import (
    F32,
    HALF,
    OP,
    Kind,
    check,
    inputs_of,
    played,
    reference,
    tile,
    weight_call,
)

from npusim import TensorSpec, chip, devices, ops, run
from npusim.data.dtypes import FLOAT16, INT32
from npusim.isa import Cast, CrossCoreWaitFlag, Load
from npusim.kernel.program import Program
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._digits import EIGHT_BITS, FOUR_BITS, Scheme
from npusim.ops.npu_weight_quant_batchmatmul.oracle import msd_split_k, multicore
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd_multicore
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd_split_k as split_k
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_multicore import MulticorePlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_split_k import SplitKPlan
from npusim.trace import Span

A2 = devices.load("ascend910b2")
Call = dict[str, Any]


def call_of(
    m: int,
    k: int,
    n: int,
    *,
    kind: Any = HALF,
    weight: str = "ND",
    parts: str = "ob",
    seed: int = 0,
) -> Call:
    """*weight*: ND, ND.T, NZ, NZ.T or int4; *parts*: o for an offset, b for a bias."""
    layout = "NDT" if weight == "int4" else weight.replace(".", "")
    how = Kind(
        kind, "int4" if weight == "int4" else "int8", layout, offset="o" in parts, bias="b" in parts
    )
    call = weight_call(np.random.default_rng(seed), m, k, n, how)
    call["antiquant_scale"] = call["antiquant_scale"][0]
    if how.offset:
        call["antiquant_offset"] = call["antiquant_offset"][0]
    return {name: value for name, value in call.items() if value is not None}


def assert_as_reference(call: Call, form: str, device: str = "ascend910b2", **how: Any) -> None:
    found = run(OP, **call, device=device, timing=False, **how)
    assert found.plan is not None
    assert (found.template, getattr(found.plan, "form", "")) == ("msd", form)
    with np.errstate(all="ignore"):
        assert_same(found.output, reference(**call, spec=devices.load(device)))


# ---- multicore ----


@pytest.mark.parametrize("k", [32, 64, 96, 128, 160, 448, 4064, 4096, 4128, 4224])
def test_rows_are_summed_and_divided_as_their_length_says(k: int) -> None:
    assert_as_reference(call_of(3, k, 32), "multicore")


@pytest.mark.sample(4)
@pytest.mark.parametrize("weight", ["ND", "ND.T", "NZ", "NZ.T"])
@pytest.mark.parametrize("kind", [HALF, BF16])
def test_every_weight_that_multicore_takes(weight: str, kind: Any) -> None:
    call = call_of(5, 672, 544, kind=kind, weight=weight)
    assert_as_reference(call, "multicore")
    small = call_of(5, 96, 96, kind=kind, weight=weight)
    assert_as_reference(small, "multicore", byte_exact=True)


@pytest.mark.parametrize("parts", ["", "o", "b", "ob"])
def test_offset_and_bias_may_be_missing(parts: str) -> None:
    assert_as_reference(call_of(2, 160, 64, parts=parts), "multicore")
    assert_as_reference(call_of(2, 160, 64, parts=parts, weight="int4"), "split_k")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("m", "n", "device"),
    [(1, 32, "ascend910b2"), (64, 1568, "ascend910_9391"), (41, 352, "ascend910b4")],
)
def test_rows_and_columns_are_dealt_to_few_and_many_cores(m: int, n: int, device: str) -> None:
    assert_as_reference(call_of(m, 128, n), "multicore", device)


def test_a_row_of_x_may_fill_the_unified_buffer() -> None:
    assert_as_reference(call_of(1, 13696, 32), "multicore")


def test_multicore_takes_many_rows_if_it_is_asked_to() -> None:
    call = call_of(150, 64, 288) | {"template": "msd"}
    assert_as_reference(call, "multicore")


def precise(call: Call, form: str) -> Array:
    """What the kernel of *form* makes of *call*, whatever form the call would get."""
    p = check(A2, **call)
    p = replace(p, choice=replace(p.choice, form=form))
    return played(A2, p, tile(A2, p))


def test_the_precise_form_sums_the_digits() -> None:
    call = call_of(3, 4224, 64, parts="o", weight="ND.T")
    inputs = inputs_of(**call)
    expected = inputs.round_to_x(multicore(inputs, precise=True))
    assert_same(precise(call, "multicore_hp"), expected)
    assert not np.array_equal(precise(call, "multicore"), expected)


def test_the_one_shape_that_gets_the_precise_form() -> None:
    weight = TensorSpec((1280, 8192), "int8").T
    scale = TensorSpec((1280,), "float16")
    found = run(OP, TensorSpec((36, 8192), "float16"), weight, scale, device=A2, timing=False)
    assert isinstance(found.plan, MulticorePlan)
    assert found.plan.form == "multicore_hp"


# ---- split_k ----


@pytest.mark.parametrize(("m", "k", "n"), [(1, 32, 32), (9, 1056, 96), (3, 12320, 32)])
@pytest.mark.parametrize("kind", [HALF, BF16])
def test_int4_in_three_digits(m: int, k: int, n: int, kind: Any) -> None:
    assert_as_reference(call_of(m, k, n, kind=kind, weight="int4"), "split_k", byte_exact=k < 2000)


@pytest.mark.parametrize("weight", ["ND", "ND.T", "NZ", "NZ.T"])
def test_int8_in_blocks_of_k(weight: str) -> None:
    assert_as_reference(call_of(3, 13728, 64, weight=weight), "split_k")


@pytest.mark.parametrize(("k", "n"), [(25600, 64), (65504, 32)])
def test_there_are_up_to_six_blocks_of_k(k: int, n: int) -> None:
    call = call_of(1, k, n)
    plan = tile(A2, check(A2, **call))
    assert isinstance(plan, SplitKPlan)
    assert plan.k_blocks == -(-k // plan.block_k) == {25600: 4, 65504: 6}[k]
    assert_as_reference(call, "split_k")


def test_columns_go_round_by_round() -> None:
    assert_as_reference(call_of(2, 32, 32032), "split_k")


def test_a_round_is_a_strip_a_vector_core_for_all_cube_cores() -> None:
    plan = tile(A2, check(A2, **spec_call(32, 28672, 8192, "ND")))
    assert isinstance(plan, SplitKPlan)
    assert (plan.round_n, plan.k_blocks, plan.task_n) == (48 * 128, 3, 512)
    # 12 x 3 tasks would be two for each of 18 cube cores: 48 strips need 24 of them.
    assert (plan.block_dim, plan.epilogue_cores_m) == (24, 1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("half_rounds", [1, 2, 3])
@pytest.mark.parametrize("weight", ["ND", "int4"])
def test_the_ring_is_filled_again_and_again(half_rounds: int, weight: str) -> None:
    call = call_of(2, 64, 2336, weight=weight)
    p = check(A2, **call)
    p = replace(p, choice=replace(p.choice, form="split_k"))
    plan = tile(A2, p)
    assert isinstance(plan, SplitKPlan)
    products = 2 * half_rounds * plan.k_blocks * len(scheme_of(weight).factors) * 2 * 256 * 4
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


def scheme_of(weight: str) -> Scheme:
    return FOUR_BITS if weight == "int4" else EIGHT_BITS


def test_split_k_takes_many_rows_if_it_is_asked_to() -> None:
    call = call_of(150, 96, 64, weight="int4") | {"template": "msd"}
    assert_as_reference(call, "split_k")


# ---- numbers ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("weight", ["ND", "int4"])
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("k", [96, 160])
def test_special_numbers(weight: str, kind: Any, k: int) -> None:
    call = call_of(9, k, 32, kind=kind, weight=weight)
    x = call["x"]
    x[0], x[1] = 0.0, -0.0
    x[2, 5], x[3, 7], x[4, 11] = np.inf, -np.inf, np.nan
    x[5], x[6] = 6e-8, 65504.0
    x[7] = 0.0
    x[7, 3] = -1.0
    call["antiquant_scale"][:4] = [np.inf, np.nan, 0.0, 65504.0]
    call["antiquant_offset"][4:7] = [np.inf, np.nan, 0.0]
    call["bias"][7:9] = [np.inf, np.nan]
    for parts in ((), ("antiquant_offset",), ("bias",)):
        kept = {name: value for name, value in call.items() if name not in parts}
        assert_as_reference(kept, "multicore" if weight == "ND" else "split_k")


@pytest.mark.parametrize("weight", ["ND", "NZ.T", "int4"])
def test_digits_come_close_to_the_exact_product(weight: str) -> None:
    call = call_of(4, 512, 96, weight=weight)
    y = run(OP, **call, device=A2, timing=False).output
    custom = reference(**call, template="custom").astype(F32)
    assert isinstance(y, np.ndarray)
    assert 0 < np.abs(y.astype(F32) - custom).max() < 2e-3 * np.abs(custom).max()


def test_what_undoes_the_digits() -> None:
    """The words of ops-nn's tiling and kernels."""
    words = {
        scheme: np.array(scheme.weights, F32).view(np.uint32) for scheme in (EIGHT_BITS, FOUR_BITS)
    }
    assert words[EIGHT_BITS].tolist() == [0x3C010204, 0x38020610]
    assert words[FOUR_BITS].tolist() == [0x3E08B733, 0x3C120653, 0x3A1BF7B7]


@draws(25)
@given(
    m=st.integers(1, 64),
    k=st.integers(1, 12).map(lambda x: 32 * x),
    n=st.integers(1, 20).map(lambda x: 32 * x),
    kind=st.sampled_from((HALF, BF16)),
    weight=st.sampled_from(("ND", "ND.T", "NZ", "NZ.T", "int4")),
    parts=st.sampled_from(("", "o", "b", "ob")),
    device=st.sampled_from(("ascend910b2", "ascend910b4", "ascend910_9391")),
    byte_exact=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_call(
    m: int,
    k: int,
    n: int,
    kind: Any,
    weight: str,
    parts: str,
    device: str,
    byte_exact: bool,
    seed: int,
) -> None:
    call = call_of(m, k, n, kind=kind, weight=weight, parts=parts, seed=seed)
    form = "split_k" if weight == "int4" else "multicore"
    assert_as_reference(call | {"template": "msd"}, form, device, byte_exact=byte_exact)


# ---- the stages of a vector core ----


def spec_call(m: int, k: int, n: int, form: str, **more: Any) -> Call:
    """The call of :func:`call_of` without values."""
    layout, is_turned = form[:2].replace("NZ", "FRACTAL_NZ"), form.endswith("T")
    weight = (
        TensorSpec((n, k), "int8", layout).T if is_turned else TensorSpec((k, n), "int8", layout)
    )
    scale = TensorSpec((n,), "float16")
    return {"x": TensorSpec((m, k), "float16"), "weight": weight, "antiquant_scale": scale} | more


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


def test_the_next_products_come_when_those_of_this_tile_are_cast() -> None:
    p, spec = check(A2, **spec_call(2, 32, 64, "ND")), tiny_spec()
    core = VectorCore("epilogue", spec, "aiv")
    epilogue = msd_multicore.Epilogue(core, p, max_rows=1, max_columns=64)
    for here in epilogue.tiles(0, 64):
        for call in (*epilogue.prepare(here), epilogue.write(here)):
            repeat(core, *call)

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


def test_offsets_of_the_first_tile_are_made_while_the_cube_multiplies() -> None:
    call = spec_call(64, 128, 24 * 512, "ND", antiquant_offset=TensorSpec((24 * 512,), "float16"))
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
    spans = vector_spans(spec_call(64, 128, 24 * 512, "ND"))
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
    p, spec = check(A2, **spec_call(1, 13728, 64, "ND")), tiny_spec()
    plan = tile(A2, p)
    assert isinstance(plan, SplitKPlan)
    core = VectorCore("epilogue", spec, "aiv")
    epilogue = split_k.Epilogue(core, p, replace(plan, k_blocks=1), 1)
    for call in epilogue.write(slice(0, 1), 0, GmView.of("products", INT32, 2, 64)):
        repeat(core, *call)
    names = "antiquant_scale", "most", "products", "output"
    # The scale is cast by 10; the row's number is spread by 19 and two planes are cleared by 31;
    # each product is cast and added in 6 + 7 cycles; after the last one there are 7 + 8 + 6 more.
    expected = [(0, 4), (10, 13), (31, 37), (50, 56), (90, 98)]
    assert copies(core.build(), *names) == expected


@pytest.mark.parametrize("weight", ["ND", "int4"])
def test_every_load_of_split_k_waits_for_the_vector_pipe(weight: str) -> None:
    call = spec_call(40, 13728, 1024, "ND")
    if weight == "int4":
        call["weight"] = TensorSpec((1024, 13728 // 8), "int32").T
    assert loads_behind_the_vector_pipe(call, "x", "products") > 2


def test_per_group_loads_no_x_ahead() -> None:
    call: Call = {
        "x": TensorSpec((16, 14080), "float16"),
        "weight": TensorSpec((14080, 512 // 8), "int32"),
        "antiquant_scale": TensorSpec((110, 512), "float16"),
        "antiquant_group_size": 128,
    }
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


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("m", "k", "n", "weight", "parts", "device", "form", "cores"),
    [
        (64, 2560, 5120, "ND", "o", "ascend910b4", "multicore", 20),
        (1, 4320, 10240, "ND.T", "", "ascend910b4", "multicore", 20),
        (8, 10240, 8640, "ND", "", "ascend910b4", "multicore", 17),
        (1, 10240, 1536, "ND", "b", "ascend910b4", "multicore", 6),
        (36, 8192, 1280, "ND.T", "o", "ascend910b2", "multicore_hp", 20),
        (36, 8192, 1280, "NZ.T", "o", "ascend910b2", "multicore_hp", 20),
        (4, 20480, 5120, "ND.T", "", "ascend910b2", "split_k", 23),
        (4, 20480, 5120, "NZ.T", "", "ascend910b2", "split_k", 23),
        (10, 8192, 3072, "int4", "", "ascend910b2", "split_k", 24),
    ],
)
def test_blocks_that_the_vendor_launches(
    m: int, k: int, n: int, weight: str, parts: str, device: str, form: str, cores: int
) -> None:
    """ops-nn@e5c3fa9 tests/ut/op_host/test_weight_quant_batch_matmul_v2_msd_tiling.cpp."""
    spec = devices.load(device)
    half = TensorSpec((n,), "float16")
    call: Call = {"x": TensorSpec((m, k), "float16"), "antiquant_scale": half}
    if weight == "int4":
        call["weight"] = TensorSpec((n, k // 8), "int32").T
    else:
        layout = "FRACTAL_NZ" if weight.startswith("NZ") else "ND"
        is_turned = weight.endswith("T")
        gm_matrix = TensorSpec((n, k) if is_turned else (k, n), "int8", layout)
        call["weight"] = gm_matrix.T if is_turned else gm_matrix
    call |= {"antiquant_offset": half} if "o" in parts else {}
    call |= {"bias": half} if "b" in parts else {}
    plan = tile(spec, check(spec, **call))
    assert (plan.template, plan.form, plan.block_dim) == ("msd", form, cores)
    assert plan.is_mix
    blocks = ops.load(OP).build(spec, check(spec, **call), plan)
    assert len(blocks) == 3 * cores
    assert chip.verify(blocks, spec)


# ---- the tile of the cube ----

# Weight -> whether the vendor's common tiling serves it, which has one buffer in L0C.
COMMON = {"ND": False, "ND.T": True, "NZ": True, "NZ.T": False}


@pytest.mark.parametrize("form", COMMON)
@pytest.mark.parametrize("m", [1, 16, 24, 31, 32, 33, 48, 64])
def test_the_cube_takes_256_columns_and_128_of_k_for_any_m(m: int, form: str) -> None:
    """Digits that do not fit next to two pieces of the weight are streamed, not cut smaller."""
    plan = tile(A2, check(A2, **spec_call(m, 4096, 11008, form)))
    assert isinstance(plan, MulticorePlan)
    cube, rows = plan.cube, -(-2 * m // 16) * 16
    assert (cube.m, cube.n, cube.k, cube.steps_a, cube.steps_b) == (rows, 256, 128, 4, 4)
    l1_bytes = A2.cores["aic"].usable_bytes("l1")
    assert (cube.keep == "a") is (rows * 4096 + 8 * 128 * 256 <= l1_bytes)
    assert cube.l0c_depth == (1 if COMMON[form] or 2 * rows * 256 * 4 > 131072 else 2)


def test_more_than_256_kib_of_digits_are_streamed() -> None:
    """However much of L1 is left: 2 x 16 rows of 8192 digits are the most that stay."""
    kept = [
        tile(A2, check(A2, **spec_call(m, 8192, 64, "ND.T"))).cube.keep  # type: ignore[union-attr]
        for m in (16, 17)
    ]
    assert kept == ["a", None]


def test_times_grow_smoothly_with_the_rows() -> None:
    """Digits that no longer stay in L1 cost little: no step of a third between m 24 and 33."""
    times_us = [
        run(OP, **spec_call(m, 4096, 11008, "ND"), device="ascend910b2").time_us
        for m in (24, 31, 33)
    ]
    assert max(times_us) < 1.1 * min(times_us)  # type: ignore[type-var, operator]
