"""`npusim run`: run an operator and say what came out and how long it took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

import npusim
from npusim.chip import L2_STATES, L2State
from npusim.cli import folder
from npusim.cli.call import arguments, attribute, chip
from npusim.cli.exports import Writer, formats
from npusim.cli.progress import shown
from npusim.cli.screen import json_text, show
from npusim.cli.summary import summary
from npusim.data import folders
from npusim.exports import Level, Scale
from npusim.trace.summary import WORDS

__all__ = ["l2_state", "run_operator"]


def l2_state(word: str) -> L2State:
    """What the word of `--l2` says of the L2 at launch."""
    for state in L2_STATES:
        if state == word:
            return state
    if "=" not in word:
        return tuple(word.split(","))
    pairs = (part.partition("=") for part in word.split(","))
    return {name: attribute(share) if sign else 1 for name, sign, share in pairs}


def run_operator(
    op: str,
    device: str,
    inputs: list[str],
    attributes: list[str],
    *,
    settings: list[str],
    output: Path | None,
    force: bool,
    as_json: bool,
    export: str | None,
    trace_time: Scale,
    level: Level | None,
    l2: str,
    timing: bool,
    **options: Any,
) -> None:
    """Run *op* and print what came out; *options* are those of :func:`npusim.run`."""
    call_arguments = arguments(op, inputs, attributes)
    spec = chip(device, settings, "run")
    chosen = formats(export, trace_time, level, output is not None, timing)
    if output is not None:
        folders.check(output, force, folder.RUN)
    with shown() as progress:
        run = npusim.run(
            op,
            **call_arguments,
            device=spec,
            l2=l2_state(l2),
            timing=timing,
            progress=progress,
            **options,
        )
        typed = {"op": [op], "input": inputs, "attr": attributes}
        exports = Writer(run, chosen, trace_time, level, progress)
        written = []
        if output is not None:
            written = folder.write(run, output, typed, exports.write, force=force)
    if exports.is_joined:
        typer.echo(f"npusim: exported timelines are {WORDS}; --level full writes all", err=True)
    if exports.left_out:
        lost = ", ".join(exports.left_out)
        typer.echo(f"npusim: left out of visualize_data.bin, as too large: {lost}", err=True)
    if as_json:
        typer.echo(json_text(run.to_json()))
        return
    show(summary(run, settings))
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")
