"""How far a long run has come, on stderr: a bar, or now and then a line where no terminal is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import typer

from npusim.data.platform import HAS_THREADS

if TYPE_CHECKING:
    from rich.progress import TaskID

    from npusim.chip import Stage

__all__ = ["Shown", "shown"]

PATIENCE_S = 1.0
"""Shorter runs show no bar."""
LINE_EVERY_S = 10.0
"""Seconds before the first line, and between lines: a log is to be read, not to be filled."""

STAGES: dict[Stage, str] = {
    "programs": "Writing programs",
    "checks": "Checking programs",
    "values": "Computing values",
    "time": "Simulating timing",
    "advice": "Trying changes",
    "kernels": "Simulating kernels",
    "rows": "Simulating rows",
    "cells": "Simulating cells",
    "steps": "Simulating steps",
    "export": "Writing traces",
    "reading": "Reading runs",
    "timelines": "Laying out timelines",
    "pictures": "Drawing pictures",
}
"""What is being done, by the name under which its progress is reported."""


class Shown(Protocol):
    """What a run reports its progress to."""

    def __call__(self, stage: Stage, share: float, pace: str = "") -> None:
        """Show that *share* of *stage* is done, and at which *pace*."""


@contextmanager
def shown() -> Iterator[Shown]:
    """Give what a run reports its progress to: stages, and the share of each that is done."""
    if not HAS_THREADS:
        yield _silent
        return
    with _bar() if sys.stderr.isatty() else _lines() as report:
        yield report


def _silent(stage: Stage, share: float, pace: str = "") -> None:
    """Where no thread can run next to the work, nothing is shown."""


@contextmanager
def _bar() -> Iterator[Shown]:
    # Only a terminal needs what rich loads.
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True), transient=True)
    begin = monotonic()
    tasks: dict[Stage, TaskID] = {}

    def report(stage: Stage, share: float, pace: str = "") -> None:
        if not tasks and monotonic() - begin < PATIENCE_S:
            return
        if not tasks:
            progress.start()
        if stage not in tasks:
            tasks[stage] = progress.add_task(STAGES[stage], total=1.0)
        said = ", ".join(filter(None, (STAGES[stage], pace)))
        progress.update(tasks[stage], completed=share, description=said)

    try:
        yield report
    finally:
        progress.stop()


@contextmanager
def _lines() -> Iterator[Shown]:
    begin, over = monotonic(), Event()
    news: tuple[Stage | None, float, str] = None, 0.0, ""
    """The stage, the share and the pace that were reported last."""
    stage_begin = 0.0, 0.0
    """When the first share of the stage was reported, and which."""

    def report(stage: Stage, share: float, pace: str = "") -> None:
        nonlocal news, stage_begin
        if stage != news[0]:
            stage_begin = monotonic(), share
        news = stage, share, pace

    def line() -> str:
        now = monotonic()
        stage, share, pace = news
        elapsed = f"{now - begin:.0f} s elapsed"
        if stage is None:
            return f"working, {elapsed}"
        first, before = stage_begin
        left = ""
        if before < share < 1:
            left = f"about {_roughly((1 - share) * (now - first) / (share - before))} left"
        done = f"{STAGES[stage]}: {100 * share:.0f} %"
        return ", ".join(filter(None, (done, elapsed, pace, left)))

    def write_lines() -> None:
        # By the clock and not by the news, which may be minutes apart.
        while not over.wait(LINE_EVERY_S):
            typer.echo(f"npusim: {line()}", err=True)

    writer = Thread(target=write_lines, daemon=True)
    writer.start()
    try:
        yield report
    finally:
        over.set()
        writer.join()


def _roughly(seconds: float) -> str:
    """How long that is.

    >>> _roughly(42.3), _roughly(150), _roughly(9000)
    ('42 s', '2.5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
