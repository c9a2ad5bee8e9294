"""`npusim decode-scale`: what stands in a packed quantisation parameter."""

from __future__ import annotations

import math
import re
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from npusim.cli.call import UsageError
from npusim.cli.screen import show
from npusim.data.errors import shown
from npusim.data.json import json_text
from npusim.explain.scales import Encoded, Word, decode, encode

__all__ = ["decode_scale"]

MAX_LETTERS = 100
"""A word, which has 64 bits at most, is never longer, even with underscores between them."""


def decode_scale(word: str | None, encoded: str | None, round_mode: int, as_json: bool) -> None:
    """Take *word* apart, or pack what *encoded* says; one of them must be given."""
    if (word is None) == (encoded is None):
        raise UsageError("decode-scale: a word or --encode must be given, and one only; write one")
    packed = None if encoded is None else _encoded(encoded, round_mode)
    found = decode(_whole(word)) if packed is None and word is not None else None
    found = packed.word if packed is not None else found
    assert found is not None
    if as_json:
        typer.echo(json_text(_facts(found, packed)))
        return
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    for key, value in (*_given(packed), *_fields(found, packed is None)):
        lines.add_row(key, Text(value))
    show(lines)


def _whole(word: str) -> int:
    if not re.fullmatch(r"-?[0-9]+(_[0-9]+)*|0[xX][0-9a-fA-F]+(_[0-9a-fA-F]+)*", word):
        raise UsageError(
            f"decode-scale: a word must be a whole number, not {shown(word)}; "
            f"write for example 70369809530880 or 0x4000_3F80_0000"
        )
    if len(word) > MAX_LETTERS:
        raise UsageError(
            f"decode-scale: a word must fit into 64 bits, not have {len(word)} digits; check it"
        )
    return int(word, 0 if word[:2].lower() == "0x" else 10)


def _encoded(text: str, round_mode: int) -> Encoded:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(math.isfinite(number) for number in numbers):
        raise UsageError(
            f"decode-scale: --encode must be SCALE or SCALE,OFFSET, finite numbers, "
            f"not {shown(text)}; write for example 0.1,-3"
        )
    return encode(numbers[0], numbers[1] if len(numbers) > 1 else None, round_mode)


# ---- as lines ----


def _given(packed: Encoded | None) -> list[tuple[str, str]]:
    if packed is None:
        return []
    offset = "" if packed.offset is None else f", offset {packed.offset:g}"
    relative = packed.relative_error
    share = "" if relative is None else f", {relative:.3g} of the scale"
    return [
        ("given", f"scale {_exact(packed.scale)} as fp32{offset}, round_mode {packed.round_mode}"),
        ("error", f"{packed.error:.6g}{share}"),
    ]


def _fields(word: Word, is_found: bool) -> list[tuple[str, str]]:
    bits = word.bits
    lines = [
        ("int64", str(word.int64)),
        ("hex", f"0x{bits:016X}"),
        ("bits 31 to 13", f"{bits >> 13 & 0x7FFFF:019b}: scale {_exact(word.scale)}"),
        ("bits 45 to 37", f"{bits >> 37 & 0x1FF:09b}: offset {word.offset}"),
        (
            "bit 46",
            f"{bits >> 46 & 1}: 8-bit results are {'signed' if word.is_signed else 'unsigned'}",
        ),
    ]
    if bits & 0x1FFF:
        lines.append(
            (
                "bits 12 to 0",
                f"{bits & 0x1FFF:013b}: not read; with them the scale would be "
                f"{_exact(word.written_scale)}, {_lost(word.written_scale, word.scale)}",
            )
        )
    elif is_found and math.isfinite(word.largest_scale):
        lines.append(
            (
                "bits 12 to 0",
                f"{0:013b}: cut off; the scale may have been up to {_exact(word.largest_scale)}, "
                f"{_lost(word.largest_scale, word.scale)}",
            )
        )
    if word.unread_bits:
        lines.append(("other bits", f"0x{word.unread_bits:016X}: npu_trans_quant_param sets none"))
    return lines


def _exact(number: float) -> str:
    """A number of fp32 with nine digits, which no other fp32 number has."""
    return f"{number:.9g}"


def _lost(whole: float, read: float) -> str:
    share = abs(whole - read) / abs(whole) if math.isfinite(whole) and whole else math.nan
    return "which is no number" if math.isnan(share) else f"{share:.3g} of it lost"


# ---- as JSON ----


def _facts(word: Word, packed: Encoded | None) -> dict[str, object]:
    facts = asdict(word) | {"int64": word.int64, "hex": f"0x{word.bits:016X}"}
    if packed is not None:
        facts |= {
            "given_scale": packed.scale,
            "given_offset": packed.offset,
            "round_mode": packed.round_mode,
            "error": packed.error,
            "relative_error": packed.relative_error,
        }
    # JSON has no infinity and no NaN.
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in facts.items()
    }
