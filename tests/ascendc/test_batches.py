"""Batches of a Matmul against numpy: the kernels are those of kernels/batches.cpp."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from sources import kernels

from npusim.ascendc import AscendCError
from npusim.data.dtypes import Array

DRAWS = np.random.default_rng(41)
B, N, G, M, COLUMNS, K = 2, 2, 3, 40, 72, 48
AXES = struct.pack("<6i", B, N, G, M, COLUMNS, K)


def laid_out(x: Array, layout: str) -> Array:
    """*x*, `(b, n, g, s, d)`, as it lies in memory."""
    order = {"BSNGD": (0, 3, 1, 2, 4), "SBNGD": (3, 0, 1, 2, 4)}.get(layout, (0, 1, 2, 3, 4))
    return np.ascontiguousarray(x.transpose(order))


def operands() -> tuple[Array, Array, Array]:
    """A, B turned, and their product, batch by batch."""
    a, b = (DRAWS.integers(-3, 4, (B, N, G, s, K)).astype(np.float16) for s in (M, COLUMNS))
    return a, b, a.astype(np.float32) @ b.astype(np.float32).swapaxes(-1, -2)


@pytest.mark.parametrize("layout", ["BSNGD", "SBNGD", "BNGS1S2", "NORMAL"])
@pytest.mark.parametrize("bias", ["none", "one", "each"])
def test_batches(layout: str, bias: str) -> None:
    a, b, product = operands()
    config = "CFG_SHARED_BIAS" if bias == "one" else "CFG_NORM"
    kernel = kernels("batches.cpp")[f"batches<LayoutMode::{layout}, {config}>"][1]
    # The batches of one b follow each other in all of them.
    count = N * G
    added = DRAWS.integers(-9, 9, (1 if bias == "one" else count, COLUMNS)).astype(np.float32)
    c = laid_out(np.zeros_like(product), layout)
    given = None if bias == "none" else added
    kernel(laid_out(a, layout), laid_out(b, layout), given, c, AXES, count, device="Atlas A2")
    want = np.zeros_like(product)
    want[0] = product[0]
    if bias != "none":
        want[0] += np.broadcast_to(added, (count, COLUMNS)).reshape(N, G, 1, COLUMNS)
    np.testing.assert_array_equal(c, laid_out(want, layout))


@pytest.mark.parametrize("layout", ["BSNGD", "SBNGD", "BNGS1S2"])
def test_rounds_of_batches(layout: str) -> None:
    a, b, product = operands()
    c = laid_out(np.zeros_like(product), layout)
    kernel = kernels("batches.cpp")[f"rounds<LayoutMode::{layout}>"][1]
    kernel(laid_out(a, layout), laid_out(b, layout), None, c, AXES, 3, device="Atlas A2")
    np.testing.assert_array_equal(c, laid_out(product, layout))


REFUSED = (
    "IterateBatch: the tiling must have the axes of A, B and C; call SetALayout, "
    "SetBLayout and SetCLayout, or SetBatchInfoForNormal",
    "IterateBatch: batchA and batchB must be one number of 1 or more, not 4 and 2, since "
    "npusim repeats no matrix; make them alike",
    "IterateNBatch: isNBatch of MatmulConfig must be true; set it so, or call IterateBatch",
    "IterateAll: matrices must be of LayoutMode::NONE, not of LayoutMode 1, which is of "
    "batches; call IterateBatch",
    "IterateBatch: products must go to global memory, not into a buffer, which npusim "
    "does not simulate; copy them from there",
    "IterateBatch: enPartialSum must be false and matrixStrideC 0, since npusim does not "
    "simulate them; add by enAtomic",
)
"""What is said of each case of the kernel."""


@pytest.mark.parametrize("which", range(len(REFUSED)))
def test_what_is_refused(which: int) -> None:
    a, b, product = operands()
    with pytest.raises(AscendCError) as caught:
        kernels("batches.cpp").refused[1](a, b, None, product, AXES, which, device="Atlas A2")
    assert str(caught.value).startswith(f"refused: {REFUSED[which]} (line ")
