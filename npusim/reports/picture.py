"""The declaration of a picture: its name, its heading, its height, and how to draw it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from npusim.reports.subject import Timed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture"]

WIDTH_INCHES = 10.0
FRAME_INCHES = 1.3
"""The height of title and axis."""
LEAST_INCHES = 0.7
"""The least height of the drawing between them."""


class Draw(Protocol):
    """Draws a run on *ax*, or on a new figure."""

    def __call__(self, run: Timed, /, *, ax: Axes | None = None) -> object: ...


class DrawAmong(Protocol):
    """Draws a run on *ax*, whose axes have room for each of *runs*, which include it."""

    def __call__(self, run: Timed, runs: Sequence[Timed], ax: Axes, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of one run, declared next to the function that draws it."""

    name: str
    """The name of its file, without the ending."""
    heading: str
    """The heading above it on a page."""
    height_inches: Callable[[Timed], float | None]
    """The height without title and axis; None if the picture does not apply to the run."""
    draw: Draw
    draw_among: DrawAmong | None = None
    """Draws a run that is compared; None if all axes are the same, such as axes in percent."""

    def figure(self, run: Timed, runs: Sequence[Timed] = ()) -> Figure | None:
        """Draw it on a new figure without a window; None if it does not apply to the run.

        *runs* are the runs it is compared with: their pictures have the same axes. Raises
        ValueError for a run that was not timed or had nothing to do.
        """
        from matplotlib.figure import Figure

        height = self.height_inches(run)
        if height is None:
            return None
        inches = WIDTH_INCHES, FRAME_INCHES + max(height, LEAST_INCHES)
        figure = Figure(inches, layout="constrained")
        if runs and self.draw_among is not None:
            self.draw_among(run, (run, *runs), figure.subplots())
        else:
            self.draw(run, ax=figure.subplots())
        return figure
