"""`npusim compare`, as it is typed."""

from __future__ import annotations

from typing import Annotated

import typer

from npusim.cli.commands.run import (
    AdvApi,
    Attributes,
    AutoSync,
    Blocks,
    Define,
    Include,
    Inputs,
    Json,
    Settings,
    Sources,
    Strict,
    TilingHeaders,
    TilingStruct,
    Timeout,
)

__all__ = ["compare_files"]

A = Annotated[
    str,
    typer.Argument(
        metavar="A",
        help="FILE.npy, FILE.npy:bfloat16, a generator of `run`, the folder of a model's run, or "
        "FILE.cpp:KERNEL.",
    ),
]
B = Annotated[
    str,
    typer.Argument(metavar="B", help="The same: the golden one; for a kernel, an operator."),
]
More = Annotated[list[str] | None, typer.Argument(metavar="C", help="More runs of models.")]
Chip = Annotated[
    str | None,
    typer.Option(*("--device", "-d"), help="The chip that kernel and operator run on."),
]
Pointers = Annotated[
    list[str] | None,
    typer.Option(
        *("--pointer", "-p"),
        metavar="NAME=WHAT",
        help="What a pointer of the kernel gets: a tensor of the operator, a tensor as in "
        "-i, FILE.bin, or FILE.py:FUNCTION, which returns bytes or an array for the "
        "operator's problem and plan. The other pointers get the operator's inputs "
        "and then its outputs, in order.",
    ),
]


def compare_files(
    a: A,
    b: B,
    more: More = None,
    device: Chip = None,
    inputs: Inputs = None,
    attributes: Attributes = None,
    pointers: Pointers = None,
    blocks: Blocks = None,
    timeout: Timeout = None,
    define: Define = None,
    include: Include = None,
    source: Sources = None,
    headers: TilingHeaders = None,
    struct: TilingStruct = "",
    adv_api: AdvApi = None,
    auto_sync: AutoSync = True,
    strict: Strict = False,
    setting: Settings = None,
    as_json: Json = False,
) -> None:
    """Compare arrays, runs of models, or kernels.

    Two arrays are compared by the vendor's measures of accuracy; the exit code is 1 if it is not
    reached. Runs of models are compared by their times. A kernel in C++ and an operator are run on
    the same inputs and compared by bits, micro-ops of the first core and times; the exit code is 1
    if a bit differs. -a gives the operator's attributes and the kernel's scalars.

    \b
    For example:
      npusim compare out/output.npy golden.npy
      npusim compare add.cpp:add add -d A2 \\
        -i x=randn:4096 -i other=like:x -a n=4096
    """
    from npusim.cli.compare import compare_files
    from npusim.cli.kernel_comparison import Typed, compare_kernels, is_kernel
    from npusim.cli.run import source_build

    typed = Typed(
        inputs=inputs or [],
        attributes=attributes or [],
        pointers=pointers or [],
        settings=setting or [],
    )
    if is_kernel(a):
        build = source_build(
            define, include, source, None, auto_sync, strict, headers, struct, adv_api
        )
        compare_kernels(a, [b, *(more or [])], device, typed, blocks, timeout, build, as_json)
    else:
        typed.check_unused(a, device)
        compare_files(a, b, more or [], as_json)
