"""The charge for copies between global memory and a core: bytes moved, and cycles of the pipe."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global, LoadNd2Nz, MicroOp, global_operand

__all__ = ["Charge", "charge"]


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge for a copy."""

    nbytes: int
    """Bytes moved, with partial sectors and lines counted in full."""
    hold_cycles: int
    """Least cycles for which the pipe is occupied, however fast the memory is."""
    rows: int = 0
    """Row pieces, each within one line, that are converted to Nz one after the other."""


def charge(op: MicroOp, base_bytes: int, spec: DeviceSpec) -> Charge:
    """The charge for *op* if the binding of its tensor begins at *base_bytes*.

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
    """Number of bursts of *place* that do not begin and end at a sector boundary."""
    sector = spec.transfer.sector_bytes
    starts = (
        base_bytes
        + place.offset_bytes
        + np.arange(place.bursts, dtype=np.int64) * place.stride_bytes
    )
    return int(np.count_nonzero((starts % sector) | ((starts + place.burst_bytes) % sector)))


def _row_pieces(place: Global, base_bytes: int, spec: DeviceSpec) -> int:
    """Number of requests for the rows of *place*, each within a line."""
    line = spec.l2.line_bytes
    start = (base_bytes + place.offset_bytes) % line
    steps = place.bursts if place.stride_bytes % line else 1
    starts = (start + np.arange(steps, dtype=np.int64) * place.stride_bytes) % line
    pieces = int(((starts + place.burst_bytes - 1) // line + 1).sum())
    return pieces * (place.bursts // steps)


def _moved_bytes(place: Global, base_bytes: int, spec: DeviceSpec) -> int:
    """Bytes of the requests into which *place* is split.

    A burst that starts at a sector boundary moves whole sectors. Any other moves every line that it
    touches: rows of 2048 bytes at odd addresses then cost 5 lines instead of 4, and the official
    copy example loses 22 % on them (asc-devkit, 05_best_practices, data_copy: N = 12287).
    """
    sector, line = spec.transfer.sector_bytes, spec.l2.line_bytes
    moved = 0
    start = base_bytes + place.offset_bytes
    # The pattern repeats when the stride has returned to the start of a line.
    steps = place.bursts if place.stride_bytes % line else 1
    for _ in range(steps):
        if start % sector == 0:
            moved += align_up(place.burst_bytes, sector)
        else:
            moved += ((start + place.burst_bytes - 1) // line - start // line + 1) * line
        start += place.stride_bytes
    return moved * (place.bursts // steps)
