"""How far a long run has come, on stderr: a bar, or now and then a line where no terminal is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID

    from npusim import chip

__all__ = ["shown"]

PATIENCE_S = 1.0
"""Shorter runs show no bar."""
LINE_EVERY_S = 10.0
"""Seconds before the first line, and between lines: a log is to be read, not to be filled."""


@contextmanager
def shown() -> Iterator[chip.Progress]:
    """Give what a run reports its progress to: stages, and the share of each that is done."""
    with _bar() if sys.stderr.isatty() else _lines() as report:
        yield report


@contextmanager
def _bar() -> Iterator[chip.Progress]:
    # Only a terminal needs what rich loads.
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True), transient=True)
    begin = monotonic()
    tasks: dict[str, TaskID] = {}

    def report(stage: str, share: float) -> None:
        if not tasks and monotonic() - begin < PATIENCE_S:
            return
        if not tasks:
            progress.start()
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=1.0)
        progress.update(tasks[stage], completed=share)

    try:
        yield report
    finally:
        progress.stop()


@contextmanager
def _lines() -> Iterator[chip.Progress]:
    begin, over = monotonic(), Event()
    news = "at work"

    def report(stage: str, share: float) -> None:
        nonlocal news
        news = f"{stage} {share:.0%} done"

    def tell() -> None:
        # By the clock and not by the news, which may be minutes apart.
        while not over.wait(LINE_EVERY_S):
            typer.echo(f"npusim: {news} after {monotonic() - begin:.0f} s", err=True)

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield report
    finally:
        over.set()
        teller.join()
