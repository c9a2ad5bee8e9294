"""matmul in tiles: every run equals the reference bit for bit, however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from matrix_calls import (
    CHIPS,
    COUPLED,
    SPLIT,
    gm_matrix,
    halves,
    turned,
    with_special,
)
from op_calls import BF16, assert_as_reference, assert_same

from npusim import TensorSpec, run

ORDERS = ("k16", "k8", "k4", "k1")


# ---- how the matrices lie ----


KINDS = [(np.float16, np.float16), (np.float16, np.float32), (BF16, np.float32), (BF16, None)]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("device", "kind", "bias_kind"),
    [case for kinds in KINDS for case in every(CHIPS if kinds[0] is np.float16 else SPLIT, *kinds)],
)
def test_kinds_of_bias(rng: np.random.Generator, device: str, kind: Any, bias_kind: Any) -> None:
    a, b = halves(rng, (20, 100), kind), halves(rng, (100, 300), kind)
    for shape in ((300,), (1, 300)):
        bias = None if bias_kind is None else halves(rng, shape, bias_kind)
        assert_as_reference("matmul", a, b, bias, device=device)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("device", "kind"), [case for kind in (np.float16, BF16) for case in every(SPLIT, kind)]
)
def test_sums_come_out_as_they_are(
    rng: np.random.Generator, device: str, kind: Any, subtests: pytest.Subtests
) -> None:
    for batch, m, k, n, template in (
        ((), 33, 300, 130, "nd2nz"),
        ((3,), 20, 128, 70, "base"),
        ((), 6000, 64, 64, "bl1_full_load"),
    ):
        for is_turned in (False, True):
            with subtests.test(template=template, is_turned=is_turned):
                a, b = halves(rng, (*batch, m, k), kind), halves(rng, (*batch, k, n), kind)
                x2 = turned(b) if is_turned else b
                wide = assert_as_reference("matmul", a, x2, output_dtype="float32", device=device)
                assert (wide.template, wide.output.dtype) == (template, np.float32)
                # One rounding more makes them the usual result, of the same kernel.
                narrow = run("matmul", a, x2, template=template, device=device, timing=False)
                assert_same(np.asarray(wide.output).astype(kind), narrow.output)


# ---- kernels ----


def test_the_layout_of_x2_or_the_caller_names_the_kernel(
    rng: np.random.Generator,
) -> None:
    a, b = halves(rng, (40, 64)), halves(rng, (64, 96))
    for x2, template, reason in (
        (b, "base", "x2 lies as (k, n)"),
        (turned(b), "v2", "x2 lies as (n, k)"),
        (
            gm_matrix(b, True, "FRACTAL_NZ"),
            "v2",
            "x2 is FRACTAL_NZ, and the least of m, k and n, 40, is below 1024",
        ),
    ):
        result = run("matmul", a, x2, device=SPLIT[0])
        assert (result.template, result.reason) == (template, reason)
        for asked in ("v2", "base"):
            result = assert_as_reference("matmul", a, x2, device=SPLIT[0], template=asked)
            assert (result.template, result.reason) == (asked, "asked for")
    result = run("matmul", a, b, device=COUPLED)
    assert (result.template, result.reason) == ("base", "the only kernel of Atlas inference")


# ---- numbers ----


@pytest.mark.parametrize("device", every(CHIPS))
def test_special_numbers(rng: np.random.Generator, device: str) -> None:
    a, b = with_special(rng, halves(rng, (60, 90))), with_special(rng, halves(rng, (90, 70)))
    y = np.asarray(assert_as_reference("matmul", a, b, device=device).output)
    assert np.isfinite(y).all() == (device == COUPLED)
    tiny = np.float16([[6e-8, 2.0**-14, -1e-6, 2.0**-20]])
    small = assert_as_reference("matmul", tiny, np.eye(4, dtype=np.float16), device=device)
    assert_same(small.output, tiny)


@pytest.mark.parametrize(("device", "largest"), [*every(SPLIT, np.inf), (COUPLED, 65504)])
def test_overflow(device: str, largest: float) -> None:
    a, b = np.float16([[256, 0], [-256, 0], [0, 65504]]), np.float16([[256], [1]])
    result = assert_as_reference("matmul", a, b, device=device)
    assert np.asarray(result.output).tolist() == [[largest], [-largest], [65504.0]]


@pytest.mark.parametrize("device", [SPLIT[0], COUPLED])
def test_the_order_of_the_cube_can_be_changed(rng: np.random.Generator, device: str) -> None:
    # 2^24 + 1 + 1 - 2^24: exact within a block, and lost one by one.
    a = np.array([[2.0**12, 1, 1, 2.0**12]], np.float16)
    b = np.array([[2.0**12], [1], [1], [-(2.0**12)]], np.float16)
    call = {"device": device, "timing": False}
    assert np.asarray(run("matmul", a, b, **call).output).tolist() == [[2.0]]
    assert np.asarray(run("matmul", a, b, cube_order="k1", **call).output).tolist() == [[0.0]]
    a, b = halves(rng, (20, 500)), halves(rng, (500, 20))
    for order in ORDERS:
        assert_as_reference("matmul", a, b, device=device, cube_order=order)


# ---- time ----


def test_every_row_of_blocks_reads_past_the_l2() -> None:
    # Two rows of blocks: an x2 of 36 MiB comes from global memory twice, one of 28 MiB once.
    x1 = TensorSpec((256, 8192), "bfloat16")
    for n, times in ((2304, 2), (1792, 1)):
        x2 = TensorSpec((n, 8192), "bfloat16").T
        trace = run("matmul", x1, x2, device=SPLIT[0], values=False, l2="cold").trace
        assert trace is not None
        assert trace.gm_read_bytes == x1.nbytes + times * x2.nbytes
