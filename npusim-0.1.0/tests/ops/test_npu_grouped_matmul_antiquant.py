"""npu_grouped_matmul with float rows and weights of int8 or int4: values, templates, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from matrix_calls import packed, turned
from op_calls import BF16, NEW, RNG, Row, assert_as_reference, assert_same, constraints

from npusim import Code, TensorSpec, ops, run

OP = "npu_grouped_matmul"
A2, A3 = "ascend910b2", "ascend910_9391"
REFERENCE = ops.load(OP).reference
F16, F32 = np.float16, np.float32


def weight_of(rng: np.random.Generator, shape: tuple[int, ...], bits: int, turned: bool) -> Any:
    limit = 1 << (bits - 1)
    numbers = rng.integers(-limit, limit, shape).astype(np.int8)
    lies = np.ascontiguousarray(numbers.swapaxes(-1, -2)) if turned else numbers
    lies = packed(lies) if bits == 4 else lies
    return lies.swapaxes(-1, -2) if turned else lies


def call_of(
    rng: np.random.Generator,
    counts: list[int],
    sizes: tuple[int, int],
    dtype: Any,
    bits: int,
    *,
    groups: int = 0,
    turned: bool = False,
    bias: bool = False,
) -> dict[str, Any]:
    """A call with *counts* rows of each expert, and *groups* of k with numbers of their own."""
    (k, n), m, experts = sizes, sum(counts), len(counts)
    shape = (experts, groups, n) if groups else (experts, n)
    start = F16 if dtype is F16 else F32
    return {
        "x": [rng.normal(0, 1, (m, k)).astype(dtype)],
        "weight": [weight_of(rng, (experts, k, n), bits, turned)],
        "antiquant_scale": [(rng.random(shape) * 0.1).astype(dtype)],
        "antiquant_offset": [rng.normal(0, 9, shape).astype(dtype)],
        "bias": [rng.normal(0, 9, (experts, n)).astype(start)] if bias else None,
        "group_list": np.cumsum(counts),
        "split_item": 3,
        "group_type": 0,
    }


# ---- values ----


CHIPS = st.sampled_from([A2, A3])
KINDS = st.sampled_from([F16, BF16])
FLAGS = {"turned": st.booleans(), "bias": st.booleans()}


def counts(*of: int, most: int) -> st.SearchStrategy[list[int]]:
    """Rows of each expert, of which one has some."""
    return st.lists(st.sampled_from(of), min_size=1, max_size=most).filter(any)


SIZES = st.tuples(st.sampled_from([32, 136, 288]), st.sampled_from([8, 120, 304]))
IN_BYTES = st.builds(
    call_of, RNG, counts(0, 1, 30, 140, most=3), SIZES, KINDS, st.sampled_from([4, 8]), **FLAGS
)
IN_GROUPS = st.builds(
    call_of, RNG, counts(0, 1, 30, 140, most=3), SIZES.filter(lambda sizes: sizes[0] > 32), KINDS,
    st.just(4), groups=st.sampled_from([1, 4]), bias=st.booleans(),
)  # fmt: skip


@draws(20)
@given(device=CHIPS, call=IN_BYTES | IN_GROUPS)
def test_a_tiled_run_equals_the_reference(device: str, call: dict[str, Any]) -> None:
    """Groups of 8 of k do not fit the unified buffer."""
    assert assert_as_reference(OP, **call, device=device).template == "antiquant"


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", [A2, A3])
@pytest.mark.parametrize(("bits", "groups"), [(8, 0), (4, 0), (4, 15)])
def test_all_vector_cores_together_make_the_same_numbers(
    device: str, bits: int, groups: int
) -> None:
    rng = np.random.default_rng(groups)
    call = call_of(rng, [10, 0, 6], (960, 1320), BF16, bits, groups=groups, bias=True)
    found = assert_as_reference(OP, **call, device=device)
    assert found.template == "antiquant_performance"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7, 9, 15, 17])
def test_few_rows_of_a_weight_fit(
    k: int, dtype: Any, turned: bool, rng: np.random.Generator
) -> None:
    given = call_of(rng, [3, 0, 20], (k, 24), dtype, 8, turned=turned, bias=True)
    found = run(OP, **given, device=A2, timing=False)
    assert_same(found.output, REFERENCE(**given))


def test_each_x_by_its_own_weight() -> None:
    rng = np.random.default_rng(5)
    sizes = (3, 64, 40), (7, 96, 520)
    call = {
        "x": [rng.normal(0, 1, (m, k)).astype(F16) for m, k, _ in sizes],
        "weight": [weight_of(rng, (k, n), 8, False) for _, k, n in sizes],
        "antiquant_scale": [rng.random(n).astype(F16) for *_, n in sizes],
        "antiquant_offset": [rng.normal(0, 9, n).astype(F16) for *_, n in sizes],
        "split_item": 0,
        "group_type": -1,
    }
    assert_as_reference(OP, **call, device=A2)


def test_offsets_are_added_in_float16_to_a_float16_x() -> None:
    """100 + 0.03 is 100 in fp16, and times 3 is 300; bf16 adds in fp32, and rounds 300.09 once."""
    for dtype, expected in ((F16, 300.0), (BF16, 300.0)):
        call = {
            "x": [np.eye(1, 16, dtype=np.int8).astype(dtype)],
            "weight": [np.full((1, 16, 16), 100, np.int8)],
            "antiquant_scale": [np.full((1, 16), 3, dtype)],
            "antiquant_offset": [np.full((1, 16), 0.03, dtype)],
            "group_list": np.array([1]),
            "split_item": 3,
            "group_type": 0,
        }
        y = run(OP, **call, device=A2, timing=False).output
        assert set(y.astype(float).ravel()) == {expected}


# ---- few rows by int8: two digits of x ----


def test_a_row_of_digits_worked_out_apart() -> None:
    """p = 21.17 -52.92 127 5.29; digits 21 -53 127 5 and 42 21 0 74; 12536 - 9409 / 254."""
    x, w = np.zeros((1, 128), F16), np.zeros((1, 128, 1024), np.int8)
    x[0, :4], w[0, :4, :] = [0.5, -1.25, 3, 0.125], np.array([[5], [-7], [100], [-128]])
    call = {
        "x": [x], "weight": [w], "antiquant_scale": [np.full((1, 1024), 0.0625, F16)],
        "antiquant_offset": [np.full((1, 1024), 2, F16)], "group_list": np.array([1]),
        "split_item": 3, "group_type": 0,
    }  # fmt: skip
    found = run(OP, **call, device=A2, timing=False)
    assert found.template == "msd"
    assert set(found.output.ravel().tolist()) == {18.75}


OF_DIGITS = st.builds(
    call_of, RNG, counts(0, 1, 2, 30, most=16),
    st.tuples(st.sampled_from([128, 384]), st.sampled_from([1024, 2176])), KINDS, st.just(8),
    **FLAGS,
)  # fmt: skip


@draws(12)
@given(device=CHIPS, call=OF_DIGITS, special=st.sampled_from([np.inf, np.nan, 6e4, -0.0, 1e-7]))
def test_digits_equal_the_reference(device: str, call: dict[str, Any], special: float) -> None:
    x = call["x"][0]
    x[-1], x[0, 77] = 0, special
    assert assert_as_reference(OP, **call, device=device).template == "msd"


def test_rows_longer_than_a_tree() -> None:
    call = call_of(np.random.default_rng(3), [30], (4224, 1024), BF16, 8)
    assert_as_reference(OP, **call, device=A2)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("m", "k", "n", "template"),
    [
        (512, 512, 1024, "msd"),
        (513, 512, 1024, "antiquant"),
        (512, 500, 1024, "antiquant"),
        (512, 12416, 1024, "antiquant"),
        (512, 512, 1008, "antiquant"),
        (512, 512, 896, "antiquant"),
    ],
)
def test_who_writes_digits(m: int, k: int, n: int, template: str) -> None:
    found = run(OP, **specs(m, k, n, 8, "bfloat16"), device=A2, timing=False)
    assert found.template == template


# ---- how it is split ----


def specs(m: int, k: int, n: int, experts: int, dtype: str) -> dict[str, Any]:
    numbers = [TensorSpec((experts, n), dtype)]
    return {
        "x": [TensorSpec((m, k), dtype)], "weight": [TensorSpec((experts, k, n), "int8")],
        "antiquant_scale": numbers, "antiquant_offset": numbers,
        "group_list": TensorSpec((experts,), "int64"), "split_item": 3, "group_type": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "template"),
    [
        # 8 x 4 blocks an expert >= int(0.4 x 24) = 9, and k x 256 x 24 >= 5 Mi
        (8192, 1024, 1024, "float16", "antiquant_performance"),
        # 8 blocks; bf16 counts twice
        (8192, 1024, 256, "float16", "antiquant"),
        (8192, 1024, 256, "bfloat16", "antiquant_performance"),
        # k too short
        (8192, 848, 1024, "bfloat16", "antiquant"),
    ],
)
def test_the_template(m: int, k: int, n: int, dtype: str, template: str) -> None:
    found = run(OP, **specs(m, k, n, 8, dtype), device=A2, timing=False)
    assert found.template == template


@pytest.mark.parametrize("template", ["antiquant", "antiquant_performance", "msd"])
def test_a_kernel_that_is_named(template: str) -> None:
    call = call_of(np.random.default_rng(9), [3, 0, 40], (256, 640), F16, 8, bias=True)
    found = run(OP, **call, template=template, device=A2)
    assert (found.template, found.reason) == (template, "asked for")
    assert_same(found.output, REFERENCE(**call, template=template))


# ---- what is refused ----

INT8 = call_of(np.random.default_rng(0), [3, 2], (64, 48), F16, 8)
INT4 = call_of(np.random.default_rng(0), [3, 2], (64, 48), F16, 4, groups=2)
LEAVE = "leave it out to get the vendor's choice"
WITH = " with float16 x, int8 weight and float16 output"
OF = " with float16 x, int32 weight and float16 output"
INT8_ROWS = [
    Row({"antiquant_scale": [np.ones((2, 2, 48), F16)]},
        f"antiquant_scale must have shape (2, 48){WITH}, not (2, 2, 48); pass a number a column"),
    Row({"template": "plain"},
        f"template must be antiquant, antiquant_performance or msd{WITH}, not 'plain'; {LEAVE}"),
    Row({"template": "msd"},
        "template 'msd' can run only if weight is one tensor (e, k, n), group_type 0, and k and n "
        f"are multiples of 128, k up to 12288; {LEAVE}"),
    Row({"template": "antiquant_performance", "weight": [turned(INT8["weight"][0])]},
        f"template 'antiquant_performance' can run only if weight is contiguous; {LEAVE}"),
]  # fmt: skip
INT4_ROWS = [
    Row({"antiquant_scale": [np.ones((2, 3, 48), F16)]},
        f"antiquant_scale must have shape (2, 48) or (2, groups of k, 48){OF}, not (2, 3, 48); "
        "pass a number a column"),
    Row({"antiquant_offset": [np.ones((2, 48), F16)]},
        "antiquant_offset must have the shape of antiquant_scale, (2, 2, 48), not (2, 48); pass an "
        "offset for each scale"),
    Row({"template": "msd"},
        f"template must be antiquant or antiquant_performance{OF}, not 'msd'; {LEAVE}"),
    Row({"weight": [weight_of(np.random.default_rng(1), (2, 64, 48), 4, True)]},
        f"weight must be contiguous{OF} and scales of groups, not a transposed view, whose kernel "
        "is not simulated; make it contiguous", code=Code.UNSUPPORTED),
]  # fmt: skip
test_constraints_of_int8 = constraints(OP, INT8, INT8_ROWS, NEW)
test_constraints_of_int4 = constraints(OP, INT4, INT4_ROWS, NEW)
