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

__all__ = ["Shown", "shown"]

PATIENCE_S = 1.0
"""Shorter runs show no bar."""
LINE_EVERY_S = 10.0
"""Seconds before the first line, and between lines: a log is to be read, not to be filled."""


class Shown(Protocol):
    """What a run reports its progress to."""

    def __call__(self, stage: str, share: float, pace: str = "") -> None:
        """Show that *share* of *stage* is done, and at which *pace*."""


@contextmanager
def shown() -> Iterator[Shown]:
    """Give what a run reports its progress to: stages, and the share of each that is done."""
    if not HAS_THREADS:
        yield _silent
        return
    with _bar() if sys.stderr.isatty() else _lines() as report:
        yield report


def _silent(stage: str, share: float, pace: str = "") -> None:
    """Where no thread can run next to the work, nothing is shown."""


@contextmanager
def _bar() -> Iterator[Shown]:
    # Only a terminal needs what rich loads.
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True), transient=True)
    begin = monotonic()
    tasks: dict[str, TaskID] = {}

    def report(stage: str, share: float, pace: str = "") -> None:
        if not tasks and monotonic() - begin < PATIENCE_S:
            return
        if not tasks:
            progress.start()
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=1.0)
        said = ", ".join(filter(None, (stage, pace)))
        progress.update(tasks[stage], completed=share, description=said)

    try:
        yield report
    finally:
        progress.stop()


@contextmanager
def _lines() -> Iterator[Shown]:
    begin, over = monotonic(), Event()
    news, goes_on, end = "at work", "", 0.0
    stage_begin: tuple[str, float, float] = "", 0.0, 0.0
    """The stage, when its first share was reported, and which."""

    def report(stage: str, share: float, pace: str = "") -> None:
        nonlocal news, goes_on, end, stage_begin
        now = monotonic()
        if stage != stage_begin[0]:
            stage_begin = stage, now, share
        _, first, before = stage_begin
        end = now + (1 - share) * (now - first) / (share - before) if share > before else 0.0
        news, goes_on = f"{stage} {share:.0%} done", pace

    def tell() -> None:
        # By the clock and not by the news, which may be minutes apart.
        while not over.wait(LINE_EVERY_S):
            now = monotonic()
            left = f"{_roughly(end - now)} left" if end > now else ""
            said = filter(None, (f"{news} after {now - begin:.0f} s", goes_on, left))
            typer.echo(f"npusim: {', '.join(said)}", err=True)

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield report
    finally:
        over.set()
        teller.join()


def _roughly(seconds: float) -> str:
    """How long that is.

    >>> _roughly(42.3), _roughly(150), _roughly(9000)
    ('42 s', '2.5 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
