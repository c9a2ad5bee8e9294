"""x written in digits: what the msd templates multiply instead of dequantising the weight.

A row of x, divided by its largest magnitude, is in [-1, 1]. It is multiplied by a factor and
rounded to a whole number, the first digit; what is left over is multiplied by the next factor and
rounded to the second digit, and so on. Digits times weight is a product of small integers, exact
in int32; the digits' products are then combined in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops.npu_weight_quant_batchmatmul.references.inputs import ReferenceInputs

__all__ = ["Digits", "absmax", "away", "digit", "halving_sum", "lanes_sum", "split"]

F32 = np.float32


@dataclass(frozen=True, slots=True)
class Digits:
    """The factors of a split, and what each digit is multiplied by to undo them, in fp32."""

    factors: tuple[np.float32, ...]
    weights: tuple[np.float32, ...]

    @staticmethod
    def of(inputs: ReferenceInputs) -> Digits:
        """Two digits for an int8 weight, three for int4.

        ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/*_msd_split_k.h.
        """
        one = F32(1)
        if inputs.traits.weight == "int8":
            f, g = F32(127), F32(254)
            return Digits((f, g), (one / f, one / (f * g)))
        f, g = F32(7.49), F32(14.98)
        return Digits((f, g, g), (one / f, one / (f * g), one / (f * g * g)))


def away(values: Array) -> Array:
    """float32 rounded to whole numbers, ties away from zero (CAST_ROUND)."""
    exact = values.astype(np.float64)
    return np.asarray((np.trunc(exact + np.copysign(0.5, exact)) + 0.0).astype(F32))


def digit(values: Array) -> Array:
    """Whole float32 numbers as the cube gets them: fitted into int8, NaN becomes 0."""
    fitted: Array = np.clip(np.where(np.isnan(values), 0, values), -128, 127)
    return fitted.astype(np.int64)


def split(rows: Array, largest: Array, digits: Digits) -> list[Array]:
    """The digits of float32 *rows* `(..., k)` whose largest magnitudes are *largest* `(..., 1)`."""
    rest = rows / largest * digits.factors[0]
    found = []
    for following in (*digits.factors[1:], F32(0)):
        rounded = away(rest)
        found.append(digit(rounded))
        rest = (rest - rounded) * following
    return found


def absmax(rows: Array) -> Array:
    """`(..., 1)`: the largest magnitude of each row."""
    return np.asarray(np.abs(rows).max(axis=-1, keepdims=True))


# ---- sums of a row, in the order of the vector pipe ----


def pair_sum(values: Array) -> Array:
    """Neighbours added, then neighbours of the sums, ...: `(..., 2^j)` to `(..., 1)`.

    BlockReduceSum adds 8 numbers so, and two of them add 64 (asc-devkit, ReduceDataBlock.md).
    """
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values


def lanes_sum(rows: Array) -> Array:
    """64 lanes that each add every 64th number, then :func:`pair_sum`; a tail of 32 goes to 32."""
    lanes = rows[..., :64]
    for start in range(64, rows.shape[-1], 64):
        piece = rows[..., start : start + 64]
        width = piece.shape[-1]
        lanes = np.concatenate([lanes[..., :width] + piece, lanes[..., width:]], axis=-1)
    return pair_sum(lanes)


def halving_sum(rows: Array) -> Array:
    """The lower half of the vectors of 64 plus the upper half, again and again, then the lanes.

    Of an odd number of vectors the last is carried along; a tail of 32 is added at the end.
    """
    whole = rows.shape[-1] // 64 * 64
    vectors = rows[..., :whole].reshape(*rows.shape[:-1], -1, 64)
    while vectors.shape[-2] > 1:
        half = vectors.shape[-2] // 2
        sums = vectors[..., :half, :] + vectors[..., half : 2 * half, :]
        vectors = np.concatenate([sums, vectors[..., 2 * half :, :]], axis=-2)
    return lanes_sum(np.concatenate([vectors[..., 0, :], rows[..., whole:]], axis=-1))
