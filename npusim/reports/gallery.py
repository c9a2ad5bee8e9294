"""All pictures of one run, in the order in which a report shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from npusim.reports import bandwidth, bounds, costs, occupancy, pipes, roofline, timeline
from npusim.reports.picture import Picture
from npusim.reports.subject import Timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "figures"]

PICTURES: tuple[Picture, ...] = (
    costs.PICTURE,
    bounds.PICTURE,
    pipes.PICTURE,
    timeline.PICTURE,
    bandwidth.PICTURE,
    occupancy.PICTURE,
    *roofline.PICTURES,
)


def figures(
    run: Timed, runs: Sequence[Timed] = (), pictures: Sequence[Picture] = PICTURES
) -> Iterator[tuple[Picture, Figure]]:
    """Draw those of *pictures* that apply to *run*, each on a new figure.

    *runs* are the runs it is compared with: their pictures have the same axes. Raises
    ValueError for a run that was not timed or had nothing to do.
    """
    for picture in pictures:
        figure = picture.figure(run, runs)
        if figure is not None:
            yield picture, figure
