"""The templates of matmul that cut k, tile by tile against whole arrays, and how they cut it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_calls import assert_same_bits, gm_matrix, halves, turned, with_special
from numpy.typing import NDArray
from op_calls import BF16

from npusim import Run, TensorSpec, devices, ops, run
from npusim.devices.schema import DeviceSpec
from npusim.ops.matmul import k_split
from npusim.ops.matmul.oracle import in_chunks, in_runs
from npusim.ops.matmul.traits import CallTraits, Chip

Array = NDArray[Any]
MATMUL = ops.load("matmul")
A2 = devices.load("ascend910b2")
HALF = np.float16


def with_cores(count: int) -> DeviceSpec:
    """An Atlas A2 of *count* cube cores."""
    cores = A2.cores
    aic = cores["aic"].model_copy(update={"count": count})
    aiv = cores["aiv"].model_copy(update={"count": 2 * count})
    return A2.model_copy(update={"cores": cores | {"aic": aic, "aiv": aiv}})


SMALL = with_cores(3)


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


def assert_as_the_reference(
    *args: Any, template: str, spec: DeviceSpec = SMALL, **modes: Any
) -> Run:
    """The tiled run gives the bits of the reference."""
    result = run("matmul", *args, template=template, device=spec, **modes)
    with np.errstate(all="ignore"):
        expected = MATMUL.reference(*args, template=template, spec=spec)
    assert_same_bits(np.asarray(result.output), expected)
    return result


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


def test_runs_of_chunks_are_added_in_the_order_of_the_cores() -> None:
    """Four chunks by 1 core: ((2^24 + 1) + 1) + 1; by 2: (2^24 + 1) + (1 + 1)."""
    a = np.array([[2.0**12, 1, 1, 1]], HALF)
    sums = [in_runs(a, POWERS, None, "k1", 1, cores).item() for cores in (1, 2, 3, 4)]
    assert sums == [2.0**24, 2.0**24 + 2, 2.0**24, 2.0**24]
    # Three chunks by 2 cores: the first takes two of them, and the bias.
    assert in_runs(ONES, ONES.T, np.float32([8]), "k1", 1, 2).tolist() == [[12.0]]
    apart = in_runs(a[:, :3], POWERS[:3], np.float32([1]), "k1", 1, 2)
    assert apart.tolist() == [[2.0**24]]


# ---- single_core_split_k ----


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "words"),
    [
        (5, 1000, 40, HALF, ""),
        (17, 400, 1111, HALF, "tB special"),
        (130, 800, 260, HALF, "tA bias"),
        (400, 600, 150, BF16, "tB bias special"),
        (33, 900, 70, BF16, "nz"),
    ],
)
def test_single_core(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, words: str
) -> None:
    args = operands(rng, m, k, n, kind, words)
    assert_as_the_reference(*args, template="single_core_split_k", timing=False)


def test_single_core_in_every_mode(rng: np.random.Generator) -> None:
    # Three rectangles, one a core, two strips in each.
    args = operands(rng, 800, 600, 33, HALF, "")
    whole = assert_as_the_reference(*args, template="single_core_split_k")
    exact = assert_as_the_reference(
        *args, template="single_core_split_k", byte_exact=True, every_core=True
    )
    assert whole.plan is not None
    assert (whole.plan.block_dim, whole.time_us) == (3, exact.time_us)


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


# ---- deterministic_split_k ----


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "words"),
    [
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
)
def test_deterministic(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, words: str
) -> None:
    args = operands(rng, m, k, n, kind, words)
    assert_as_the_reference(*args, template="deterministic_split_k", timing=False)


def test_deterministic_in_every_mode(rng: np.random.Generator) -> None:
    args = operands(rng, 40, 1000, 33, HALF, "bias")
    whole = assert_as_the_reference(*args, template="deterministic_split_k")
    exact = assert_as_the_reference(
        *args, template="deterministic_split_k", byte_exact=True, every_core=True
    )
    assert whole.plan is not None
    assert (whole.plan.block_dim, whole.time_us) == (3, exact.time_us)


# ---- al1_split_k ----


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "words"),
    [
        # One chunk: the cube core stores the output; then two and three, in pieces of x2.
        (17, 400, 1111, HALF, "tB special"),
        (140, 1200, 70, HALF, "nz"),
        (200, 1000, 160, BF16, "tB bias special"),
        (256, 800, 7, HALF, "bias"),
    ],
)
def test_rows_in_l1(
    rng: np.random.Generator, m: int, k: int, n: int, kind: Any, words: str
) -> None:
    args = operands(rng, m, k, n, kind, words)
    assert_as_the_reference(*args, template="al1_split_k", timing=False)


def test_rows_in_l1_in_every_mode(rng: np.random.Generator) -> None:
    args = operands(rng, 256, 800, 260, HALF, "tB")
    whole = assert_as_the_reference(*args, template="al1_split_k")
    exact = assert_as_the_reference(*args, template="al1_split_k", byte_exact=True, every_core=True)
    assert whole.plan is not None
    assert (whole.plan.is_mix, whole.plan.block_dim) == (True, 3)
    assert whole.time_us == exact.time_us


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


# ---- batches ----


@pytest.mark.parametrize("batch", [((3,), ()), ((2, 1), (1,)), ((1,), (1, 1))])
@pytest.mark.parametrize("template", ["single_core_split_k", "deterministic_split_k", "nd2nz"])
def test_batches_of_x1_are_rows(rng: np.random.Generator, template: str, batch: Any) -> None:
    a, b = halves(rng, (*batch[0], 9, 500)), halves(rng, (*batch[1], 500, 20))
    assert_as_the_reference(a, turned(b), template=template, timing=False)


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
