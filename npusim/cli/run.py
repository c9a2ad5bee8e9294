"""`npusim run`: run an operator and say what came out and how long it took."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

import npusim
from npusim.chip import L2_STATES, L2State, Progress
from npusim.cli import folder
from npusim.cli.advice import advice_lines
from npusim.cli.call import UsageError, arguments, attribute, chip
from npusim.cli.critical_path import path_tables
from npusim.cli.exports import Writer, formats
from npusim.cli.progress import shown
from npusim.cli.screen import json_text, show
from npusim.cli.summary import summary
from npusim.data import folders
from npusim.exports import Level, Scale
from npusim.run.runs import Run
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


def _check_no_times(advice: bool, critical_path: bool) -> None:
    for option, is_asked in (("--advice", advice), ("--critical-path", critical_path)):
        if is_asked:
            raise UsageError(
                f"run: {option} must come with times, which it is about; leave --no-timing out"
            )


class _More:
    """What is asked for besides the summary of a run; nothing of one that had nothing to do."""

    def __init__(self, run: Run, advice: bool, critical_path: bool, progress: Progress) -> None:
        ran = run.trace is not None
        asked = {"advice": advice, "critical_path": critical_path}
        self._keys = [key for key, is_asked in asked.items() if is_asked]
        self._advice = run.advice(progress) if advice and ran else []
        self._path = run.critical_path() if critical_path and ran else None

    def to_json(self) -> dict[str, object]:
        found = {
            "advice": [asdict(each) for each in self._advice],
            "critical_path": self._path.to_json() if self._path else None,
        }
        return {key: found[key] for key in self._keys}

    def shown(self) -> list[RenderableType]:
        parts: list[RenderableType] = [path_tables(self._path)] if self._path else []
        return [*parts, advice_lines(self._advice)] if "advice" in self._keys else parts


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
    advice: bool,
    critical_path: bool,
    **options: Any,
) -> None:
    """Run *op* and print what came out; *options* are those of :func:`npusim.run`."""
    if not timing:
        _check_no_times(advice, critical_path)
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
        more = _More(run, advice, critical_path, progress)
    if exports.is_joined:
        typer.echo(f"npusim: exported timelines are {WORDS}; --level full writes all", err=True)
    if exports.left_out:
        lost = ", ".join(exports.left_out)
        typer.echo(f"npusim: left out of visualize_data.bin, as too large: {lost}", err=True)
    if as_json:
        typer.echo(json_text(run.to_json() | more.to_json()))
        return
    show(summary(run, settings), *more.shown())
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")
