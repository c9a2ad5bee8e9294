"""The kernels of matmul: values tile by tile, how they cut a product, and programs that hold."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from matrix_calls import SPLIT, gm_matrix, halves, sizes, turned, with_special
from op_calls import BF16, assert_as_reference, assert_same
from tiny import fewer_cores

from npusim import TensorSpec, chip, devices, ops, run
from npusim.ops.matmul import k_split
from npusim.ops.matmul.choice import Template, unmet
from npusim.ops.matmul.oracle import in_chunks, in_runs
from npusim.ops.matmul.templates.nd2nz import RowTile, TurningPlan
from npusim.ops.matmul.templates.whole_k import WholeKPlan
from npusim.ops.matmul.traits import CallTraits, Chip
from npusim.ops.matmul.traits import turned as turned_operands

MATMUL = ops.load("matmul")
TEMPLATES: tuple[str, ...] = get_args(Template)
A2 = devices.load("ascend910b2")
HALF, NZ = np.float16, "FRACTAL_NZ"
DEEP = ("al1_split_k", "single_core_split_k", "deterministic_split_k")


SMALL = fewer_cores("ascend910b2", aic=3, aiv=6)


def operands(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, words: str
) -> tuple[Any, ...]:
    """x1, x2 and the bias; *words* of: tA, tB, nz, bias, special."""
    a, b = halves(rng, (m, k), kind), halves(rng, (k, n), kind)
    if "special" in words:
        a, b = with_special(rng, a), with_special(rng, b)
    x2 = gm_matrix(b, "tB" in words, "FRACTAL_NZ" if "nz" in words else "ND")
    bias = halves(rng, (n,), np.float32) if "bias" in words else None
    return turned(a) if "tA" in words else a, x2, bias


# ---- values ----

FEW_K: list[tuple[int, int, int, Any, str]] = [
    (3, 7, 5, HALF, ""),
    (1, 64, 48, HALF, "bias"),
    (1500, 100, 96, HALF, "tB special"),
    (1001, 40, 200, BF16, "bias"),
    (700, 33, 80, HALF, "tA nz"),
    (1300, 256, 17, HALF, ""),
]
SHAPES: dict[str, list[tuple[int, int, int, Any, str]]] = {
    "single_core_split_k": [
        (5, 1000, 40, HALF, ""),
        (17, 400, 1111, HALF, "tB special"),
        (130, 800, 260, HALF, "tA bias"),
        (400, 600, 150, BF16, "tB bias special"),
        (33, 900, 70, BF16, "nz"),
    ],
    "deterministic_split_k": [
        # One core, two, and three of which the first has one chunk more.
        (5, 300, 40, HALF, ""),
        (17, 500, 60, HALF, "tB special"),
        (130, 1200, 70, HALF, "tA bias"),
        # Strips of rows: slices are used again from the third on.
        (1000, 500, 20, BF16, "bias special"),
        # Strips of columns, each with all rows.
        (416, 390, 400, HALF, "tB"),
        (33, 900, 70, BF16, "nz"),
    ],
    "al1_split_k": [
        # One chunk: the cube core stores the output; then two and three, in pieces of x2.
        (17, 400, 1111, HALF, "tB special"),
        (140, 1200, 70, HALF, "nz"),
        (200, 1000, 160, BF16, "tB bias special"),
        (256, 800, 7, HALF, "bias"),
    ],
    # Columns that are several blocks.
    "bl1_full_load": [(700, 50, 384, HALF, ""), *FEW_K],
    "bl1_aligned_output": FEW_K,
}


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("template", "m", "k", "n", "kind", "words"),
    [(template, *shape) for template, shapes in SHAPES.items() for shape in shapes],
)
def test_values(
    rng: np.random.Generator, template: str, m: int, k: int, n: int, kind: Any, words: str
) -> None:
    args = operands(rng, m, k, n, kind, words)
    assert_as_reference("matmul", *args, template=template, device=SMALL)


@pytest.mark.parametrize(
    ("template", "m", "k", "n", "words"),
    [
        # Three rectangles, one a core, two strips in each.
        ("single_core_split_k", 800, 600, 33, ""),
        ("deterministic_split_k", 40, 1000, 33, "bias"),
        ("al1_split_k", 256, 800, 260, "tB"),
        # Several blocks a core: slots are filled again.
        ("bl1_full_load", 4000, 32, 48, ""),
        ("bl1_aligned_output", 4000, 32, 48, ""),
        ("nd2nz", 300, 72, 100, ""),
    ],
)
def test_every_mode(
    rng: np.random.Generator, template: str, m: int, k: int, n: int, words: str
) -> None:
    args = operands(rng, m, k, n, HALF, words)
    whole = run("matmul", *args, device=SMALL, template=template)
    exact = run("matmul", *args, device=SMALL, template=template, byte_exact=True, every_core=True)
    assert_same(exact.output, whole.output)
    assert whole.plan is not None
    assert (whole.plan.block_dim, whole.time_us) == (SMALL.cores["aic"].count, exact.time_us)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "words", "sides"),
    [
        (5, 100, 40, HALF, "", ("x1", "x2")),
        (1, 33, 7, HALF, "bias", ("x1", "x2")),
        (200, 110, 300, BF16, "tB bias", ("x1", "x2")),
        (130, 160, 260, HALF, "tA special", ("x1", "x2")),
        (17, 128, 1111, HALF, "", ("x2",)),
        # Rows of x1 come in two tiles across, and x2 is NZ already.
        (33, 2100, 70, HALF, "nz", ("x1",)),
    ],
)
def test_values_of_nd2nz_are_those_of_base(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, words: str, sides: Any
) -> None:
    args = operands(rng, m, k, n, kind, words)
    result = assert_as_reference("matmul", *args, device=SMALL, template="nd2nz")
    plain = run("matmul", *args, template="base", device=SMALL, timing=False)
    assert_same(plain.output, result.output)
    assert isinstance(result.plan, TurningPlan)
    assert tuple(result.plan.turned) == sides


@pytest.mark.parametrize("batch", [((3,), ()), ((2, 1), (1,)), ((1,), (1, 1))])
@pytest.mark.parametrize("template", ["single_core_split_k", "deterministic_split_k", "nd2nz"])
def test_batches_of_x1_are_rows(rng: np.random.Generator, template: str, batch: Any) -> None:
    a, b = halves(rng, (*batch[0], 9, 500)), halves(rng, (*batch[1], 500, 20))
    assert_as_reference("matmul", a, turned(b), template=template, device=SMALL)


# ---- the order of sums ----

ONES = np.ones((1, 4), HALF)
POWERS = np.array([[2.0**12], [1], [1], [1]], HALF)


def test_chunks_are_summed_apart_and_added_in_order() -> None:
    """2^24, 1, 1, 1 term by term: 2^24; two by two 2^24 + 2, of which the last 1s survive."""
    a = np.array([[2.0**12, 1, 1, 1]], HALF)
    assert in_chunks(a, POWERS, None, "k1", 4).tolist() == [[2.0**24]]
    assert in_chunks(a, POWERS, None, "k1", 2).tolist() == [[2.0**24 + 2]]
    # The bias is where the first chunk begins, and there alone.
    start = np.float32([2.0**24])
    assert in_chunks(a[:, 1:], POWERS[1:], start, "k1", 3).tolist() == [[2.0**24]]
    assert in_chunks(a[:, 1:], POWERS[1:], start, "k1", 1).tolist() == [[2.0**24]]
    assert in_chunks(ONES, ONES.T, np.float32([8]), "k1", 2).tolist() == [[12.0]]


def test_runs_of_chunks_are_added_core_by_core() -> None:
    """Four chunks by 1 core: ((2^24 + 1) + 1) + 1; by 2: (2^24 + 1) + (1 + 1)."""
    a = np.array([[2.0**12, 1, 1, 1]], HALF)
    sums = [in_runs(a, POWERS, None, "k1", 1, cores).item() for cores in (1, 2, 3, 4)]
    assert sums == [2.0**24, 2.0**24 + 2, 2.0**24, 2.0**24]
    # Three chunks by 2 cores: the first takes two of them, and the bias.
    assert in_runs(ONES, ONES.T, np.float32([8]), "k1", 1, 2).tolist() == [[12.0]]
    apart = in_runs(a[:, :3], POWERS[:3], np.float32([1]), "k1", 1, 2)
    assert apart.tolist() == [[2.0**24]]


# ---- how they cut a product ----


@pytest.mark.parametrize(
    ("call", "cut", "chunk_k"),
    [
        # Rectangles of 384 x 3072 would occupy the cores: rows are shared out evenly.
        (CallTraits(8192, 32768, 8192, has_bias=True), (1024, 2816, 24), 384),
        # 6 x 2 of them do not; further shares of the columns are below 1024.
        (CallTraits(2048, 32768, 2048), (352, 1024, 12), 384),
        # 4 x 2 squares are less than one a core.
        (CallTraits(1536, 32768, 768), (384, 768, 4), 512),
        (CallTraits(1536, 32768, 768, has_bias=True), (384, 768, 4), 384),
        # Rows of a transposed x1 come in 128.
        (CallTraits(2048, 32768, 2048, trans_x1=True), (384, 1024, 12), 384),
    ],
)
def test_how_a_single_core_cuts(call: CallTraits, cut: Any, chunk_k: int) -> None:
    assert k_split.rectangles(call, Chip()) == cut
    assert k_split.single_core_chunk_k(call, Chip()) == chunk_k


@pytest.mark.parametrize(
    ("call", "tiles"),
    [
        # x2 as (n, k) and k > n: 128 columns; pieces of 512 bytes leave 384 KiB for x1.
        (CallTraits(128, 12288, 8192, trans_x2=True), (128, 128, 1536, 256)),
        # 22 tiles of 384 or 16 of 512, with none left over, but 24 cores with 32 of 256.
        (CallTraits(16, 12288, 8192), (384, 32, 12288, 64)),
        # 24 tiles of 512 are one a core; L0C has room for them, the bias table has not.
        (CallTraits(64, 12288, 12288), (512, 32, 3072, 64)),
        (CallTraits(64, 12288, 12288, has_bias=True), (256, 64, 3520, 64)),
    ],
)
def test_tiles_of_rows_in_l1(call: CallTraits, tiles: Any) -> None:
    assert k_split.resident_tiles(call, Chip()) == tiles


@pytest.mark.parametrize(
    ("m", "n", "holds"),
    [
        (144, 144, False),
        (160, 144, True),
        (160, 152, False),
        (112, 96, False),
        # Whole blocks of 256 bytes along one axis, and few of them along the other.
        (272, 256, False),
        (384, 256, True),
        (272, 128, False),
        (384, 128, True),
        (1920, 16, True),
        (2048, 16, False),
    ],
)
def test_which_operand_deterministic_strips_hold(m: int, n: int, holds: bool) -> None:
    assert k_split.holds_columns(CallTraits(m, 1000, n)) is holds


@pytest.mark.parametrize(("k", "cores"), [(384, 1), (385, 2), (8832, 23), (9217, 24)])
def test_cores_along_k_have_a_chunk_each(k: int, cores: int) -> None:
    assert k_split.cores_along_k(CallTraits(16, k, 16), Chip()) == cores


@pytest.mark.parametrize(
    ("template", "m", "cached"),
    [
        # One strip of rows reads x2 once, and every further one again.
        ("single_core_split_k", 128, {"x1": True, "x2": False}),
        ("single_core_split_k", 129, {"x1": True, "x2": True}),
        ("deterministic_split_k", 128, {"x1": True, "x2": True}),
        ("al1_split_k", 128, {"x1": False, "x2": False}),
    ],
)
def test_what_the_l2_keeps(template: str, m: int, cached: dict[str, bool]) -> None:
    call = TensorSpec((m, 3000), "float16"), TensorSpec((3000, 256), "float16")
    problem = MATMUL.check(A2, *call, template=template)
    bound = MATMUL.build(A2, problem, MATMUL.tile(A2, problem))[0].bindings
    assert {name: bound[name].is_cached for name in cached} == cached


@pytest.mark.parametrize(
    ("template", "shape", "tile"),
    [
        # As base: 128 x 96; all of k is four steps of 64, two of x1 and one of x2 in L1.
        ("bl1_full_load", (8192, 256, 96), (128, 96, 64, 8, 4)),
        # 32768 / 48 rows, of which a quarter of the unified buffer takes 511, in whole 128.
        ("bl1_aligned_output", (20000, 128, 48), (384, 48, 32, 8, 4)),
        # 256 k of 128 rows, twice, and of 208 columns.
        ("bl1_aligned_output", (20000, 256, 200), (128, 208, 64, 8, 4)),
    ],
)
def test_tiles_of_a_resident_x2(template: str, shape: tuple[int, int, int], tile: Any) -> None:
    m, k, n = shape
    call = TensorSpec((m, k), "float16"), TensorSpec((k, n), "float16")
    plan = MATMUL.tile(A2, MATMUL.check(A2, *call, template=template))
    assert isinstance(plan, WholeKPlan)
    cube = plan.cube
    assert (cube.base_m, cube.base_n, cube.base_k, cube.depth_a, cube.depth_b) == tile


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        # Rows of 2048 bytes at most: whole, and as many as 48 vector cores share evenly. Of x2
        # 63 tiles of 6144 or 4096 bytes leave 15, 42 of 48 rows of 2048 bytes the most, 42.
        ((1000, 1000, 1040), {"x1": RowTile(32, 1008), "x2": RowTile(48, 1024)}),
        ((40000, 264, 128), {"x1": RowTile(176, 272)}),
        # Wider ones: the first width whose tiles are a multiple of the vector cores, ...
        ((768, 1040, 1024), {"x1": RowTile(16, 3072)}),
        # ... else that with the most left over: 32 tiles of all widths, the first of them.
        ((512, 1040, 1024), {"x1": RowTile(16, 3072)}),
        # Rows of x2 that fall into the same banks.
        ((4096, 6656, 16384), {"x2": RowTile(96, 512)}),
    ],
)
def test_tiles_of_the_pass(shape: tuple[int, int, int], tiles: Any) -> None:
    m, k, n = shape
    call = TensorSpec((m, k), "float16"), TensorSpec((k, n), "float16")
    plan = MATMUL.tile(A2, MATMUL.check(A2, *call, template="nd2nz"))
    assert isinstance(plan, TurningPlan)
    assert plan.turned == tiles


def test_banks_conflict_in_two_cases() -> None:
    strided = {"trans_x2": True}
    assert turned_operands(CallTraits(4480, 16384, 7168, **strided), Chip()) == ("x2",)
    assert turned_operands(CallTraits(4480, 16384, 7168, **strided), Chip(aic=20)) == ()
    assert turned_operands(CallTraits(4096, 6656, 16384), Chip(aic=20)) == ()
    assert turned_operands(CallTraits(4097, 6656, 16384), Chip(aic=20)) == ("x2",)


# ---- any call ----


class TemplateCall(NamedTuple):
    """Arguments of matmul, and the kernel that makes it."""

    args: tuple[Any, ...]
    template: str


@st.composite
def template_calls(draw: st.DrawFn) -> TemplateCall:
    """Any call that the kernel can run, with some chunks of k where it cuts k."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    template = draw(st.sampled_from(TEMPLATES))
    m, n = draw(sizes(90)), draw(sizes(90))
    k = draw(st.integers(300, 1500)) if template in DEEP else draw(sizes(90))
    kind = draw(st.sampled_from((np.float16, BF16)))
    a, b = halves(rng, (m, k), kind), halves(rng, (k, n), kind)
    if draw(st.booleans()):
        a, b = with_special(rng, a), with_special(rng, b)
    x1 = turned(a) if template != "al1_split_k" and draw(st.booleans()) else a
    layout = draw(st.sampled_from(("ND", NZ)))
    x2 = gm_matrix(b, draw(st.booleans()), layout)
    bias = halves(rng, (n,), np.float32) if draw(st.booleans()) else None
    plain = MATMUL.check(SMALL, x1, x2, bias, template="base")
    if any(unmet(template, plain.traits, Chip.of(SMALL))):
        template = "base"
    return TemplateCall((x1, x2, bias), template)


@draws(60)
@given(call=template_calls())
def test_any_call(call: TemplateCall) -> None:
    assert_as_reference("matmul", *call.args, device=SMALL, template=call.template)


@pytest.mark.nightly
@pytest.mark.parametrize("byte_exact", [False, True])
@draws(150)
@given(call=template_calls())
def test_any_further_call(byte_exact: bool, call: TemplateCall) -> None:
    more = {"template": call.template, "byte_exact": byte_exact}
    assert_as_reference("matmul", *call.args, device=SMALL, **more)


@pytest.mark.sample(4)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("device", every(SPLIT))
def test_programs_of_large_products_hold(device: str, template: str) -> None:
    spec, rng = devices.load(device), np.random.default_rng(TEMPLATES.index(template))
    for is_turned, layout, has_bias in ((False, "ND", False), (True, "ND", True), (True, NZ, True)):
        # Odd, so that rows are ragged; within what every kernel takes.
        m, n = (int(np.exp(rng.uniform(3, 5.5))) | 1 for _ in range(2))
        k = int(np.exp(rng.uniform(7, 9))) | 1 if template in DEEP else 251
        m *= 1 if template == "al1_split_k" else 17
        x2 = TensorSpec((n, k) if is_turned else (k, n), "float16", layout)
        bias = TensorSpec((n,), "float32") if has_bias else None
        call = TensorSpec((m, k), "float16"), x2.T if is_turned else x2, bias
        problem = MATMUL.check(spec, *call, template=template)
        blocks = MATMUL.build(spec, problem, MATMUL.tile(spec, problem))
        assert set(chip.verify(blocks, spec)) == {block.program for block in blocks}
