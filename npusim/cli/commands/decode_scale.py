"""`npusim decode-scale`, as it is typed."""

from __future__ import annotations

from typing import Annotated

import typer

from npusim.cli.commands.run import Json

__all__ = ["decode_scale"]

WordArgument = Annotated[
    str | None,
    typer.Argument(metavar="INT64", help="For example 70369809530880 or 0x4000_3F80_0000."),
]
Encode = Annotated[
    str | None,
    typer.Option("--encode", "-e", metavar="SCALE[,OFFSET]", help="Pack these instead."),
]
RoundMode = Annotated[
    int, typer.Option("--round-mode", help="0 truncates the scale's low bits, 1 rounds them.")
]


def decode_scale(
    word: WordArgument = None,
    encoded: Encode = None,
    round_mode: RoundMode = 0,
    as_json: Json = False,
) -> None:
    """Unpack what npu_trans_quant_param packs, or pack it.

    \b
    For example:
      npusim decode-scale 0x4000_3F80_0000
      npusim decode-scale --encode 0.1,-3
    """
    from npusim.cli.decode_scale import decode_scale

    decode_scale(word, encoded, round_mode, as_json)
