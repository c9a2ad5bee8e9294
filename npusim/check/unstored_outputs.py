"""Bytes of an output that no core stores, or that cores only add to.

A newly allocated output is assumed to contain old data, as no document says that it is cleared. So
each byte of it must be stored by some micro-op. An atomic store adds to the contents, which nothing
clears first (asc-devkit@82b89a1 docs/zh/api, SetAtomicAdd.md), and needs another one that has
stored them. Their order is left to the checks of races.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npusim.check.bursts import BurstsOfBodies, are_apart, bursts_of_cores, written_out
from npusim.check.byte_ranges import Pieces, merged, pieces_of
from npusim.check.rules.contents import where
from npusim.check.uninitialized import UnwrittenError
from npusim.isa import Global, MicroOp, combined_as, global_operand, writes_global
from npusim.kernel.program import Block
from npusim.kernel.table import LaunchTable

__all__ = ["check_stored"]


def check_stored(blocks: tuple[Block, ...], outputs: Mapping[str, int]) -> None:
    """Raise UnwrittenError unless *blocks* store every byte of *outputs*, tensors and their sizes.

    Tensors that no block is bound to are skipped.
    """
    launch = LaunchTable.of(blocks)
    bodies = BurstsOfBodies(_stored)
    for tensor, nbytes in outputs.items():
        number = launch.tensors.index(tensor) if tensor in launch.tensors else -1
        bursts = bursts_of_cores(launch, number, bodies)
        total = int((bursts[:, 1] * bursts[:, 3]).sum())
        if total == nbytes and (not total or are_apart(bursts)):
            continue
        gap = _first_gap(merged([written_out(bursts)]), nbytes)
        if gap is not None:
            raise UnwrittenError(_text(blocks, tensor, nbytes, gap))


def _stored(op: MicroOp) -> Global | None:
    """The place where *op* stores, overwriting the contents."""
    return global_operand(op) if writes_global(op) and combined_as(op) is None else None


def _first_gap(stored: Pieces, nbytes: int) -> tuple[int, int] | None:
    """The first bytes of a tensor of *nbytes* that are not in *stored*."""
    starts, ends = stored
    begins = np.append(0, ends)
    stops = np.append(starts, nbytes)
    gaps = np.flatnonzero((stops > begins) & (begins < nbytes))
    if not gaps.size:
        return None
    return int(begins[gaps[0]]), min(int(stops[gaps[0]]), nbytes)


def _text(blocks: tuple[Block, ...], tensor: str, nbytes: int, gap: tuple[int, int]) -> str:
    start, end = gap
    name = blocks[0].program.name if blocks else "kernel"
    for block in blocks:
        for index, op in enumerate(block.program.ops):
            place = global_operand(op)
            if place is None or not writes_global(op) or combined_as(op) is None:
                continue
            bound = block.bindings[place.name]
            begins, stops = pieces_of(place)
            base = bound.base_bytes
            meets = (begins + base < end) & (stops + base > start)
            if bound.tensor == tensor and meets.any():
                lines = block.program.lines
                line = lines[index] if lines else None
                return (
                    f"{where(block.program.name, index, line)}: {op}: it must add to what was "
                    f"stored before, but nobody stores bytes [{start}, {end}) of {tensor}; store "
                    f"zeros there first"
                )
    return (
        f"{name}: every byte of {tensor} must be stored, but nobody stores [{start}, {end}) of its "
        f"{nbytes}; store them"
    )
