"""What copies between global memory and a core are charged: bytes moved, and cycles of the pipe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global, LoadNd2Nz, MicroOp, global_operand

__all__ = ["Charge", "charge"]


@dataclass(frozen=True, slots=True)
class Charge:
    """What a copy is charged."""

    nbytes: int
    """Bytes as moved, partial sectors and lines filled up."""
    hold_cycles: int
    """Cycles for which the pipe is occupied at least, whatever the memory takes."""
    rows: int = 0
    """Pieces of rows, each within one line, that are turned into Nz one after the other."""


def charge(op: MicroOp, base_bytes: int, spec: DeviceSpec) -> Charge:
    """What *op* is charged when the binding of its tensor begins at *base_bytes*.

    Raises TypeError if *op* stays inside its core.
    """
    place = global_operand(op)
    if place is None:
        raise TypeError(f"charge: {op} must touch global memory, but stays in its core; use cost")
    hold = max(spec.transfer.issue_cycles, place.bursts * spec.transfer.burst_cycles)
    if isinstance(op, Fixpipe):
        blocks = ceil_div(place.burst_bytes, spec.vector.block_bytes)
        ragged = _ragged_bursts(place, base_bytes, spec) * blocks
        hold = max(hold, ragged * spec.transfer.ragged_block_cycles)
    rows = _row_pieces(place, base_bytes, spec) if isinstance(op, LoadNd2Nz) else 0
    return Charge(_moved_bytes(place, base_bytes, spec), hold, rows)


def _ragged_bursts(place: Global, base_bytes: int, spec: DeviceSpec) -> int:
    """How many bursts of *place* do not begin and end with a sector."""
    sector = spec.transfer.sector_bytes
    starts = (
        base_bytes
        + place.offset_bytes
        + np.arange(place.bursts, dtype=np.int64) * place.stride_bytes
    )
    return int(np.count_nonzero((starts % sector) | ((starts + place.burst_bytes) % sector)))


def _row_pieces(place: Global, base_bytes: int, spec: DeviceSpec) -> int:
    """Requests for the rows of *place*, each within a line."""
    line = spec.l2.line_bytes
    start = (base_bytes + place.offset_bytes) % line
    steps = place.bursts if place.stride_bytes % line else 1
    starts = (start + np.arange(steps, dtype=np.int64) * place.stride_bytes) % line
    pieces = int(((starts + place.burst_bytes - 1) // line + 1).sum())
    return pieces * (place.bursts // steps)


def _moved_bytes(place: Global, base_bytes: int, spec: DeviceSpec) -> int:
    """Bytes of the requests that *place* is cut into.

    A burst that starts on a sector moves whole sectors. One that does not moves every line it
    touches: rows of 2048 bytes at odd addresses then cost 5 lines for 4, and the official copy
    example loses 22 % on them (asc-devkit, 05_best_practices, data_copy: N = 12287).
    """
    sector, line = spec.transfer.sector_bytes, spec.l2.line_bytes
    moved = 0
    start = base_bytes + place.offset_bytes
    # The pattern repeats as soon as the stride has come back to the start of a line.
    steps = place.bursts if place.stride_bytes % line else 1
    for _ in range(steps):
        if start % sector == 0:
            moved += align_up(place.burst_bytes, sector)
        else:
            moved += ((start + place.burst_bytes - 1) // line - start // line + 1) * line
        start += place.stride_bytes
    return moved * (place.bursts // steps)
