"""What the blocks of a launch write of global memory must be their own.

Nothing orders the cores of a launch, so the bytes that a block writes must be its own. (Stores that
overlap within one block are ordered by its pipe.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.hazards import RaceError
from npusim.isa import Global, Load, Store
from npusim.program import Block, Program

__all__ = ["check_apart"]

Numbers = NDArray[np.int64]


class _Ranges(NamedTuple):
    """Byte ranges of one tensor, ascending, and the block that each belongs to."""

    starts: Numbers
    ends: Numbers
    owners: Numbers


def check_apart(blocks: tuple[Block, ...]) -> None:
    """Raise RaceError, naming cores, tensor and bytes, if blocks get in each other's way."""
    pieces: dict[tuple[Program, str, bool], _Ranges] = {}
    for tensor in sorted({bound.tensor for block in blocks for bound in block.bindings.values()}):
        writes = _of_tensor(blocks, tensor, True, pieces)
        if not writes.starts.size:
            continue
        meet = (writes.starts[1:] < writes.ends[:-1]) & (writes.owners[1:] != writes.owners[:-1])
        _refuse(tensor, writes, np.flatnonzero(meet), blocks)
        reads = _of_tensor(blocks, tensor, False, pieces)
        _check_reads(tensor, writes, reads, blocks)


def _refuse(tensor: str, ranges: _Ranges, at: Numbers, blocks: tuple[Block, ...]) -> None:
    """Raise for the first neighbours in *ranges* that overlap, *at* their numbers."""
    if at.size:
        first, second = int(at[0]), int(at[0]) + 1
        end = min(ranges.ends[first], ranges.ends[second])
        _raise(tensor, ranges.starts[second], end, ranges.owners[[first, second]], blocks)


def _check_reads(tensor: str, writes: _Ranges, reads: _Ranges, blocks: tuple[Block, ...]) -> None:
    low = np.searchsorted(writes.ends, reads.starts, side="right")
    high = np.searchsorted(writes.starts, reads.ends, side="left")
    for index in np.flatnonzero(high > low):
        for other in range(low[index], high[index]):
            if writes.owners[other] != reads.owners[index]:
                start = max(writes.starts[other], reads.starts[index])
                end = min(writes.ends[other], reads.ends[index])
                owners = np.array([writes.owners[other], reads.owners[index]])
                _raise(tensor, start, end, owners, blocks)


def _raise(tensor: str, start: int, end: int, owners: Numbers, blocks: tuple[Block, ...]) -> None:
    a, b = sorted(blocks[owner].core for owner in owners.tolist())
    raise RaceError(
        f"{blocks[int(owners[0])].program.name}: bytes that a core writes must be its own, but "
        f"cores {a} and {b} both touch {tensor}[{start}:{end}]; give each core its own part"
    )


def _of_tensor(
    blocks: tuple[Block, ...],
    tensor: str,
    is_write: bool,
    pieces: dict[tuple[Program, str, bool], _Ranges],
) -> _Ranges:
    """What all blocks read or write of *tensor*."""
    found: list[_Ranges] = []
    for owner, block in enumerate(blocks):
        for name, bound in sorted(block.bindings.items()):
            if bound.tensor == tensor:
                key = block.program, name, is_write
                if key not in pieces:
                    pieces[key] = _merged(block.program, name, is_write)
                starts, ends, _ = pieces[key]
                base = bound.base_bytes
                found.append(_Ranges(starts + base, ends + base, np.full(starts.size, owner)))
    starts, ends, owners = (np.concatenate(column) for column in zip(*found, strict=True))
    by_start = np.argsort(starts, kind="stable")
    return _Ranges(starts[by_start], ends[by_start], owners[by_start])


def _merged(program: Program, name: str, is_write: bool) -> _Ranges:
    """What *program* reads or writes of *name*, pieces that meet joined."""
    starts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for op in program.ops:
        place: Global | None = None
        if is_write and isinstance(op, Store):
            place = op.dst
        elif not is_write and isinstance(op, Load):
            place = op.src
        if place is not None and place.name == name:
            starts.append(place.offset_bytes + place.stride_bytes * np.arange(place.bursts))
            ends.append(starts[-1] + place.burst_bytes)
    start, end = np.concatenate(starts), np.concatenate(ends)
    by_start = np.argsort(start, kind="stable")
    start, reach = start[by_start], np.maximum.accumulate(end[by_start])
    fresh = np.concatenate(([True], start[1:] > reach[:-1])) if start.size else np.zeros(0, bool)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:] - 1, start.size - 1) if start.size else first
    return _Ranges(start[first], reach[last], np.zeros(first.size, np.int64))
