"""`npusim run`: run an operator and say what came out and how long it took."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

import npusim
from npusim import devices
from npusim.chip import L2_STATES, L2State
from npusim.cli import folder
from npusim.cli.advice import advice_lines
from npusim.cli.call import UsageError, arguments, attribute
from npusim.cli.critical_path import path_tables
from npusim.cli.exports import Writer, formats
from npusim.cli.progress import shown
from npusim.cli.screen import json_text, show
from npusim.cli.summary import summary
from npusim.exports import Level, Scale
from npusim.trace.summary import WORDS

__all__ = ["run_operator"]


def _l2(word: str) -> L2State:
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
    output: Path | None,
    force: bool,
    as_json: bool,
    export: str | None,
    trace_time: Scale,
    level: Level | None,
    l2: str,
    timing: bool,
    advice: bool,
    critical_path: bool,
    **options: Any,
) -> None:
    """Run *op* and print what came out; *options* are those of :func:`npusim.run`."""
    for option, is_asked in (("--advice", advice), ("--critical-path", critical_path)):
        if is_asked and not timing:
            raise UsageError(
                f"run: {option} must come with times, which it is about; leave --no-timing out"
            )
    call_arguments = arguments(op, inputs, attributes)
    spec = devices.load(device)
    chosen = formats(export, trace_time, level, output is not None, timing)
    if output is not None:
        folder.check(output, force)
    with shown() as progress:
        run = npusim.run(
            op,
            **call_arguments,
            device=spec,
            l2=_l2(l2),
            timing=timing,
            progress=progress,
            **options,
        )
        typed = {"op": [op], "input": inputs, "attr": attributes}
        exports = Writer(run, chosen, trace_time, level, progress)
        written = []
        if output is not None:
            written = folder.write(run, output, typed, exports.write, force=force)
        # Nothing to do takes no time, and nothing gains.
        told = run.advice(progress) if advice and run.trace is not None else []
        path = run.critical_path() if critical_path and run.trace is not None else None
    if exports.is_joined:
        typer.echo(f"npusim: exported timelines are {WORDS}; --level full writes all", err=True)
    if exports.left_out:
        lost = ", ".join(exports.left_out)
        typer.echo(f"npusim: left out of visualize_data.bin, as too large: {lost}", err=True)
    if as_json:
        facts = run.to_json() | ({"advice": [asdict(each) for each in told]} if advice else {})
        found = {"critical_path": path.to_json() if path else None} if critical_path else {}
        typer.echo(json_text(facts | found))
        return
    parts = [summary(run)]
    parts += [path_tables(path)] if path else []
    parts += [advice_lines(told)] if advice else []
    show(*parts)
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")
