"""`npusim sweep`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from npusim.cli.commands import completion
from npusim.cli.commands.formats import RowFormat
from npusim.cli.commands.opening import Open, page_of
from npusim.cli.commands.run import (
    Attributes,
    CacheOption,
    EngineOption,
    Force,
    ICacheOption,
    Inputs,
    Json,
    L2Option,
    Operator,
    Settings,
)

__all__ = ["sweep_operator"]


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE]...",
        help="More values, as bash writes them for braces without quotes.",
    ),
]
Devices = Annotated[
    list[str],
    typer.Option(
        "--device",
        "-d",
        metavar="NAME,...",
        help="Chips, by name or file.",
        autocompletion=completion.devices,
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="NAME,...|all",
        help="The vendor's kernels to time; all: the default and every one that accepts the call.",
        autocompletion=completion.templates,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Write CSV, JSON, a page and a picture here. DIR.partial holds an interrupted"
        " sweep, which the same command resumes.",
    ),
]
FormatOption = Annotated[RowFormat, typer.Option("--format", "-f", help="How to print the rows.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", metavar="N", min=1, help="Processes. Default: one for each processor."
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Use the workers of this Dask scheduler, such as tcp://HOST:8786.",
    ),
]
LOAD = ("tp", "ep", "dp", "batch", "context", "prompt", "quant")
OfModel = Annotated[str | None, typer.Option(metavar="VALUE,...", hidden=True)]
"""An option of `npusim model`, with one value or several."""


def sweep_operator(
    op: Operator,
    device: Devices,
    words: Words = None,
    inputs: Inputs = None,
    attributes: Attributes = None,
    template: Template = None,
    setting: Settings = None,
    output: Output = None,
    force: Force = False,
    form: FormatOption = RowFormat.TEXT,
    as_json: Json = False,
    l2: L2Option = "cold",
    icache: ICacheOption = None,
    engine: EngineOption = "auto",
    cache: CacheOption = None,
    jobs: Jobs = None,
    dask: Dask = None,
    is_opened: Open = False,
    tp: OfModel = None,
    ep: OfModel = None,
    dp: OfModel = None,
    batch: OfModel = None,
    context: OfModel = None,
    prompt: OfModel = None,
    quant: OfModel = None,
) -> None:
    """Time an operator over shapes, chips and settings.

    Values in braces vary: {1..64}, {1..64..x2}, {1,2,4}, and {m=1..64} in one word with {m} in
    others. The exit code is 1 if a cell was refused; all others are still timed. In place of OP,
    the config.json of a model is swept by the options of npusim model; engines by -a engine=a,b.

    \b
    For example:
      npusim sweep npu_dynamic_quant -d A2,310P \\
        -i 'x=spec:{1..64..x2}x4096:float16'
      npusim sweep Qwen3-32B/config.json -d A2 --tp 2,4 --batch 1,16
    """
    form = RowFormat.JSON if as_json else form
    page = page_of(output, "sweep.html", is_opened, "sweep")
    load = zip(LOAD, (tp, ep, dp, batch, context, prompt, quant), strict=True)
    of_model = [f"{name}={value}" for name, value in load if value is not None]
    if Path(op).suffix == ".json" or Path(op).is_dir():
        unused: dict[str, object] = {"NAME=VALUE": words, "-i": inputs, "--template": template}
        unused |= {"--set": setting, "--icache": icache, "--cache": cache, "--jobs": jobs}
        over = [*(attributes or []), *of_model]
        _sweep_model(Path(op), device, over, unused | {"--dask": dask}, output, force, form)
    else:
        typed = op, device, words or [], inputs or [], attributes or []
        how: dict[str, Any] = {"template": template, "settings": setting or [], "output": output}
        how |= {"force": force, "form": form, "dask": dask, "l2": l2, "icache": icache}
        _sweep_operator(of_model, *typed, **how, engine=engine, cache=cache, jobs=jobs)
    if page is not None:
        from npusim.cli.screen import open_page

        open_page(page)


def _sweep_model(*given: Any) -> None:
    from npusim.cli.model_sweep import sweep_model

    sweep_model(*given)


def _sweep_operator(of_model: list[str], op: str, *given: Any, **how: Any) -> None:
    from npusim.cli.sweep import refuse_load, sweep_operator

    refuse_load(op, of_model)
    sweep_operator(op, *given, **how)
