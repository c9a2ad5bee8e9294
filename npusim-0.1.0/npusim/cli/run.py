"""`npusim run`: run an operator and say what came out and how long it took."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

import npusim
from npusim.chip import L2_STATES, L2State, Progress
from npusim.cli.call import UsageError, arguments, attribute, chip
from npusim.cli.exports import Writer, formats
from npusim.cli.progress import shown
from npusim.data import folders
from npusim.data.json import json_text
from npusim.run.result import trials_json
from npusim.run.runs import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from npusim.exports import Level, Scale

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


def _check_no_times(asked: Asked) -> None:
    for key, is_asked in asked.items():
        if is_asked:
            option = f"--{key.replace('_', '-')}"
            raise UsageError(
                f"run: {option} must come with times, which it is about; leave --no-timing out"
            )


Asked = dict[Literal["prove", "critical_path", "advice"], bool]
"""What is printed after the summary of a run -> whether it was asked for."""


class _More:
    """What is asked for besides the summary of a run; nothing of one that had nothing to do."""

    def __init__(self, run: Run, asked: Asked, progress: Progress) -> None:
        ran = run.trace is not None
        self._run, self._asked = run, asked
        self._advice = run.advice(progress) if asked["advice"] and ran else []
        self._path = run.critical_path() if asked["critical_path"] and ran else None

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if self._asked["prove"]:
            found |= trials_json(self._run)
        if self._asked["critical_path"]:
            found["critical_path"] = self._path.to_json() if self._path else None
        if self._asked["advice"]:
            found["advice"] = [asdict(each) for each in self._advice]
        return found

    def shown(self) -> list[RenderableType]:
        # Who asks for JSON does without what draws tables.
        from npusim.cli.advice import advice_lines
        from npusim.cli.critical_path import path_tables
        from npusim.cli.trials import trial_table

        parts: list[RenderableType] = []
        if self._asked["prove"] and self._run.trials:
            parts.append(trial_table(self._run))
        if self._path:
            parts.append(path_tables(self._path))
        if self._asked["advice"]:
            parts.append(advice_lines(self._advice))
        return parts


def _say_what_lacks(exports: Writer) -> None:
    """Say on stderr what is not in the files that were written."""
    if exports.is_joined:
        from npusim.trace.summary import WORDS

        typer.echo(f"npusim: exported timelines are {WORDS}; --level full writes all", err=True)
    if exports.left_out:
        lost = ", ".join(exports.left_out)
        typer.echo(f"npusim: left out of visualize_data.bin, as too large: {lost}", err=True)


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
    asked: Asked,
    **options: Any,
) -> None:
    """Run *op* and print what came out, and what is *asked* for besides; *options* are those of
    :func:`npusim.run`."""
    if not timing:
        _check_no_times(asked)
    call_arguments = arguments(op, inputs, attributes)
    spec = chip(device, settings, "run")
    chosen = formats(export, trace_time, level, output is not None, timing)
    if output is not None:
        from npusim.cli import folder  # loads what writes and reads folders

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
        more = _More(run, asked, progress)
    _say_what_lacks(exports)
    if as_json:
        typer.echo(json_text(run.to_json() | more.to_json()))
        return
    from npusim.cli.screen import show
    from npusim.cli.summary import summary

    show(summary(run, settings), *more.shown())
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")
