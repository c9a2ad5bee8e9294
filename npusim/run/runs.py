"""A run with methods for its owner: advice, and a page."""

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
    """The outputs, the time, and the reasons for it."""

    @staticmethod
    def of(result: Result) -> Run:
        """*result* as a run, including the launches before it."""
        run = object.__new__(Run)
        vars(run).update(vars(result), earlier=tuple(map(Run.of, result.earlier)))
        return run

    def advice(self, progress: Progress | None = None) -> list[Advice]:
        """What to change to make it faster, each change simulated: see :mod:`npusim.run.advice`.

        It takes as long as some ten to thirty such runs. Raises ValueError for a run that was not
        timed or did nothing.
        """
        from npusim.run.advice import advise  # imports more than a run needs

        return advise(self, progress)

    def report(self, path: str | os.PathLike[str], *others: Result, force: bool = False) -> Path:
        """Write the page of this run, as `npusim report` does, compared with *others* if any.

        An earlier page is replaced only with *force*. Returns its path. Raises ValueError for a run
        that was not timed or did nothing, FileError for a *path* that cannot be written.
        """
        from npusim.run.page import write_page

        return write_page([self, *others], path, force)
