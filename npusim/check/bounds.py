"""The blocks of a launch must access global memory only within their tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.tensor import SLACK_BYTES, GlobalTensor
from npusim.kernel.program import Block, Body, Call, Program
from npusim.kernel.table import LaunchTable

__all__ = ["BoundsError", "check_inside"]

FAR = 2**60
"""Bytes: beyond any tensor, and half of the range of int64."""


class BoundsError(ValueError):
    """A block accesses global memory outside its tensors."""


class _Extent(NamedTuple):
    """The bytes touched of a name; each end with the index of the micro-op that touches it."""

    low: int
    high: int
    low_index: int
    high_index: int

    def moved(self, nbytes: int, count: int) -> _Extent:
        """The same, *nbytes* further and *count* micro-ops later."""
        low_index, high_index = self.low_index + count, self.high_index + count
        return _Extent(self.low + nbytes, self.high + nbytes, low_index, high_index)

    def joined(self, other: _Extent) -> _Extent:
        low = self if self.low <= other.low else other
        high = self if self.high >= other.high else other
        return _Extent(low.low, high.high, low.low_index, high.high_index)


def check_inside(blocks: tuple[Block, ...], tensors: list[GlobalTensor]) -> None:
    """Raise BoundsError if a copy leaves the tensor it is bound to, slack included.

    Also raised for a name that a block has not bound, or not to one of *tensors*.
    """
    if _are_inside(LaunchTable.of(blocks), tensors):
        return
    # Something is outside: check call by call, for a message that names the first.
    sizes = {tensor.name: tensor.nbytes for tensor in tensors}
    extents: dict[Program, dict[str, _Extent]] = {}
    bodies: dict[Body, dict[str, _Extent]] = {}
    for block in blocks:
        if block.program not in extents:
            extents[block.program] = _of_program(block.program, bodies)
        for name, (low, high, low_index, high_index) in extents[block.program].items():
            bound = block.bindings.get(name)
            if bound is None or bound.tensor not in sizes:
                came = "nothing" if bound is None else bound.tensor
                raise BoundsError(
                    f"{block.program.name}: core {block.core} must bind {name} to one of "
                    f"{', '.join(sizes)}, not to {came}; add it to the block's bindings"
                )
            size = sizes[bound.tensor]
            first, end = bound.base_bytes + low, bound.base_bytes + high
            if first < 0 or end > size + SLACK_BYTES:
                op = block.program.ops[low_index if first < 0 else high_index]
                raise BoundsError(
                    f"{block.program.name}: copies on core {block.core} must stay within the "
                    f"{size} bytes of {bound.tensor}, not touch [{first}:{end}] as {op} does; "
                    f"fix the tiling or the binding"
                )


def _are_inside(launch: LaunchTable, tensors: list[GlobalTensor]) -> bool:
    """Whether every row of every core stays inside; also False if some name is not bound."""
    sizes = {tensor.name: tensor.nbytes for tensor in tensors}
    extents = _extents(launch.bodies, launch.names)
    if extents is None or not launch.names or not np.diff(launch.first).all():
        # A name is not bound by any block, or a program is empty.
        return False
    low, high = extents
    lows = np.minimum.reduceat(low[launch.body] + launch.shifts, launch.first[:-1])
    highs = np.maximum.reduceat(high[launch.body] + launch.shifts, launch.first[:-1])
    lows, highs = lows[launch.program] + launch.base, highs[launch.program] + launch.base
    # The last entry is for names without a tensor, which have number -1.
    room = np.array([*(sizes.get(name, -FAR) for name in launch.tensors), -FAR], np.int64)
    is_touched = highs > -FAR // 2
    inside = (lows >= 0) & (highs <= room[launch.tensor] + SLACK_BYTES)
    return bool(np.all(inside | ~is_touched))


def _extents(
    bodies: tuple[Body, ...], names: tuple[str, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The first and the last byte that *bodies* touch of each of *names*, `(bodies, names)` each.

    FAR and -FAR if a body does not touch the name; None if it touches one that is not in *names*.
    """
    low = np.full((len(bodies), len(names)), FAR, np.int64)
    high, columns = -low, {name: number for number, name in enumerate(names)}
    known: dict[Body, dict[str, _Extent]] = {}
    for number, body in enumerate(bodies):
        inner = body.calls
        for name, extent in (_of_calls(inner, known) if inner else _of_leaf(body)).items():
            if name not in columns:
                return None
            low[number, columns[name]] = extent.low
            high[number, columns[name]] = extent.high
    return low, high


def _of_program(program: Program, bodies: dict[Body, dict[str, _Extent]]) -> dict[str, _Extent]:
    """Name -> the range that *program* touches of it; *bodies* caches those seen before."""
    return _of_calls(program.calls, bodies)


def _of_calls(
    calls: tuple[Call, ...], bodies: dict[Body, dict[str, _Extent]]
) -> dict[str, _Extent]:
    found: dict[str, _Extent] = {}
    count = 0
    for call in calls:
        if call.body not in bodies:
            inner = call.body.calls
            bodies[call.body] = _of_calls(inner, bodies) if inner else _of_leaf(call.body)
        for name, known in bodies[call.body].items():
            extent = known.moved(call.shifts.get(name, 0), count)
            found[name] = found[name].joined(extent) if name in found else extent
        count += len(call.body)
    return found


def _of_leaf(body: Body) -> dict[str, _Extent]:
    found: dict[str, _Extent] = {}
    for index, _, place in body.touching:
        extent = _Extent(place.offset_bytes, place.end_bytes, index, index)
        found[place.name] = found[place.name].joined(extent) if place.name in found else extent
    return found
