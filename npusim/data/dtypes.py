"""Element types and all casts between them, defined for every bit pattern.

A cast is *round, then fit*: the source value is exact in float64, is rounded to what the target
can represent, and then saturates (integers) or overflows (fp16, bf16: see :data:`Overflow`).

    >>> cast(np.float32([0.5, 1.5, 300, np.nan]), INT32, "rint").tolist()
    [0, 2, 300, 0]
    >>> cast(np.float16([0.5, 1.5, 300, np.nan]), INT8, "round").tolist()
    [1, 2, 127, 0]

Sources of at most 16 bits have so few patterns that their casts are tables, filled once from the
definition above; so fast casts agree with the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npusim.data.errors import shown
from npusim.data.integers import ceil_div

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "INT4",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "Array",
    "DType",
    "Overflow",
    "RoundMode",
    "Whole",
    "cast",
    "dtype_named",
    "dtype_of",
    "pack_int4",
    "round_to_integral",
    "unpack_int4",
]

Array = NDArray[Any]

RoundMode = Literal["rint", "floor", "ceil", "round", "trunc", "odd", "none"]
"""Ascend C's CAST_RINT (ties to even), CAST_FLOOR, CAST_CEIL, CAST_ROUND (ties away from zero),
CAST_TRUNC, CAST_ODD (inexact results get an odd last bit), CAST_NONE (rint where a bit is lost).

asc-devkit, Cast.md and precision_conversion.md.
"""

_ROUND_MODES = get_args(RoundMode)

Overflow = Literal["inf_nan", "saturate"]
"""Result of an fp16 or bf16 overflow: ±inf (NaN stays), or ±MAX (NaN becomes 0).

asc-devkit, SetCtrlSpr(ISASI).md: control register bit 48; Ascend/pytorch, npu_sys_ctrl.cpp:
torch_npu sets it per product line.
"""


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type; there is one object of each, so they compare by identity."""

    name: str
    numpy: np.dtype[Any]
    """The numpy type of one element; int4 takes a whole byte there."""
    bits: int
    """Bits of one element on the chip."""
    cann: str
    """The name in messages of CANN."""

    @property
    def is_float(self) -> bool:
        return self.name.startswith(("float", "bfloat"))

    def nbytes(self, count: int) -> int:
        """Bytes of *count* elements on the chip."""
        return ceil_div(count * self.bits, 8)

    def __repr__(self) -> str:
        return self.name


FLOAT32 = DType("float32", np.dtype(np.float32), 32, "DT_FLOAT")
FLOAT16 = DType("float16", np.dtype(np.float16), 16, "DT_FLOAT16")
BFLOAT16 = DType("bfloat16", np.dtype(ml_dtypes.bfloat16), 16, "DT_BF16")
INT4 = DType("int4", np.dtype(ml_dtypes.int4), 4, "DT_INT4")
INT8 = DType("int8", np.dtype(np.int8), 8, "DT_INT8")
UINT8 = DType("uint8", np.dtype(np.uint8), 8, "DT_UINT8")
INT16 = DType("int16", np.dtype(np.int16), 16, "DT_INT16")
INT32 = DType("int32", np.dtype(np.int32), 32, "DT_INT32")
INT64 = DType("int64", np.dtype(np.int64), 64, "DT_INT64")
UINT16 = DType("uint16", np.dtype(np.uint16), 16, "DT_UINT16")
UINT32 = DType("uint32", np.dtype(np.uint32), 32, "DT_UINT32")
UINT64 = DType("uint64", np.dtype(np.uint64), 64, "DT_UINT64")

DTYPES = (FLOAT32, FLOAT16, BFLOAT16, INT4, INT8, UINT8, INT32, INT64, UINT64)
BUFFER_DTYPES = (*DTYPES, INT16, UINT16, UINT32)
"""Types of elements in a buffer, and in tensors of C++ kernels; operators accept only DTYPES."""
_BY_NAME = {dtype.name: dtype for dtype in BUFFER_DTYPES} | {"float": FLOAT32, "half": FLOAT16}
_BY_NUMPY = {dtype.numpy: dtype for dtype in BUFFER_DTYPES}
_INTEGER_RANGE = {
    INT4: (-8, 7),
    INT8: (-128, 127),
    UINT8: (0, 255),
    INT16: (-(2**15), 2**15 - 1),
    INT32: (-(2**31), 2**31 - 1),
}
_LAST_FLOAT32 = {INT16: 2.0**15 - 1, INT32: 2.0**31 - 128}
"""The last fp32 number in the range of an integer type."""
# Mantissa bits, exponent of the smallest normal number, largest finite value (IEEE 754; bf16 is
# the upper half of an fp32).
_FLOAT_FORMAT = {
    FLOAT16: (10, -14, 65504.0),
    BFLOAT16: (7, -126, (2 - 2.0**-7) * 2.0**127),
}


def dtype_named(name: str) -> DType:
    """The element type of torch's *name*; raises ValueError for an unknown name."""
    if not isinstance(name, str) or name not in _BY_NAME:
        known = ", ".join(dtype.name for dtype in BUFFER_DTYPES)
        raise ValueError(
            f"dtypes: a dtype must be one of {known}, not {shown(name)}; use one of these"
        )
    return _BY_NAME[name]


def dtype_of(array: Array) -> DType | None:
    """The element type of *array*, or None if the chip has no such type."""
    return _BY_NUMPY.get(array.dtype)


# ---- rounding ----


def round_to_integral(values: Array, mode: RoundMode) -> Array:
    """Round float64 *values* (exact fp32, fp16 or bf16 numbers) to integers; NaN and inf stay."""
    rounded: Array
    match mode:
        case "rint" | "none":
            rounded = np.rint(values)
        case "floor":
            rounded = np.floor(values)
        case "ceil":
            rounded = np.ceil(values)
        case "trunc":
            rounded = np.trunc(values)
        case "round":
            # The sum is exact: sources have at most 24 significant bits, a float64 has 53.
            rounded = np.trunc(values + np.copysign(0.5, values))
        case "odd":
            cut = np.trunc(values)
            even = np.fmod(cut, 2) == 0
            rounded = np.where((cut != values) & even, cut + np.copysign(1.0, values), cut)
    return rounded


def _to_integer(values: Array, dst: DType, mode: RoundMode) -> Array:
    low, high = _INTEGER_RANGE[dst]
    rounded = round_to_integral(values, mode)
    # asc-devkit, Memory矢量计算接口边界值汇总.md, table 32: saturation, and 0 for NaN.
    fitted = np.clip(np.where(np.isnan(rounded), 0.0, rounded), low, high)
    return fitted.astype(np.int8 if dst is INT4 else dst.numpy)


def _to_small_float(values: Array, dst: DType, mode: RoundMode, overflow: Overflow) -> Array:
    mantissa_bits, min_exponent, largest = _FLOAT_FORMAT[dst]
    finite = np.where(np.isfinite(values), values, 0.0)
    _, exponent = np.frexp(finite)
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, min_exponent) - mantissa_bits)
    rounded = round_to_integral(finite / quantum, mode) * quantum
    rounded = np.where(np.isfinite(values), rounded, values)
    if overflow == "saturate":
        rounded = np.clip(np.where(np.isnan(rounded), 0.0, rounded), -largest, largest)
    else:
        rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
    return rounded.astype(dst.numpy)


def _define(values: Array, dst: DType, mode: RoundMode, overflow: Overflow) -> Array:
    """The cast by definition, for any source; other implementations must give the same bits."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = values.astype(np.float64)
        if dst is FLOAT32:
            if values.dtype == np.float32 and mode != "none":
                # Rounds to an integral float; −0 becomes +0 (the same table, note).
                return (round_to_integral(exact, mode) + 0.0).astype(np.float32)
            return exact.astype(np.float32)
        if dst in _FLOAT_FORMAT:
            return _to_small_float(exact, dst, mode, overflow)
        return _to_integer(exact, dst, mode)


# ---- fast implementations ----


@lru_cache(maxsize=64)
def _table(src: np.dtype[Any], dst: DType, mode: RoundMode, overflow: Overflow) -> Array:
    patterns = np.arange(1 << (8 * src.itemsize), dtype=f"u{src.itemsize}")
    return _define(patterns.view(src), dst, mode, overflow)


_LONG_ROW = 1 << 10
"""Rows of at least this length get their own call of numpy, if there are many (measured)."""
_MANY = 1 << 15
_WORTH_ITS_BITS = 1 << 12
"""Arrays of at least this size justify a dozen calls of numpy."""
# Integers up to this are exact in fp16, whose significand has 11 bits.
_FP16_EXACT = 2048
_ROUNDINGS: dict[str, np.ufunc] = {
    "rint": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


class Whole(NamedTuple):
    """The result of a cast: integral values from *low* to *high*, which fit the type.

    A further cast need not test for either. *values* may be of another type than the result, and a
    zero may be negative.
    """

    values: Array
    low: int
    high: int

    @classmethod
    def rounded(cls, values: Array, dst: DType, mode: RoundMode) -> Whole | None:
        """float32 *values* rounded to integers of *dst*; None unless all of them certainly fit."""
        if dst not in _LAST_FLOAT32 or mode not in _ROUNDINGS or not values.size:
            return None
        with np.errstate(invalid="ignore"):
            rounded = _ROUNDINGS[mode](values)
        low, high = rounded.min(), rounded.max()
        # A NaN anywhere makes both comparisons false.
        if low >= _INTEGER_RANGE[dst][0] and high <= _LAST_FLOAT32[dst]:
            return cls(rounded, int(low), int(high))
        return None

    def cast_to(self, dst: DType) -> Whole | None:
        """The same values as *dst*, saturated; None unless all certainly remain integral."""
        if dst is FLOAT16:
            if self.low < -_FP16_EXACT or self.high > _FP16_EXACT:
                return None
            return self
        if dst not in _INTEGER_RANGE or dst is INT4:
            return None
        first, last = _INTEGER_RANGE[dst]
        if first <= self.low and self.high <= last:
            return self
        low, high = (min(max(bound, first), last) for bound in (self.low, self.high))
        return Whole(np.clip(self.values, first, last), low, high)

    def put(self, dst: DType, out: Array) -> None:
        """Write the values to *out* as *dst*, to which they have been rounded or cast."""
        if dst is FLOAT16:
            np.bitwise_or(*_fp16_bits(self.values), out=out.view(np.int16))
        else:
            np.copyto(out, self.values, casting="unsafe")


_FP32_TO_FP16 = np.float32(2.0**-112)
"""The exponent bias of fp32 exceeds that of fp16 by 127 - 15, and its significand has 13 more
bits."""
_FP16_TO_FP32 = 1 / _FP32_TO_FP16
_MORE_BITS = 13
_SIGN_OF_16_BITS = np.int16(-(2**15))


def _fp16_bits(values: Array) -> tuple[Array, Array]:
    """Exponents with significands, and signs, of integers that fp16 holds, none of them zero."""
    signs = values.astype(np.int16)
    signs &= _SIGN_OF_16_BITS
    rest = np.multiply(values, _FP32_TO_FP16, dtype=np.float32).view(np.int32)
    rest >>= _MORE_BITS
    return rest.astype(np.int16), signs


def cast(
    values: Array,
    dst: DType,
    mode: RoundMode = "rint",
    overflow: Overflow = "inf_nan",
    out: Array | None = None,
) -> Array:
    """Convert *values* to *dst*, rounding by *mode*.

    Sources: float32, float16, bfloat16, int8, uint8, int16, int32 arrays (int4 as int8), and int64,
    which can only be cast to int32 and saturates (assumed). int4 results are int8 values in [-8,
    7]; :func:`pack_int4` packs them into bytes. Integer to float ignores *mode* and rounds to
    nearest even (asc-devkit, precision_conversion.md). The result is written to *out*, if given: an
    array of its shape and type, which may share memory with *values*. Raises ValueError on an
    unknown mode.
    """
    if mode not in _ROUND_MODES:
        raise ValueError(
            f"dtypes.cast: mode must be one of {', '.join(_ROUND_MODES)}, not {mode!r}"
        )
    if values.dtype.kind in "iu" and dst.is_float:
        mode = "none"
    if values.dtype == np.float16 and dst is FLOAT32 and values.size >= _MANY:
        found = _widened(values, out)
        if found is not None:
            return found
    if values.itemsize <= 2:
        return _looked_up(values, _table(values.dtype, dst, mode, overflow), out)
    found = _nearly_cast(values, dst, mode, overflow)
    with np.errstate(over="ignore", under="ignore"):
        if out is None:
            return found.astype(np.int8 if dst is INT4 else dst.numpy, copy=False)
        np.copyto(out, found, casting="unsafe")
    return out


_SIGN_AND_REST = np.uint32(0x8FFF_E000).astype(np.int32)
"""The bits of an fp16 number within fp32, before its exponent is adjusted."""
_INFINITY, _MINUS_INFINITY = 0x7C00, 0xFC00
"""Patterns of fp16; larger ones of the same sign are NaN."""
_SMALLEST = np.float32(2.0**-149)


def _widened(values: Array, out: Array | None) -> Array | None:
    """fp16 *values* as fp32 by bit manipulation; None if one of them is infinite or NaN.

    Also None if the processor flushes subnormal numbers to zero.
    """
    patterns = values.view(np.int16)
    if patterns.max() >= _INFINITY or values.view(np.uint16).max() >= _MINUS_INFINITY:
        return None
    if not _SMALLEST * _FP16_TO_FP32:
        return None
    wide = patterns.astype(np.int32)
    wide <<= _MORE_BITS
    wide &= _SIGN_AND_REST
    return np.asarray(np.multiply(wide.view(np.float32), _FP16_TO_FP32, out=out))


_ROUNDED_UP = 65520
"""Smaller values round to a finite number of fp16."""
_FP32_EXPONENT = np.int32(0x7F80_0000)
_SMALLEST_NORMAL = np.int32(113 << 23)
"""That of fp16, as fp32."""
_MORE_BITS_UP = np.int32(_MORE_BITS << 23)
"""Added to an fp32 exponent: times 2^13."""


def _narrowed(values: Array) -> Array:
    """fp32 *values* below 65520 rounded to fp16, ties to even, by bit manipulation.

    numpy is slow for each number that is subnormal in fp16. Here the processor rounds: added to
    2^13 times its leading bit, a number has no more significant bits left than fp16 has.
    """
    leading = values.view(np.int32) & _FP32_EXPONENT
    np.maximum(leading, _SMALLEST_NORMAL, out=leading)
    leading += _MORE_BITS_UP
    sums = np.abs(values)
    sums += leading.view(np.float32)
    found = sums.view(np.int32)
    found -= leading
    # The significand has its leading bit, which adds 1 to the exponent of a normal number.
    leading -= _SMALLEST_NORMAL + _MORE_BITS_UP
    leading >>= _MORE_BITS
    found += leading
    narrow = found.astype(np.int16)
    signs = values.view(np.int32) >> 16
    narrow |= signs.astype(np.int16) & _SIGN_OF_16_BITS
    return narrow.view(np.float16)


def _looked_up(values: Array, table: Array, out: Array | None) -> Array:
    """The entry of *table* for the bits of each value, written to *out* if given."""
    patterns = values.view(f"u{values.itemsize}")
    # Patterns are always within the table, so "wrap" only avoids the bounds check.
    if values.ndim == 1:
        return np.asarray(table.take(patterns, out=out, mode="wrap"))
    if out is None:
        out = np.empty(values.shape, table.dtype)
    if values.ndim != 2 or values.shape[1] < _LONG_ROW or values.size < _MANY:
        out[...] = table.take(patterns, mode="wrap")
        return out
    # numpy converts each pattern to an 8-byte index; row by row these stay in cache.
    for row, found in zip(patterns, out, strict=True):
        table.take(row, out=found, mode="wrap")
    return out


def _nearly_cast(values: Array, dst: DType, mode: RoundMode, overflow: Overflow) -> Array:
    """Casts through casts of numpy or ml_dtypes, for sources of 32 and of 64 bits."""
    if values.dtype == np.float32 and dst in _LAST_FLOAT32:
        whole = Whole.rounded(values, dst, mode)
        if whole is not None:
            return whole.values
    elif values.dtype == np.float32 and dst in _FLOAT_FORMAT and mode in ("rint", "none"):
        # Both round once, to nearest even, and have infinities; NaN fails both tests.
        largest = np.inf if overflow == "inf_nan" else _FLOAT_FORMAT[dst][2]
        if values.size:
            low, high = values.min(), values.max()
            is_worth_it = dst is FLOAT16 and values.size >= _WORTH_ITS_BITS
            if is_worth_it and -_ROUNDED_UP < low <= high < _ROUNDED_UP:
                return _narrowed(values)
            if high <= largest and -largest <= low:
                return values
    elif values.dtype == np.int32 and dst is FLOAT16:
        first, last = _INTEGER_RANGE[INT16]
        if values.size and values.min() >= first and values.max() <= last:
            return cast(values.astype(np.int16), dst, mode, overflow)
    elif values.dtype == np.int32 and dst is FLOAT32:
        return values
    elif values.dtype == np.int64 and dst is INT32:
        return np.clip(values, *_INTEGER_RANGE[INT32])
    return _define(values, dst, mode, overflow)


# ---- int4 ----


def pack_int4(values: Array) -> NDArray[np.uint8]:
    """Pack two int4 values per byte, the first in the low nibble; the last axis must be even.

    op-plugin, test_npu_quantize.py, int4s_to_int32; ops-nn, executor, pack_int4_to_int32.

    >>> pack_int4(np.arange(-8, 8, dtype=np.int8)).view("<i4").tolist()
    [-19088744, 1985229328]
    """
    nibbles = values.astype(np.int8).view(np.uint8) & 0xF
    return np.asarray(nibbles[..., 0::2] | (nibbles[..., 1::2] << 4))


def unpack_int4(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The int4 values of *packed* bytes, twice as many along the last axis."""
    nibbles = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return ((nibbles ^ 8).astype(np.int8) - 8).astype(np.int8)
