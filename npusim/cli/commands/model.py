"""`npusim model`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npusim.cli.commands import completion
from npusim.cli.commands.opening import Open, page_of
from npusim.cli.commands.run import Device

__all__ = ["time_model"]

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="The config.json of a model in transformers' form, or its folder."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="What serves the model: eager, vllm-ascend, vllm-ascend-full, xlite, mindie, or a "
        "file that ends in .toml.",
        autocompletion=completion.engines,
    ),
]
Quant = Annotated[str, typer.Option("--quant", help="Weights: float, w8a8, w8a8-static or w4a16.")]

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write two pages and JSON here."),
]


def time_model(
    config: Config,
    device: Device,
    tp: Annotated[int, typer.Option(help="Cards that share each layer (tensor parallel).")] = 1,
    ep: Annotated[
        int, typer.Option(help="Cards that share the experts (expert parallel): 1, or tp x dp.")
    ] = 1,
    dp: Annotated[int, typer.Option(help="Data parallel groups of tp cards.")] = 1,
    batch: Annotated[int, typer.Option(help="Requests decoded together, on all cards.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of context of each request.")] = 1024,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt that prefill reads.")] = 512,
    quant: Quant = "float",
    engine: Engine = "vllm-ascend",
    output: Output = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let -o replace the folder of an earlier step.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    is_opened: Open = False,
) -> None:
    """Time a step of a served model.

    Tokens a second, TPOT, TTFT and memory, and what they are made of.

    Kernels are timed by shapes alone. Half of such times are within the error bars.

    \b
    For example:
      npusim model Qwen3-32B/config.json -d "Atlas 800I A2" --tp 4 \\
        --batch 16 --context 2048 --quant w8a8
    """
    from npusim.cli.model import time_model
    from npusim.cli.screen import open_page

    page = page_of(output, "decode.html", is_opened, "model")
    load = {"tp": tp, "ep": ep, "dp": dp, "batch": batch, "context": context, "prompt": prompt}
    time_model(config, device, load | {"quant": quant, "engine": engine}, output, force, as_json)
    if page is not None:
        open_page(page)
