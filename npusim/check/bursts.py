"""Global memory accesses of copies as rows of bursts, compared without expanding them.

A copy touches bursts of equal size and pitch: a rectangle of rows and columns if the pitch is that
of its tensor. Adjacent tiles have thousands of bursts but few rectangles.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import distinct
from npusim.isa import Global, MicroOp
from npusim.kernel.program import Body
from npusim.kernel.table import LaunchTable, spread

__all__ = ["Bursts", "BurstsOfBodies", "are_apart", "bursts_of_cores", "written_out"]

Bursts = NDArray[np.int64]
"""First byte, bytes of a burst, pitch, number of bursts: `(copies, 4)`."""
Edges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends of byte ranges."""
NONE: Bursts = np.zeros((0, 4), np.int64)


class BurstsOfBodies:
    """The global memory accesses of bodies, each analysed once.

    *place_of* gives the place of a micro-op that counts, and None for all others.
    """

    def __init__(self, place_of: Callable[[MicroOp], Global | None]) -> None:
        self._place_of = place_of
        self._known: dict[Body, dict[str, Bursts]] = {}

    def of(self, body: Body) -> dict[str, Bursts]:
        """Name of global memory -> the bursts that *body* touches of it."""
        if body not in self._known:
            self._known[body] = self._of_calls(body) if body.calls else self._of_leaf(body)
        return self._known[body]

    def _of_calls(self, body: Body) -> dict[str, Bursts]:
        found: dict[str, list[Bursts]] = {}
        for call in body.calls:
            for name, bursts in self.of(call.body).items():
                moved = bursts + np.array([call.shifts.get(name, 0), 0, 0, 0], np.int64)
                found.setdefault(name, []).append(moved)
        return {name: np.concatenate(each) for name, each in found.items()}

    def _of_leaf(self, body: Body) -> dict[str, Bursts]:
        found: dict[str, list[tuple[int, int, int, int]]] = {}
        for _, op, _ in body.touching:
            place = self._place_of(op)
            if place is not None:
                found.setdefault(place.name, []).append(_bursts_of(place))
        return {name: np.array(each, np.int64) for name, each in found.items()}


def _bursts_of(place: Global) -> tuple[int, int, int, int]:
    pitch, nbytes = place.stride_bytes, place.burst_bytes
    if place.bursts > 1 and 0 <= pitch <= nbytes:
        # Adjacent bursts are one.
        return place.offset_bytes, (place.bursts - 1) * pitch + nbytes, 0, 1
    return place.offset_bytes, nbytes, pitch, place.bursts


def written_out(bursts: Bursts) -> Edges:
    """Each burst as a byte range."""
    start, nbytes, pitch, count = bursts.T
    copy, number = spread(count, np.zeros_like(count))
    starts = start[copy] + number * pitch[copy]
    return starts, starts + nbytes[copy]


def bursts_of_cores(launch: LaunchTable, tensor: int, bodies: BurstsOfBodies) -> Bursts:
    """The bursts that all cores touch of the tensor with number *tensor*."""
    found = [NONE]
    for column, name in enumerate(launch.names):
        cores = np.flatnonzero(launch.tensor[:, column] == tensor)
        each = [bodies.of(body).get(name, NONE) for body in launch.bodies] if cores.size else []
        size = np.array([len(bursts) for bursts in each], np.int64)
        if not size.any():
            continue
        # The rows of each core's program, then the copies of each row's body.
        program = launch.program[cores]
        core, row = spread(np.diff(launch.first)[program], launch.first[program])
        first = np.cumsum(size) - size
        which, copy = spread(size[launch.body[row]], first[launch.body[row]])
        bursts = np.concatenate(each)[copy]
        bursts[:, 0] += (launch.shifts[row, column] + launch.base[cores[core], column])[which]
        found.append(bursts)
    return np.concatenate(found)


def are_apart(bursts: Bursts, unit: int = 1) -> bool:
    """Whether no two of *bursts* touch the same *unit* bytes; also False if that is not obvious.

    It is obvious if they are rectangles of one pitch whose columns are equal or disjoint.
    """
    start, nbytes, pitch, count = bursts.T
    pitches = distinct(pitch[count > 1])
    if pitches.size > 1:
        return False
    # Copies with a single burst each are distinguished by their start.
    width = int(pitches[0]) if pitches.size else int((start + nbytes).max()) + unit
    row, left = np.divmod(start, max(width, 1))
    right = left + nbytes
    if (pitches.size and width % unit) or width <= 0 or right.max() > width:
        return False
    left, right = left // unit, -(-right // unit)
    order = np.lexsort((row, left))
    left, right, row = left[order], right[order], row[order]
    below = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
    below &= row[1:] >= (row + count[order])[:-1]
    return bool(np.all(below | (left[1:] >= right[:-1])))
