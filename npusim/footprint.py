"""What the blocks of a launch touch of global memory: within their tensors, and apart.

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
from npusim.tensor import SLACK_BYTES, GlobalTensor

__all__ = ["check_apart", "check_inside"]

Numbers = NDArray[np.int64]


class _Reach(NamedTuple):
    """The bytes that a program touches of a name, and the last micro-op that widened them."""

    low: int
    high: int
    op: Load | Store


class _Ranges(NamedTuple):
    """Byte ranges of one tensor, ascending, and the block that each belongs to."""

    starts: Numbers
    ends: Numbers
    owners: Numbers


def check_inside(blocks: tuple[Block, ...], tensors: list[GlobalTensor]) -> None:
    """Raise ValueError if a copy leaves the tensor it is bound to, slack included."""
    sizes = {tensor.name: tensor.nbytes for tensor in tensors}
    reach: dict[Program, dict[str, _Reach]] = {}
    for block in blocks:
        if block.program not in reach:
            reach[block.program] = _reach(block.program)
        for name, (low, high, op) in reach[block.program].items():
            bound = block.bindings[name]
            size = sizes[bound.tensor]
            first, end = bound.base_bytes + low, bound.base_bytes + high
            if first < 0 or end > size + SLACK_BYTES:
                raise ValueError(
                    f"{block.program.name}: copies on core {block.core} must stay within the "
                    f"{size} bytes of {bound.tensor}, not touch [{first}:{end}] as {op} does; "
                    f"mend the tiling or the binding"
                )


def _reach(program: Program) -> dict[str, _Reach]:
    """Name -> the bytes from the first to the last that *program* touches of it."""
    found: dict[str, _Reach] = {}
    for op in program.ops:
        if isinstance(op, Load | Store):
            place = op.src if isinstance(op, Load) else op.dst
            known = found.get(place.name)
            if known is None:
                found[place.name] = _Reach(place.offset_bytes, place.end_bytes, op)
            elif place.offset_bytes < known.low or place.end_bytes > known.high:
                low, high = min(known.low, place.offset_bytes), max(known.high, place.end_bytes)
                found[place.name] = _Reach(low, high, op)
    return found


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
