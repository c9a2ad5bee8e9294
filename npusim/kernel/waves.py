"""Blocks in waves, when a launch has more of them than the chip has cores.

The chip assigns a waiting block to the next free core (asc-devkit, docs/zh/guide, SIMD BuiltIn,
schedmode 0). Here core c runs blocks c, c + cores and so on, each after the end of the previous
one, and the cores of a group take the same turns: assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import DeviceSpec
from npusim.isa import Barrier
from npusim.kernel.program import Block, Body
from npusim.kernel.table import Calls, TabledProgram

__all__ = ["in_waves", "most_at_once"]

__kernel_vocabulary__ = True

END_OF_A_BLOCK = Body((Barrier(),), (("", 0),))
"""The next block begins when all pipes have finished."""


class MostAtOnce(NamedTuple):
    """What a launch starts, and how much of it the cores run at once."""

    started: int
    """Blocks of one kind of core, or groups of several."""
    most: int


def most_at_once(blocks: Sequence[Block], spec: DeviceSpec) -> MostAtOnce:
    """How much of *blocks* the cores of *spec* run at once."""
    kinds = {block.kind for block in blocks}
    if len(kinds) == 1:
        return MostAtOnce(len(blocks), spec.cores[blocks[0].kind].count)
    groups = len({block.group for block in blocks})
    sizes = Counter((block.kind, block.group) for block in blocks)
    own = [max(size for (each, _), size in sizes.items() if each == kind) for kind in kinds]
    counts = [spec.cores[kind].count // each for kind, each in zip(kinds, own, strict=True)]
    return MostAtOnce(groups, min(counts, default=groups))


def in_waves(blocks: tuple[Block, ...], spec: DeviceSpec) -> tuple[Block, ...]:
    """*blocks*, with those that one core runs in turn joined into one."""
    started, most = most_at_once(blocks, spec)
    if started <= most:
        return blocks
    turns: dict[tuple[int, int], list[Block]] = {}
    within: dict[int, int] = {}
    """Group -> number of its blocks so far."""
    for block in blocks:
        group = len(within) if started == len(blocks) else block.group
        place = within.setdefault(group, 0)
        within[group] += 1
        turns.setdefault((group % most, place), []).append(block)
    return tuple(each[0] if len(each) == 1 else _in_turn(each) for each in turns.values())


def _in_turn(blocks: Sequence[Block]) -> Block:
    """One block that runs *blocks* one after the other."""
    first = blocks[0]
    bindings = dict(first.bindings)
    for block in blocks:
        for name, bound in block.bindings.items():
            known = bindings.setdefault(name, bound)
            if (known.tensor, known.is_cached) != (bound.tensor, bound.is_cached):
                raise ValueError(
                    f"blocks that take turns on a core must mean one tensor by {name}, not "
                    f"{known.tensor} and {bound.tensor}; start as many as there are cores"
                )
            bindings[name] = min(known, bound, key=lambda each: each.base_bytes)
    tables = [Calls.of(block.program) for block in blocks]
    names = tuple(dict.fromkeys(name for table in tables for name in table.names))
    bodies = tuple(dict.fromkeys(body for table in tables for body in table.bodies))
    number = {body: index for index, body in enumerate((*bodies, END_OF_A_BLOCK))}
    rows = list[NDArray[np.int64]]()
    shifts = list[NDArray[np.int64]]()
    for block, table in zip(blocks, tables, strict=True):
        own = np.array([number[body] for body in table.bodies], np.int64)
        rows += [own[table.body], np.array([number[END_OF_A_BLOCK]], np.int64)]
        moved = np.zeros((table.body.size + 1, len(names)), np.int64)
        for column, name in enumerate(table.names):
            moved[:-1, names.index(name)] = table.shifts[:, column]
        for name, bound in block.bindings.items():
            if name in names:
                moved[:-1, names.index(name)] += bound.base_bytes - bindings[name].base_bytes
        shifts.append(moved)
    claimed: dict[str, int] = {}
    for block in blocks:
        for buffer, nbytes in block.program.claimed_bytes.items():
            claimed[buffer] = max(claimed.get(buffer, 0), nbytes)
    table = Calls((*bodies, END_OF_A_BLOCK), names, np.concatenate(rows), np.concatenate(shifts))
    program = TabledProgram(first.program.name, table, claimed)
    return replace(first, program=program, bindings=bindings)
