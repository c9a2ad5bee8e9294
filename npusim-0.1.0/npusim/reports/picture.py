"""What the module of a picture declares: its name, its heading, how high it is, how to draw it."""

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
"""Title and axis."""
LEAST_INCHES = 0.7
"""What is between them is at least so high."""


class Draw(Protocol):
    """Draws a run on *ax*, or on a new figure."""

    def __call__(self, run: Timed, /, *, ax: Axes | None = None) -> object: ...


class DrawAmong(Protocol):
    """Draws a run on *ax*, whose axes hold each of *runs*; it is one of them."""

    def __call__(self, run: Timed, runs: Sequence[Timed], ax: Axes, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of one run, declared next to the function that draws it."""

    name: str
    """The name of its file, without the ending."""
    heading: str
    """Above it on a page."""
    height_inches: Callable[[Timed], float | None]
    """Without title and axis; None where the picture does not apply to the run."""
    draw: Draw
    draw_among: DrawAmong | None = None
    """The same where runs are compared; None if axes are alike for all, as those of percents."""

    def figure(self, run: Timed, runs: Sequence[Timed] = ()) -> Figure | None:
        """It on a new figure, which belongs to no window; None where it does not apply.

        *runs* are those that it is compared with: their pictures have the same axes. Raises
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
