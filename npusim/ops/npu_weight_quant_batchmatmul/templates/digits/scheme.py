"""How many digits a number of x has, their type, and their layout in global memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import INT4, INT8, DType
from npusim.kernel.cube import GmMatrix
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["EIGHT_BITS", "FOUR_BITS", "Scheme", "digit_views", "gm_digits", "scheme_of"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The type of digits, and the factor of each."""

    dtype: DType
    factors: tuple[float, ...]

    @property
    def terms(self) -> int:
        """How many digits a number has."""
        return len(self.factors)

    @property
    def weights(self) -> tuple[float, ...]:
        """What each digit is multiplied by to undo its factors, in float32."""
        product, found = np.float32(1), []
        for factor in self.factors:
            product = product * np.float32(factor)
            found.append(float(np.float32(1) / product))
        return tuple(found)


EIGHT_BITS = Scheme(INT8, (127.0, 254.0))
FOUR_BITS = Scheme(INT4, (7.49, 14.98, 14.98))


def scheme_of(f: CallTraits) -> Scheme:
    """Digits have the type of the weight, for the cube multiplies one by the other."""
    return EIGHT_BITS if f.weight == "int8" else FOUR_BITS


def gm_digits(f: CallTraits) -> GmMatrix:
    """The left operand `(terms x m, k)`: first digits of all rows, then second digits, ..."""
    scheme = scheme_of(f)
    return GmMatrix("digits", scheme.dtype, scheme.terms * f.m, f.k, k_is_first=False)


def digit_views(f: CallTraits) -> tuple[GmView, ...]:
    """The same matrix as vector cores write it: `(m, k)` for each digit."""
    scheme = scheme_of(f)
    digits = GmView.of("digits", scheme.dtype, scheme.terms * f.m, f.k)
    return tuple(digits[term * f.m : (term + 1) * f.m, :] for term in range(scheme.terms))
