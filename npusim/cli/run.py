"""`npusim run`: run an operator and say what came out and how long it took."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import npusim
from npusim import devices
from npusim.chip import L2_STATES, L2State
from npusim.cli import folder
from npusim.cli.call import arguments, attribute
from npusim.cli.exports import Writer, formats
from npusim.cli.progress import shown
from npusim.cli.screen import json_text, show
from npusim.cli.summary import summary

__all__ = ["Attributes", "Device", "Inputs", "Json", "Operator", "run_operator"]


class TimeScale(StrEnum):
    """What times of a trace count."""

    US = "us"
    CYCLES = "cycles"


class ICacheState(StrEnum):
    """What --icache may be."""

    COLD = "cold"
    WARM = "warm"


INPUT = """A tensor: FILE.npy, FILE.npy:bfloat16, randn:8x16:float16:seed=1, rand:8x16,
randint:64:int8:low=-8:high=8, zeros:8, ones:scalar, full:12:float32:value=3, arange:2x6,
spec:8192x8192:float16 (time only), none. A matrix may end in :layout=FRACTAL_NZ or
:transposed=true."""


Operator = Annotated[
    str,
    typer.Argument(
        metavar="OP",
        help="An operator, as `npusim ops` lists it, or FILE.py:FUNCTION, a kernel of your own: "
        "the file is run, with all that stands in it.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", "-d", help="A chip's name, or a file that ends in .toml.")
]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", "-i", metavar="NAME=VALUE", help=INPUT)
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attr",
        "-a",
        metavar="NAME=VALUE",
        help="An attribute: true, false, none, a number or a word.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write values, numbers and pictures here."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Let -o replace the folder of an earlier run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
L2Option = Annotated[
    str,
    typer.Option(
        metavar="cold|warm|repeat|NAME,NAME=SHARE",
        help="What lies in the L2 at launch: nothing, inputs and outputs, what earlier runs of the "
        "same left there, or the inputs named, or shares of them from 0 to 1.",
    ),
]
ICacheOption = Annotated[
    ICacheState | None,
    typer.Option(
        "--icache",
        help="Whether the instruction caches hold the kernel at launch; unless given, they do with "
        "--l2 warm and repeat.",
    ),
]
Values = Annotated[bool, typer.Option("--values/--no-values", help="Compute the values.")]
Timing = Annotated[bool, typer.Option("--timing/--no-timing", help="Compute the time.")]
Export = Annotated[
    str | None,
    typer.Option(
        metavar="FORMATS",
        help="Traces and tables to write into -o as well: msprof, perfetto, or both with a comma.",
    ),
]
TraceTime = Annotated[
    TimeScale,
    typer.Option(help="What a microsecond of a Perfetto trace is: one, or a thousand cycles."),
]
EveryCore = Annotated[
    bool, typer.Option("--every-core", help="Time each core, also those that do the same.")
]


def _l2(word: str) -> L2State:
    for state in L2_STATES:
        if state == word:
            return state
    if "=" not in word:
        return tuple(word.split(","))
    pairs = (part.partition("=") for part in word.split(","))
    return {name: attribute(share) if sign else 1 for name, sign, share in pairs}


def run_operator(
    op: Operator,
    device: Device,
    inputs: Inputs = None,
    attributes: Attributes = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
    l2: L2Option = "cold",
    icache: ICacheOption = None,
    values: Values = True,
    timing: Timing = True,
    every_core: EveryCore = False,
    export: Export = None,
    trace_time: TraceTime = TimeScale.US,
) -> None:
    """Run an operator, or a kernel of your own, on a chip.

    For example: npusim run npu_quantize -d "Atlas 300I Pro" -i input=randn:8x16
    -i scales=full:1:value=0.1 -a dtype=qint8
    """
    call_arguments = arguments(op, inputs or (), attributes or ())
    spec = devices.load(device)
    chosen = formats(export, trace_time.value, output is not None, timing)
    if output is not None:
        folder.check(output, force)
    with shown() as progress:
        run = npusim.run(
            op,
            **call_arguments,
            device=spec,
            values=values,
            timing=timing,
            l2=_l2(l2),
            icache=icache.value if icache else None,
            every_core=every_core,
            progress=progress,
        )
        typed = {"op": [op], "input": inputs or [], "attr": attributes or []}
        exports = Writer(run, chosen, trace_time.value, progress)
        written = []
        if output is not None:
            written = folder.write(run, output, typed, exports.write, force=force)
    if exports.left_out:
        lost = ", ".join(exports.left_out)
        typer.echo(f"npusim: left out of visualize_data.bin, as too large: {lost}", err=True)
    if as_json:
        typer.echo(json_text(run.to_json()))
        return
    show(summary(run))
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")
