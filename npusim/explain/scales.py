"""Decode and encode the 64 bits that npu_trans_quant_param packs.

>>> word = decode(0x4000_3F80_0000)
>>> word.scale, word.offset, word.is_signed
(1.0, 0, True)
>>> encode(0.1, -3).word.offset
-3
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.ops.npu_trans_quant_param import reference
from npusim.values.semantics.quantise import SCALE_BITS, fields

__all__ = ["Encoded", "Word", "decode", "encode"]

OFFSETS = (-256, 255)
KNOWN_BITS = 0x7FE0_FFFF_FFFF
"""Bits 46 to 37 and 31 to 0."""
STEP = ~SCALE_BITS & 0xFFFF_FFFF
"""The bits of a scale that are not read."""


@dataclass(frozen=True, slots=True)
class Word:
    """A packed parameter as the fixpipe reads it."""

    bits: int
    """All 64, unsigned."""
    scale: float
    """Bits 31 to 13, the upper bits of an fp32 number."""
    offset: int
    """Bits 45 to 37, signed."""
    is_signed: bool
    """Bit 46: a result of eight bits is int8, not uint8."""
    written_scale: float
    """Bits 31 to 0 as an fp32 number, including the bits that are not read."""
    largest_scale: float
    """The largest fp32 number that is read as the same scale, the bound of the truncation error."""
    unread_bits: int
    """Bits outside these fields; npu_trans_quant_param leaves all of them 0."""

    @property
    def int64(self) -> int:
        """The word as torch prints it."""
        return self.bits - (1 << 64 if self.bits >> 63 else 0)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A scale and an offset, and the word that encodes them."""

    word: Word
    scale: float
    """The given scale, rounded to fp32."""
    offset: float | None
    round_mode: int

    @property
    def error(self) -> float:
        """The scale that is read minus the given one."""
        return self.word.scale - self.scale

    @property
    def relative_error(self) -> float | None:
        """The same divided by the given scale; None if that is 0 or not finite."""
        return self.error / abs(self.scale) if self.scale and np.isfinite(self.scale) else None


def decode(word: int) -> Word:
    """Decode *word*, signed or unsigned; raises ValueError beyond 64 bits."""
    if not -(1 << 63) <= word < 1 << 64:
        # Python does not write numbers of thousands of digits.
        came = f"be {word}" if abs(word) < 1 << 128 else f"have {word.bit_length()}"
        raise ValueError(f"decode-scale: a word must fit into 64 bits, not {came}; check it")
    bits = word & 0xFFFF_FFFF_FFFF_FFFF
    scale, offset, is_signed = (part[0] for part in fields(np.array([bits], np.uint64)))
    low = bits & 0xFFFF_FFFF
    return Word(
        bits,
        float(scale),
        int(offset),
        bool(is_signed),
        _float(low),
        _float(low | STEP),
        bits & ~KNOWN_BITS,
    )


def encode(scale: float, offset: float | None = None, round_mode: int = 0) -> Encoded:
    """Pack as npu_trans_quant_param does; raises ValueError for another *round_mode*."""
    if round_mode not in (0, 1):
        raise ValueError(
            f"decode-scale: round_mode must be 0 or 1, not {round_mode}; 0 cuts the scale's low "
            f"bits off, 1 rounds them"
        )
    with np.errstate(over="ignore"):  # a number that is too large becomes infinite in fp32
        given = np.array([scale], np.float64).astype(np.float32)
        moved = None if offset is None else np.array([offset], np.float64).astype(np.float32)
    word = decode(int(reference(given, moved, round_mode)[0]))
    return Encoded(word, float(given[0]), offset, round_mode)


def _float(bits: int) -> float:
    return float(np.array([bits], np.uint32).view(np.float32)[0])
