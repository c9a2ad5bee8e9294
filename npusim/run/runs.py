"""A run, with what its owner asks of it: advice, and a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.run.result import Result

if TYPE_CHECKING:
    from npusim.chip import Progress
    from npusim.run.advice import Advice

__all__ = ["Run"]


class Run(Result):
    """What came out, how long it took, and why."""

    @staticmethod
    def of(result: Result) -> Run:
        """*result* as a run, and so are the launches before it."""
        run = object.__new__(Run)
        vars(run).update(vars(result), earlier=tuple(map(Run.of, result.earlier)))
        return run

    def advice(self, progress: Progress | None = None) -> list[Advice]:
        """What to change so that it is quicker, each piece tried: see :mod:`npusim.run.advice`.

        It takes as long as some ten to thirty runs of the same. Raises ValueError for a run that
        was not timed or had nothing to do.
        """
        from npusim.run.advice import advise  # loads more than a run, as a page does

        return advise(self, progress)

    def report(self, path: str | os.PathLike[str], *others: Result, force: bool = False) -> Path:
        """Write the page that `npusim report` writes, of this run, compared with *others* if any.

        An earlier page is replaced only if *force* says so. Returns where it lies. Raises
        ValueError for a run that was not timed or had nothing to do, FileError for a *path* that
        cannot be written.
        """
        from npusim.run.page import write_page

        return write_page([self, *others], path, force)
