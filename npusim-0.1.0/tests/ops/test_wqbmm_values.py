"""Every template of npu_weight_quant_batchmatmul: tile by tile, the bits of whole arrays."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, RNG, assert_as_reference
from tiny import fewer_cores
from weight_calls import HALF, OP, Kind, weight_call

pytestmark = pytest.mark.filterwarnings("ignore:npu_weight_quant_batchmatmul:UserWarning")
A2, A3, B4, OLD = "ascend910b2", "ascend910_9391", "ascend910b4", "ascend310p3"
SMALL = fewer_cores(A2, aic=3, aiv=6)
PLAIN, BOTH = Kind(), Kind(offset=True, bias=True)
BRAIN, BRAIN_BOTH = Kind(BF16), Kind(BF16, offset=True, bias=True)
INT4 = Kind(weight="int4", layout="NDT", offset=True, bias=True)
MISSING = (False, False), (False, True), (True, False)
PARTS = (PLAIN, Kind(offset=True), Kind(bias=True), BOTH)
LAYOUTS = ("ND", "NDT", "NZ", "NZT")
GROUPS = Kind(weight="int4", size=64, offset=True, bias=True)
FRACTALS = Kind(layout="NZT")
SPLIT = Kind(BF16, size=64, offset=True)
WORDS = Kind(layout="NDT", packed=True)

Case = tuple[tuple[int, int, int], Kind]
CUSTOM: list[Case] = [
    # One element; one fractal; tails everywhere.
    ((1, 1, 1), PLAIN),
    ((16, 32, 16), Kind(offset=True)),
    ((33, 99, 70), BOTH),
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
MSD: list[Case] = [
    # Rows are summed and divided as their length says.
    *(((3, k, 32), BOTH) for k in (32, 64, 96, 128, 160, 448, 4064, 4096, 4128, 4224)),
    *(((5, 672, 544), kind._replace(layout=form)) for form in LAYOUTS for kind in (BOTH, BRAIN)),
    *(((2, 160, 64), kind) for kind in PARTS),
    *(((2, 160, 64), INT4._replace(offset=of[0], bias=of[1])) for of in MISSING),
    # A row of x fills the unified buffer; more rows than the vendor gives it.
    ((1, 13696, 32), BOTH),
    ((150, 64, 288), BOTH),
    # Three digits, blocks of k, many columns.
    *((sizes, INT4) for sizes in ((1, 32, 32), (9, 1056, 96), (3, 12320, 32), (150, 96, 64))),
    ((9, 1056, 96), INT4._replace(x=BF16)),
    *(((3, 13728, 64), BOTH._replace(layout=form)) for form in LAYOUTS),
    *((sizes, BOTH) for sizes in ((1, 25600, 64), (1, 65504, 32), (2, 32, 32032))),
]
IN_GROUPS: list[Case] = [
    *(((8, 192, 1216), GROUPS._replace(x=x)) for x in (HALF, BF16)),
    *(((16, 384, 1216), GROUPS._replace(x=x, size=128)) for x in (HALF, BF16)),
    ((2, 256, 192), GROUPS._replace(layout="NZ")),
    *(
        ((2, 1152, 64), GROUPS._replace(offset=of[0], bias=of[1]))
        for of in ((0, 0), (0, 1), (1, 0))
    ),
    # More rows than vector cores; packs with a last one of one group; strips of two widths;
    # several cube cores along n, the last with one vector core; as much of k as a core takes.
    ((16, 256, 64), GROUPS._replace(size=128)),
    ((1, 2112, 64), GROUPS),
    ((7, 1664, 1088), GROUPS._replace(size=128)),
    ((3, 128, 2112), GROUPS),
    ((1, 13952, 64), GROUPS),
]
SHARED: list[Case] = [
    *(((m, k, n), FRACTALS) for m, k, n in ((5, 64, 64), (70, 100, 130))),
    ((70, 40, 50), FRACTALS._replace(bias=True)),
    ((129, 1100, 77), FRACTALS._replace(offset=True, bias=True)),
    ((16, 600, 300), FRACTALS._replace(x=BF16)),
    ((33, 2100, 77), FRACTALS._replace(x=BF16, offset=True, bias=True)),
    ((300, 1030, 70), FRACTALS._replace(x=BF16, offset=True)),
    ((1, 3, 2), FRACTALS._replace(x=BF16)),
    ((70, 1096, 90), FRACTALS._replace(weight="int4", offset=True)),
    ((70, 1096, 90), FRACTALS._replace(x=BF16, weight="int4", offset=True, bias=True)),
]
OF_WORDS: list[Case] = [
    # Strips of 16 columns; 64 of k after 256; a second load of k, fewer columns in the last core;
    # x does not stay in L1; two pieces a core.
    (sizes, WORDS._replace(offset=more, bias=more))
    for sizes in ((1, 64, 64), (17, 320, 512), (33, 576, 448), (96, 1408, 256), (3, 64, 3264))
    for more in (False, True)
]
OF_310P: list[Case] = [
    # Less than a block a row: one core; an edge narrower than a block; 44 of k after 256; two parts
    # of columns, cores along m; 8 columns more than leave L0C at a time; a shape of the table.
    (sizes, FRACTALS._replace(offset=more, bias=more, trans_x=sizes[0] in (3, 5)))
    for sizes in (
        (1, 1, 1),
        (3, 33, 7),
        (17, 40, 17),
        (5, 300, 150),
        (150, 520, 300),
        (130, 144, 1144),
        (4, 4096, 2048),
    )
    for more in (False, True)
]
CASES: list[tuple[str, Any, list[Case]]] = [
    ("custom", A2, CUSTOM),
    ("msd", A2, MSD),
    ("msd", A3, [((64, 128, 1568), BOTH)]),
    ("msd", B4, [((41, 128, 352), BOTH)]),
    ("msd", A2, [*IN_GROUPS, ((1, 128, 12352), GROUPS), ((2, 14016, 64), GROUPS)]),
    ("msd_group", A2, [*IN_GROUPS, ((1, 128, 49152), GROUPS)]),
    ("msd_group", A2, [((8, 640, 1216), Kind(x, size=64, offset=True)) for x in (HALF, BF16)]),
    ("nz_splitk", SMALL, SHARED),
    ("nz_splitk", B4, [((20, 3104, 300), FRACTALS._replace(x=BF16, offset=True, bias=True))]),
    ("split_k", SMALL, [((m, k, n), SPLIT) for m, k, n in (
        (5, 128, 64), (32, 192, 1088), (17, 640, 128), (1, 128, 4160), (24, 320, 640))]),
    ("split_k", A3, [((24, 960, 1216), SPLIT)]),
    ("fixpipe", A2, OF_WORDS),
    ("weight_nz", OLD, OF_310P),
]  # fmt: skip


@pytest.mark.sample(36)
@pytest.mark.parametrize(
    ("template", "device", "sizes", "kind"),
    [(template, device, *case) for template, device, cases in CASES for case in cases],
)
def test_tiles_are_the_whole(
    rng: np.random.Generator, template: str, device: Any, sizes: tuple[int, int, int], kind: Kind
) -> None:
    call = weight_call(rng, *sizes, kind)
    for byte_exact in (False, True) if prod(sizes) < 2**18 else (False,):
        found = assert_as_reference(
            OP, device=device, byte_exact=byte_exact, template=template, **call
        )
        assert found.template == template


def test_inner_precise_1_takes_halves(rng: np.random.Generator) -> None:
    for template in ("msd", "msd_group"):
        call = weight_call(rng, 5, 384, 192, GROUPS) | {"template": template, "inner_precise": 1}
        assert_as_reference(OP, device=A2, **call)


def of_32(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most).map(lambda count: 32 * count)


@st.composite
def custom_calls(draw: st.DrawFn) -> Case:
    """Any small call that custom takes."""
    m, k = draw(st.integers(1, 140)), draw(st.integers(1, 200))
    # One column has one scale, which is one for all, and FRACTAL_NZ wants one for each.
    n = draw(st.integers(2, 300))
    weight = draw(st.sampled_from(["int8", "int4"]))
    layout = draw(st.sampled_from(LAYOUTS))
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
    return (m, k, n), Kind(
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


def kinds(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Kind]:
    return st.fixed_dictionaries(fields).map(lambda each: Kind(**each))


FLAGS = {"offset": st.booleans(), "bias": st.booleans()}
KINDS = {"x": st.sampled_from((HALF, BF16)), **FLAGS}
OF_64 = st.integers(1, 12).map(lambda count: 64 * count)
DRAWN: dict[str, tuple[tuple[Any, ...], st.SearchStrategy[Case]]] = {
    "custom": ((A2,), custom_calls()),
    "msd": (
        (A2, B4, A3),
        st.tuples(
            st.tuples(st.integers(1, 64), of_32(12), of_32(20)),
            kinds(layout=st.sampled_from(LAYOUTS), **KINDS)
            | kinds(weight=st.just("int4"), layout=st.just("NDT"), **KINDS),
        ),
    ),
    "msd_group": (
        (A2, B4, A3),
        st.tuples(
            st.tuples(st.integers(1, 8), st.integers(2, 20).map(lambda x: 64 * x), OF_64),
            kinds(weight=st.sampled_from(("int4", "int8")), size=st.just(64), **KINDS),
        ),
    ),
    "nz_splitk": (
        (SMALL, B4),
        st.tuples(
            st.tuples(*(st.integers(2, most) for most in (270, 2600, 300))),
            kinds(layout=st.just("NZT"), **KINDS),
        ),
    ),
    "split_k": (
        (SMALL, A3),
        st.tuples(
            st.tuples(st.integers(1, 32), st.integers(2, 18).map(lambda x: 64 * x), OF_64),
            st.just(SPLIT),
        ),
    ),
    "fixpipe": (
        (A2, B4, A3),
        st.tuples(
            st.tuples(st.integers(1, 96), OF_64, OF_64),
            kinds(layout=st.just("NDT"), packed=st.just(True), **FLAGS),
        ),
    ),
    "weight_nz": (
        (OLD, "ascend310p1"),
        st.tuples(
            st.tuples(*(st.integers(1, most) for most in (150, 600, 500))),
            kinds(layout=st.just("NZT"), trans_x=st.booleans(), **FLAGS),
        ),
    ),
}


@pytest.mark.parametrize("template", DRAWN)
@draws(12)
@given(data=st.data(), rng=RNG, byte_exact=st.booleans())
def test_any_call(
    template: str, data: st.DataObject, rng: np.random.Generator, byte_exact: bool
) -> None:
    chips, cases = DRAWN[template]
    sizes, kind = data.draw(cases)
    call = weight_call(rng, *sizes, kind) | {"template": template}
    byte_exact &= prod(sizes) < 2**18
    assert_as_reference(OP, device=data.draw(st.sampled_from(chips)), byte_exact=byte_exact, **call)


HOSTILE = {
    "custom": (BOTH, BRAIN_BOTH, GROUPS),
    "msd": (BOTH, BRAIN_BOTH, INT4, INT4._replace(x=BF16), GROUPS),
    "msd_group": (GROUPS, GROUPS._replace(x=BF16)),
    "nz_splitk": (FRACTALS._replace(offset=True, bias=True), BRAIN_BOTH._replace(layout="NZT")),
    "split_k": (SPLIT,),
    "fixpipe": (WORDS._replace(bias=True),),
    "weight_nz": (FRACTALS._replace(offset=True, bias=True),),
}


@pytest.mark.parametrize("template", HOSTILE)
def test_special_numbers(rng: np.random.Generator, template: str) -> None:
    for kind in HOSTILE[template]:
        call = weight_call(rng, 8, 192, 64, kind) | {"template": template}
        x = call["x"]
        x[0], x[1], x[7] = 0.0, -0.0, 0.0
        x[2, 5], x[3, 70], x[4, 130] = np.inf, -np.inf, np.nan
        x[5], x[6], x[7, 3] = 6e-8, 65504.0, -1.0
        if not kind.packed:
            call["antiquant_scale"].reshape(-1)[:4] = [np.inf, np.nan, 0.0, 65504.0]
            if kind.offset:
                call["antiquant_offset"].reshape(-1)[4:7] = [np.inf, np.nan, 0.0]
        if kind.bias:
            call["bias"][7:9] = [np.inf, np.nan]
        device = OLD if template == "weight_nz" else A2
        for part in ("", "antiquant_offset", "bias"):
            if template != "split_k" or not part:
                assert_as_reference(OP, device=device, **call | ({part: None} if part else {}))


def test_what_is_not_a_number_stays_in_its_row_or_column(rng: np.random.Generator) -> None:
    call = weight_call(rng, 20, 40, 50, Kind(offset=True))
    call["x"][3, 7], call["x"][5], call["x"][9, 0] = np.nan, 0, np.inf
    call["antiquant_scale"][0, 11], call["antiquant_offset"][0, 13] = np.inf, np.nan
    y = assert_as_reference(OP, device=A2, template="custom", **call).output
    kept = [column for column in range(50) if column not in (11, 13)]
    assert np.isnan(y[3]).all()
    assert np.isnan(y[:, 13]).all()
    assert (y[5, kept] == 0).all()
    assert np.isfinite(y[np.ix_([0, 1, 19], kept)]).all()
    assert not np.isfinite(y[9]).any()


def test_scales_of_groups_may_lie_either_way(rng: np.random.Generator) -> None:
    for layout in ("ND", "NDT"):
        call = weight_call(rng, 20, 128, 40, Kind(layout=layout, size=64, offset=True))
        for name in ("antiquant_scale", "antiquant_offset"):
            call[name] = np.asfortranarray(call[name])
        assert_as_reference(OP, device=A2, template="custom", **call)
