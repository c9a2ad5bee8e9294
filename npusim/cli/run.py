"""`npusim run`: run an operator and say what came out and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import typer

import npusim
from npusim.ascendc import Build, HostProgram, names_source
from npusim.chip import L2_STATES, L2State, Progress
from npusim.cli.call import UsageError, arguments, attribute, chip, kernel_of
from npusim.cli.exports import Writer, formats
from npusim.cli.progress import shown
from npusim.data import folders
from npusim.data.json import json_text
from npusim.run.result import trials_json
from npusim.run.runs import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from npusim.exports import Format, Level, Scale

__all__ = ["Answer", "l2_state", "run", "source_build"]


def l2_state(word: str) -> L2State:
    """What the word of `--l2` says of the L2 at launch."""
    for state in L2_STATES:
        if state == word:
            return state
    if "=" not in word:
        return tuple(word.split(","))
    pairs = (part.partition("=") for part in word.split(","))
    return {name: attribute(share) if sign else 1 for name, sign, share in pairs}


def _check_no_times(asked: Mapping[str, bool]) -> None:
    for key, is_asked in asked.items():
        if is_asked:
            option = f"--{key.replace('_', '-')}"
            raise UsageError(
                f"run: {option} must come with times, which it is about; leave --no-timing out"
            )


STDERR = 2
"""The number of the file where a program prints while JSON goes to stdout."""
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What is made of a run: a folder, JSON or words."""

    output: Path | None
    force: bool
    as_json: bool
    export: str | None
    trace_time: Scale
    level: Level | None
    timing: bool
    is_opened: bool
    """Whether a page of the run is written and opened."""
    asked: Asked
    settings: list[str]
    typed: dict[str, list[str]]
    """The words of the command line that made the arguments."""

    def check(self) -> list[Format]:
        """The formats to export, before anything runs; raises UsageError and FolderError."""
        if not self.timing:
            _check_no_times(self.asked | {"open": self.is_opened})
        has_folder = self.output is not None
        chosen = formats(self.export, self.trace_time, self.level, has_folder, self.timing)
        if self.output is not None:
            from npusim.cli import folder  # loads what writes and reads folders

            folders.check(self.output, self.force, folder.RUN)
        return chosen

    def give(self, run: Run, chosen: list[Format], progress: Progress) -> None:
        """Write and print *run*, with what is asked for besides."""
        exports = Writer(run, chosen, self.trace_time, self.level, progress)
        written = []
        if self.output is not None:
            from npusim.cli import folder

            written = folder.write(run, self.output, self.typed, exports.write, force=self.force)
        if self.is_opened:
            self._open_page(run)
        more = _More(run, self.asked, progress)
        _say_what_lacks(exports)
        if self.as_json:
            typer.echo(json_text(run.to_json() | more.to_json()))
            return
        from npusim.cli.screen import show
        from npusim.cli.summary import summary

        show(summary(run, self.settings), *more.shown())
        if self.output is not None:
            show(f"\nwrote {', '.join(written)} to {self.output}")

    def _open_page(self, run: Run) -> None:
        """Write the page of *run*, next to its folder or into a new one, and open it."""
        from npusim.cli.screen import open_page

        if self.output is None:
            page = Path(mkdtemp(prefix="npusim-"), "report.html")
        else:
            page = self.output.with_name(f"{self.output.name}.html")
        open_page(run.report(page, force=self.force))


def run(
    op: str,
    device: str,
    words: list[str],
    inputs: list[str],
    attributes: list[str],
    *,
    blocks: int | None,
    **options: Any,
) -> None:
    """Run what *op* names: a program, which is given *words*, or an operator or a kernel."""
    if names_source(op) and ":" not in op:
        _run_program(Path(op), device, words, **options)
    else:
        _run_operator(op, device, inputs, attributes, blocks=blocks, **options)


def _run_operator(
    op: str,
    device: str,
    inputs: list[str],
    attributes: list[str],
    *,
    blocks: int | None,
    timeout_s: float | None,
    build: Build,
    answer: Answer,
    l2: str,
    **options: Any,
) -> None:
    """Run *op* and print what came out, and what is asked for besides; *options* are those of
    :func:`npusim.run`.

    *blocks*, *timeout_s* and *build* are for a kernel of C++.
    """
    own = kernel_of(op, blocks, timeout_s, build)
    spec = chip(device, answer.settings, "run")
    call_arguments = arguments(own, inputs, attributes)
    chosen = answer.check()
    with shown() as progress:
        run = npusim.run(
            own,
            **call_arguments,
            device=spec,
            l2=l2_state(l2),
            timing=answer.timing,
            progress=progress,
            **options,
        )
        answer.give(run, chosen, progress)


def watched(text: str) -> tuple[int, str]:
    """A line and the name of what is printed behind it, of a --watch."""
    number, _, name = text.partition(":")
    if not number.isdigit() or not name:
        raise typer.BadParameter(f"--watch must be LINE:NAME, as in 27:zLocal, not {text!r}")
    return int(number), name


def source_build(
    define: Sequence[str] | None,
    include: Sequence[Path] | None,
    source: Sequence[Path] | None,
    watch: Sequence[str] | None,
    auto_sync: bool,
    strict: bool,
    tiling_headers: Sequence[Path] | None,
    tiling_struct: str,
    adv_api: Path | None,
) -> Build:
    """How a source of C++ is built, as the command line says."""
    return Build(
        defines=tuple(define or ()),
        include=tuple(include or ()),
        sources=tuple(source or ()),
        watches=tuple(map(watched, watch or ())),
        auto_sync=auto_sync,
        is_strict=strict,
        tiling_headers=tuple(tiling_headers or ()),
        tiling_struct=tiling_struct,
        adv_api=adv_api,
    )


def _run_program(
    file: Path,
    device: str,
    words: list[str],
    *,
    timeout_s: float | None,
    build: Build,
    answer: Answer,
    l2: str,
    **options: Any,
) -> None:
    """Run the program of *file* with *words*, and answer for each kernel that it launches, in a
    folder.

    Raises typer.Exit with its exit code.
    """
    spec = chip(device, answer.settings, "run")
    chosen = answer.check()
    program = HostProgram(file, spec, build)
    prints_to = STDERR if answer.as_json else None
    for launch, memory in program.launches(words, timeout_s, prints_to):
        if not launch.programs.stored:
            typer.echo(
                f"npusim: launch {launch.number}, {launch.name}, stores nothing and is not timed",
                err=True,
            )
            continue
        given = [operand.array for operand in launch.operands.values()]
        run = npusim.run(
            launch, *given, device=spec, l2=l2_state(l2), timing=answer.timing, **options
        )
        for name, found in run.outputs.items():
            assert isinstance(found, np.ndarray)
            memory[name][:] = found.reshape(-1).view(np.uint8)
        folder = answer.output and answer.output / f"{launch.number}_{launch.name}"
        with shown() as progress:
            replace(answer, output=folder).give(run, chosen, progress)
    if program.exit_code:
        raise typer.Exit(program.exit_code)
