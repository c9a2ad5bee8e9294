"""`npusim run`, as it is typed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from npusim.cli.commands import completion
from npusim.cli.commands.level import LevelOption

__all__ = ["Attributes", "Device", "Inputs", "Json", "Operator", "Settings", "run_operator"]


class TimeScale(StrEnum):
    """What times of a trace count."""

    US = "us"
    CYCLES = "cycles"


INPUT = """A tensor: FILE.npy, FILE.npy:bfloat16, randn:8x16:float16:seed=1, rand:8x16,
randint:64:int8:low=-8:high=8, zeros:8, ones:scalar, full:12:float32:value=3, arange:2x6,
spec:8192x8192:float16 (time only), none. A matrix may end in :layout=FRACTAL_NZ or
:transposed=true."""


Operator = Annotated[
    str,
    typer.Argument(
        metavar="OP",
        autocompletion=completion.operators,
        help="An operator, as `npusim ops` lists it; your own kernel, FILE.py:FUNCTION or "
        "FILE.cpp:KERNEL; or FILE.asc, a program that launches kernels. The whole "
        "file is run.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        *("--device", "-d"),
        help="A chip's name, or a file that ends in .toml.",
        autocompletion=completion.devices,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        *("--input", "-i"),
        metavar="NAME=VALUE",
        help=INPUT,
        autocompletion=completion.tensors,
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attr",
        "-a",
        metavar="NAME=VALUE",
        help="An attribute, of the type that `npusim explain OP` lists: true, none, a number, "
        "a word, or numbers with commas between.",
        autocompletion=completion.attributes,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a number of the chip, as `npusim devices show` names it: by a factor as in "
        "gm.read_bytes_per_s=x2, or to a number, with a unit or without: 3.2e12, 3.2TB/s.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write values, counters and pictures here."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Let -o replace the folder of an earlier run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Open = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Write a page of the run, next to the folder of -o if given, and open it in a"
        " browser.",
    ),
]
L2Option = Annotated[
    str,
    typer.Option(
        metavar="cold|warm|repeat|NAME,NAME=SHARE",
        help="What the L2 holds at launch: nothing, inputs and outputs, what an earlier "
        "run of the same call left, or the named inputs, or shares of them from 0 to "
        "1.",
    ),
]
ICacheOption = Annotated[
    str | None,
    typer.Option(
        "--icache",
        metavar="cold|warm",
        help="Whether the instruction caches hold the kernel at launch. Default: warm with"
        " --l2 warm and repeat, else cold.",
    ),
]
Values = Annotated[bool, typer.Option("--values/--no-values", help="Compute the values.")]
Timing = Annotated[bool, typer.Option("--timing/--no-timing", help="Compute the time.")]
Export = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FORMATS",
        help="Write traces for other tools into -o too: msprof, perfetto, or msprof,perfetto.",
    ),
]
TraceTime = Annotated[
    TimeScale,
    typer.Option(
        help="What a microsecond of a Perfetto trace stands for: one, or a thousand cycles."
    ),
]
EveryCore = Annotated[
    bool,
    typer.Option("--every-core", help="Simulate every core, also those that do the same work."),
]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|simpy|compiled",
        help="The engine that simulates times; both give the same times. Auto is what "
        "NPUSIM_ENGINE says, or else compiled, which is faster, where npusim was "
        "built with it.",
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Store times in this folder and reuse those of the same call, chip and "
        "version. Default: NPUSIM_CACHE.",
    ),
]


AdviceOption = Annotated[
    bool,
    typer.Option(
        "--advice",
        help="Simulate changes that could help and print those that gain. Takes as long as"
        " ten to thirty runs.",
    ),
]
ProveOption = Annotated[
    bool,
    typer.Option(
        "--prove",
        help="Print how the limit was found: the same programs on chips that are 5 % "
        "faster in one respect.",
    ),
]
PathOption = Annotated[
    bool,
    typer.Option(
        "--critical-path",
        help="Print the critical path, flags between cores on it, slack of pipes and core balance.",
    ),
]


ProgramArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGUMENTS",
        help="Arguments of a program with `main`, after --.",
        show_default=False,
    ),
]
Blocks = Annotated[
    int | None,
    typer.Option(min=1, help="Blocks to launch of a kernel in C++."),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.001, help="Stop a kernel in C++ that runs for longer."),
]

Define = Annotated[
    list[str] | None,
    typer.Option(
        *("--define", "-D"),
        metavar="NAME=VALUE",
        help="A macro for building C++.",
    ),
]
Include = Annotated[
    list[Path] | None,
    typer.Option(*("--include", "-I"), metavar="DIR", help="A folder of headers for building C++."),
]
Sources = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Another C++ source to link with the program."),
]
TilingHeaders = Annotated[
    list[Path] | None,
    typer.Option(
        "--tiling-header",
        metavar="FILE",
        help="A host header that defines the tiling of a kernel in C++.",
    ),
]
TilingStruct = Annotated[
    str,
    typer.Option(
        "--tiling-struct",
        metavar="NAME",
        help="The tiling structure that -a fills field by field, if there are several.",
    ),
]
AdvApi = Annotated[
    Path | None,
    typer.Option(
        "--adv-api",
        metavar="DIR",
        help="A checkout of asc-devkit whose headers stand for the layers above the basic API.",
    ),
]
Watch = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LINE:NAME",
        help="Print a tensor after that line of C++, each time a core gets there.",
    ),
]

AutoSync = Annotated[
    bool,
    typer.Option(
        "--auto-sync/--no-auto-sync",
        help="Insert flags and barriers into a kernel in C++ where the vendor's compiler "
        "does so (--cce-auto-sync).",
    ),
]

Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse also harmless hazards, which the vendor's own kernels have too.",
    ),
]


def run_operator(
    op: Operator,
    device: Device,
    program_arguments: ProgramArguments = None,
    inputs: Inputs = None,
    attributes: Attributes = None,
    blocks: Blocks = None,
    timeout: Timeout = None,
    define: Define = None,
    include: Include = None,
    source: Sources = None,
    headers: TilingHeaders = None,
    struct: TilingStruct = "",
    adv_api: AdvApi = None,
    watch: Watch = None,
    auto_sync: AutoSync = True,
    strict: Strict = False,
    setting: Settings = None,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
    l2: L2Option = "cold",
    icache: ICacheOption = None,
    values: Values = True,
    timing: Timing = True,
    every_core: EveryCore = False,
    engine: EngineOption = "auto",
    cache: CacheOption = None,
    export: Export = None,
    trace_time: TraceTime = TimeScale.US,
    level: LevelOption = None,
    prove: ProveOption = False,
    critical_path: PathOption = False,
    advice: AdviceOption = False,
    is_opened: Open = False,
) -> None:
    """Run an operator, or your own kernel, on a chip.

    \b
    For example:
      npusim run matmul -d A2 -i x1=randn:8x64:float16 -i x2=randn:64x32:float16
      npusim run npu_dynamic_quant -d "Atlas 300I Pro" -i x=spec:4096x4096:float16
    """
    from npusim.cli.run import Answer, run, source_build

    answer = Answer(
        *(output, force, as_json, ",".join(export) if export else None, trace_time.value),
        *(None if level is None else level.value, timing, is_opened),
        asked={"prove": prove, "critical_path": critical_path, "advice": advice},
        settings=setting or [],
        typed={"op": [op], "input": inputs or [], "attr": attributes or []},
    )
    build = source_build(
        define, include, source, watch, auto_sync, strict, headers, struct, adv_api
    )
    options: dict[str, Any] = {"timeout_s": timeout, "build": build, "answer": answer, "l2": l2}
    options |= {"icache": icache, "values": values, "every_core": every_core, "engine": engine}
    options |= {"cache": cache, "blocks": blocks}
    run(op, device, program_arguments or [], inputs or [], attributes or [], **options)
