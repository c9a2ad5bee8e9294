"""The row of speed.py on values alone: processor time against the fastest plain numpy.

(i) a run without times against numpy that knows nothing of tiles or buffers, works through whole
rows while they lie in the processor's cache, and gives the same bits of these numbers. A first call
writes and checks programs, a further one of the same shapes finds them. BLAS has one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from threadpoolctl import threadpool_limits

import npusim
from npusim.run.memory_cache import forget

DEVICE = "ascend910b2"
REPEATS = 5
ROWS = 16
"""Rows that numpy treats at once: 256 kB of float32."""
EXACT_K = 1024
"""So many products of int8 add up exactly in float32, whose significand has 24 bits."""
BLOCK_K = 16

Matrix = np.ndarray[Any, Any]
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


# ---- numpy ----


def quantized(x: Matrix, scales: Matrix, divides: bool) -> Matrix:
    """Each of *x* divided by or multiplied with its column's scale, as int8."""
    out, wide = np.empty(x.shape, np.int8), np.empty((ROWS, x.shape[1]), np.float32)
    for row in range(0, len(x), ROWS):
        rows = slice(row, row + ROWS)
        piece = wide[: len(x[rows])]
        piece[...] = x[rows]
        (np.divide if divides else np.multiply)(piece, scales.astype(np.float32), out=piece)
        np.rint(piece, out=piece)
        np.clip(piece, -128, 127, out=piece)
        np.copyto(out[rows], piece, casting="unsafe")
    return out


def group_quantized(x: Matrix, scales: Matrix, ends: Matrix) -> Matrix:
    """Each group of rows times its own scales."""
    starts = np.append(0, ends[:-1])
    groups = zip(starts, ends, scales, strict=True)
    return np.concatenate([quantized(x[a:b], scale, False) for a, b, scale in groups])


def dynamically_quantized(x: Matrix) -> Matrix:
    """Each row times 127 by its largest magnitude, as int8."""
    out, wide = np.empty(x.shape, np.int8), np.empty((ROWS, x.shape[1]), np.float32)
    for row in range(0, len(x), ROWS):
        rows = slice(row, row + ROWS)
        piece = wide[: len(x[rows])]
        # Without their sign the bits of fp16 are in the order of the numbers.
        largest = (x[rows].view(np.int16) & 0x7FFF).max(axis=1).view(np.float16)
        piece[...] = x[rows]
        piece *= (np.float32(127) / largest.astype(np.float32))[:, None]
        np.rint(piece, out=piece)
        np.copyto(out[rows], piece, casting="unsafe")
    return out


def exact_product(a: Matrix, b: Matrix) -> Matrix:
    """int8 @ int8 as int32."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    total = (left[:, :EXACT_K] @ right[:EXACT_K]).astype(np.int32)
    for k in range(EXACT_K, a.shape[1], EXACT_K):
        total += (left[:, k : k + EXACT_K] @ right[k : k + EXACT_K]).astype(np.int32)
    return total


def scaled_product(a: Matrix, b: Matrix, scale: Matrix, tokens: Matrix) -> Matrix:
    """The exact product times the scales of columns and of rows, as bf16."""
    sums = exact_product(a, b).astype(np.float32)
    sums *= scale
    sums *= tokens[:, None]
    return sums.astype(ml_dtypes.bfloat16)


def block_product(a: Matrix, b: Matrix, rows: int = 64, columns: int = 512) -> Matrix:
    """fp16 @ fp16, the sum rounded to float32 after each block, in tiles that stay in cache."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    out = np.empty((a.shape[0], b.shape[1]), np.float16)
    for row in range(0, len(out), rows):
        for column in range(0, out.shape[1], columns):
            where = slice(row, row + rows), slice(column, column + columns)
            total = np.zeros(out[where].shape, np.float32)
            sums = np.empty(total.shape)
            for k in range(0, a.shape[1], BLOCK_K):
                np.matmul(left[where[0], k : k + BLOCK_K], right[k : k + BLOCK_K, where[1]], sums)
                sums += total
                np.copyto(total, sums, casting="same_kind")
            out[where] = total
    return out


def turned(x: Matrix, side: int = 64) -> Matrix:
    """x.T, in squares that stay in cache."""
    out = np.empty(x.shape[::-1], x.dtype)
    for row in range(0, x.shape[0], side):
        for column in range(0, x.shape[1], side):
            piece = x[row : row + side, column : column + side]
            out[column : column + side, row : row + side] = piece.T
    return out


def added_up(x: Matrix) -> Matrix:
    """The sums of the columns, row after row in float32."""
    total, wide = np.zeros(x.shape[1], np.float32), np.empty(x.shape[1], np.float32)
    for row in x:
        wide[...] = row
        total += wide
    return total.astype(np.float16)


def ordered(x: Matrix) -> Matrix:
    """Whole numbers in the order of *x*, fp16 without NaN and negative zeros."""
    bits = x.view(np.int16)
    return np.asarray(bits ^ ((bits >> 15) & 0x7FFF))


def where_largest(x: Matrix) -> Matrix:
    """The first of the largest of each row."""
    pieces = [ordered(x[row : row + ROWS]).argmax(1) for row in range(0, len(x), ROWS)]
    return np.concatenate(pieces).astype(np.int32)


def exceeds(x: Matrix, y: Matrix) -> Matrix:
    """1 where *x* > *y*, else 0."""
    out = np.empty(x.shape, np.uint8)
    for row in range(0, len(x), ROWS):
        rows = slice(row, row + ROWS)
        np.greater(ordered(x[rows]), ordered(y[rows]), out=out[rows].view(np.bool_))
    return out


def row_product(a: Matrix, b: Matrix) -> Matrix:
    """`a @ b` of a row *a*, the sum rounded to float32 after each block."""
    total = np.zeros(b.shape[1], np.float32)
    for k in range(0, len(a), BLOCK_K):
        ks = slice(k, k + BLOCK_K)
        total = (a[ks] @ b[ks] + total).astype(np.float32)
    return total


def half_away(x: Matrix) -> Matrix:
    """*x* as fp16, ties away from zero."""
    sizes = np.abs(x)
    near = sizes.astype(np.float16)
    above = np.nextafter(near, np.float16(np.inf))
    ties = sizes == (near.astype(np.float32) + above.astype(np.float32)) / 2
    near[ties] = above[ties]
    return np.copysign(near, x)


def pairwise(x: Matrix) -> Matrix:
    """The sums along the last axis: of neighbours, then of neighbours of these, and so on."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return np.asarray(x[..., 0])


def attention(query: Matrix, key: Matrix, value: Matrix) -> Matrix:
    """A head after the other, of 1024 keys; 64 lanes are added up as the kernel does it."""
    out, scale = np.empty(query.shape, np.float16), np.float32(query.shape[-1] ** -0.5)
    for head in np.ndindex(query.shape[:2]):
        scores = row_product(query[head][0].astype(np.float64), key[head].astype(np.float64).T)
        scores *= scale
        scores -= scores.max()
        weights = np.exp(scores.astype(np.float64)).astype(np.float32)
        total = pairwise(weights[:512].reshape(64, 8))
        for row in weights[512:].reshape(8, 64):
            total = total + row
        found = row_product(half_away(weights).astype(np.float64), value[head].astype(np.float64))
        out[head] = half_away(found / pairwise(total))
    return out


# ---- the row ----


def calls() -> dict[str, tuple[Call, Callable[[], Matrix]]]:
    """What is run, and what gives the same in numpy."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4096, 4096), np.float32).astype(np.float16)
    wide, half = np.full(4096, 3, np.float32), np.full(4096, 3, np.float16)
    scales, ends = rng.random((8, 4096), np.float32), np.arange(512, 4097, 512, np.int32)
    a, b = (rng.integers(-128, 128, (2048, 2048), np.int8) for _ in range(2))
    one, column = np.ones(1, np.float32), np.full(2048, 1e-3, np.float32)
    tokens = np.full(2048, 1e-2, np.float32)
    f, g = (rng.standard_normal((1024, 1024), np.float32).astype(np.float16) for _ in range(2))
    y = x[::-1].copy()
    heads = {"num_heads": 8, "input_layout": "BNSD", "scale": 128**-0.5}
    query = rng.standard_normal((8, 8, 1, 128), np.float32).astype(np.float16)
    shape = 8, 8, 1024, 128
    key, value = (rng.standard_normal(shape, np.float32).astype(np.float16) for _ in range(2))
    by_token = {"pertoken_scale": tokens, "output_dtype": "bfloat16"}
    return {
        "npu_quantize 4096 squared, /": (
            ("npu_quantize", (x, wide, None, "qint8", -1, True), {}),
            lambda: quantized(x, wide, True),
        ),
        "npu_quantize 4096 squared, x": (
            ("npu_quantize", (x, half, None, "qint8", -1, False), {}),
            lambda: quantized(x, half, False),
        ),
        "npu_dynamic_quant 4096 squared": (
            ("npu_dynamic_quant", (x,), {}),
            lambda: dynamically_quantized(x),
        ),
        "npu_group_quant 4096 squared": (
            ("npu_group_quant", (x, scales, ends), {}),
            lambda: group_quantized(x, scales, ends),
        ),
        "npu_quant_matmul 2048 cubed, int32": (
            ("npu_quant_matmul", (a, b, one), {"output_dtype": "int32"}),
            lambda: exact_product(a, b),
        ),
        "npu_quant_matmul 2048 cubed, tokens": (
            ("npu_quant_matmul", (a, b, column), by_token),
            lambda: scaled_product(a, b, column, tokens),
        ),
        "gt fp16 4096 squared": (("gt", (x, y), {}), lambda: exceeds(x, y)),
        "permute fp16 4096 squared": (("permute", (x, (1, 0)), {}), lambda: turned(x)),
        "sum along dim 0, fp16 4096 squared": (("sum", (x, 0), {}), lambda: added_up(x)),
        "argmax fp16 4096 squared": (("argmax", (x,), {}), lambda: where_largest(x)),
        "matmul fp16 1024 cubed": (("matmul", (f, g), {}), lambda: block_product(f, g)),
        "attention decode 8 x 8 x 1024 x 128": (
            ("npu_fused_infer_attention_score", (query, key, value), heads),
            lambda: attention(query, key, value),
        ),
    }


def seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of *work*."""
    start = time.process_time()
    work()
    return time.process_time() - start


def values() -> None:
    """(i)."""
    with threadpool_limits(1, "blas"):
        for label, ((op, args, kwargs), in_numpy) in calls().items():
            ours = partial(npusim.run, op, *args, device=DEVICE, timing=False, **kwargs)
            first = again = plain = float("inf")
            for _ in range(REPEATS):
                forget()
                first, again = min(first, seconds(ours)), min(again, seconds(ours))
                plain = min(plain, seconds(in_numpy))
            found = np.asarray(next(iter(ours().outputs.values())))
            assert found.tobytes() == in_numpy().tobytes(), label
            print(
                f"(i) values, {label:36} {again / plain:5.2f} x numpy, {first / plain:5.2f} "
                f"the first call  ({again:.3f} s, {first:.3f} s : {plain:.3f} s)"
            )


if __name__ == "__main__":
    values()
