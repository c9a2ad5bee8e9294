"""A bar on stderr for runs that take their time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import Progress, TaskID

from npusim import chip

__all__ = ["bar"]

PATIENCE_S = 1.0
"""Shorter runs show no bar."""


@contextmanager
def bar() -> Iterator[chip.Progress | None]:
    """Give what a run reports its progress to: None unless stderr is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    progress = Progress(console=console, transient=True)
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
