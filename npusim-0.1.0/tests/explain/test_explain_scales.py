"""Packed scales taken apart: words by hand, those of the documents, and what is lost."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from npusim.explain.scales import decode, encode
from npusim.ops.npu_trans_quant_param import reference


def test_a_word_by_hand() -> None:
    # 2.0 is 0x40000000; offset -3 is 0b111111101 at bit 37; bit 46 says int8.
    word = decode(0x40000000 | 0x1FD << 37 | 1 << 46)
    assert (word.scale, word.offset, word.is_signed) == (2.0, -3, True)
    assert (word.written_scale, word.unread_bits) == (2.0, 0)
    # 13 more ones below the 19 bits: 2 + (2^13 - 1) / 2^22.
    assert word.largest_scale == 2 + 8191 / 2**22


@pytest.mark.parametrize(
    ("word", "scale", "offset"),
    [
        # torch_npu-npu_trans_quant_param.md, the first example.
        (140463653937152, 0.1741943359375, -2),
        (70507209793536, 0.043365478515625, 1),
        (70507233009664, 0.288818359375, 1),
        (140601114345472, 0.9755859375, -1),
    ],
)
def test_the_words_of_the_document(word: int, scale: float, offset: int) -> None:
    found = decode(word)
    assert (found.scale, found.offset, found.is_signed) == (scale, offset, True)
    assert encode(scale, offset).word == found


def test_signed_and_unsigned_are_the_same_word() -> None:
    low = 0x3F800000
    assert decode(low - 2**63) == decode(low + 2**63)
    assert decode(low + 2**63).int64 == low - 2**63
    assert decode(1 << 46).int64 == 1 << 46


def test_what_nobody_packs_shows() -> None:
    word = decode(1 << 63 | 1 << 47 | 1 << 36 | 1 << 32 | 0x3F800001)
    assert word.unread_bits == 1 << 63 | 1 << 47 | 1 << 36 | 1 << 32
    assert word.scale == 1.0
    assert word.written_scale == 1 + 2**-23


@pytest.mark.parametrize(
    ("word", "came"),
    [
        (2**64, "be 18446744073709551616"),
        (-(2**63) - 1, "be -9223372036854775809"),
        pytest.param(10**5000, "have 16610", id="many digits"),
    ],
)
def test_a_word_has_64_bits(word: int, came: str) -> None:
    message = f"decode-scale: a word must fit into 64 bits, not {came}; check it"
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        decode(word)


def test_what_is_packed_comes_back(rng: np.random.Generator) -> None:
    scales = rng.standard_normal(200).astype(np.float32)
    offsets = rng.integers(-256, 256, 200)
    for mode in (0, 1):
        words = reference(scales, offsets.astype(np.float32), mode)
        for scale, offset, word in zip(scales, offsets, words, strict=True):
            made = encode(float(scale), float(offset), mode)
            assert made.word.int64 == word
            assert made.word.offset == offset
            # 10 bits of the mantissa are kept.
            assert made.relative_error is not None
            assert abs(made.relative_error) <= (2**-10, 2**-11)[mode]
            if mode == 0:
                assert abs(made.word.scale) <= abs(made.scale) <= abs(made.word.largest_scale)


def test_the_error_is_that_of_the_scale_read() -> None:
    made = encode(0.1)
    assert made.scale == float(np.float32(0.1))
    # 0.1 in fp32 is 0x3DCCCCCD, read as 0x3DCCC000.
    assert made.word.scale == np.uint32(0x3DCCC000).view(np.float32)
    assert made.error == made.word.scale - made.scale
    assert encode(0.0).relative_error is None


def test_offsets_are_rounded_and_clipped() -> None:
    assert [encode(1, offset).word.offset for offset in (0.5, 1.5, 300, -300)] == [0, 2, 255, -256]


def test_too_large_a_scale_is_infinite() -> None:
    assert math.isinf(encode(1e300).word.scale)


def test_there_are_two_round_modes() -> None:
    message = (
        "decode-scale: round_mode must be 0 or 1, not 2; 0 cuts the scale's low bits off, "
        "1 rounds them"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        encode(1.0, round_mode=2)
