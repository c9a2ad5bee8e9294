"""Float rows as digits: whole numbers of int8 or int4, whose products the cube sums up exactly.

A row, divided by its largest magnitude, is in [-1, 1]. It is multiplied by a factor and rounded to
a whole number, the first digit; what is left over is multiplied by the next factor and rounded to
the second digit, and so on (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel,
*_msd_split_k.h; ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant_a16w8_msd.h).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import INT4, INT8, Array, DType

__all__ = ["EIGHT_BITS", "FOUR_BITS", "Scheme", "away", "fitted", "pair_sum"]

F32 = np.float32


@dataclass(frozen=True, slots=True)
class Scheme:
    """The type of digits, and the factor of each."""

    dtype: DType
    factors: tuple[float, ...]

    @property
    def terms(self) -> int:
        """How many digits an element has."""
        return len(self.factors)

    @property
    def weights(self) -> tuple[float, ...]:
        """What each digit is multiplied by to undo its factors, in float32."""
        product, found = F32(1), []
        for factor in self.factors:
            product = product * F32(factor)
            found.append(float(F32(1) / product))
        return tuple(found)

    def split(self, rows: Array, largest: Array) -> list[Array]:
        """The digits of float32 *rows* `(..., k)`, whose *largest* magnitudes are `(..., 1)`."""
        rest, found = rows / largest * F32(self.factors[0]), []
        for following in (*self.factors[1:], 0.0):
            rounded = away(rest)
            found.append(fitted(rounded))
            rest = (rest - rounded) * F32(following)
        return found


EIGHT_BITS = Scheme(INT8, (127.0, 254.0))
FOUR_BITS = Scheme(INT4, (7.49, 14.98, 14.98))


def away(values: Array) -> Array:
    """float32 rounded to whole numbers, ties away from zero (CAST_ROUND)."""
    exact = values.astype(np.float64)
    return np.asarray((np.trunc(exact + np.copysign(0.5, exact)) + 0.0).astype(F32))


def fitted(values: Array) -> Array:
    """Whole float32 values as the cube gets them: fitted into int8, NaN becomes 0."""
    return np.asarray(np.clip(np.where(np.isnan(values), 0, values), -128, 127).astype(np.int64))


def pair_sum(values: Array) -> Array:
    """Neighbours added, then neighbours of the sums, ...: `(..., 2^j)` to `(..., 1)`.

    BlockReduceSum adds 8 elements so, and two of them add 64 (asc-devkit, ReduceDataBlock.md).
    """
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values
