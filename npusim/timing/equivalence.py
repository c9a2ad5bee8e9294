"""Equivalent cores: one representative of each class is simulated for all.

Two blocks are equivalent if they run the same program on the same kind of core, their tensors begin
at the same offset within a cache line, they use no flags between cores, and the L2 treats them
alike: they access the same bytes, or lines that no other block accesses. Then each request of one
block has a counterpart in the other at the same cycle, and because links are shared fairly, both
end at the same cycle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from npusim.check import bursts
from npusim.check.bursts import BurstsOfBodies, bursts_of_cores
from npusim.check.byte_ranges import Numbers, Owned, are_apart, rows_of_pieces
from npusim.data.integers import distinct
from npusim.devices.schema import DeviceSpec
from npusim.isa import copied_place
from npusim.kernel.program import Block, Program
from npusim.kernel.table import LaunchTable

__all__ = ["equivalent_cores", "has_cross_core_flags"]


def equivalent_cores(blocks: tuple[Block, ...], spec: DeviceSpec) -> tuple[tuple[Block, ...], ...]:
    """Group *blocks* into classes whose members all have the times of the first."""
    line_bytes = spec.l2.line_bytes
    by_traits: dict[tuple[object, ...], list[Block]] = {}
    has_flags: dict[Program, bool] = {}
    for block in blocks:
        places = sorted(
            (name, bound.tensor, bound.base_bytes % line_bytes)
            for name, bound in block.bindings.items()
        )
        if block.program not in has_flags:
            has_flags[block.program] = has_cross_core_flags(block.program)
        # A flag couples the core to others at its own cycles: such a block forms its own class.
        own = block.core if has_flags[block.program] else None
        by_traits.setdefault((block.program, block.kind, own, *places), []).append(block)
    # Finding the lines of blocks is expensive: skipped if no two blocks can be equal.
    if len(by_traits) == len(blocks):
        return tuple((block,) for block in blocks)
    launch = LaunchTable.of(blocks)
    is_own = _own_lines(launch, line_bytes)
    number = {block: core for core, block in enumerate(blocks)}
    groups: list[tuple[Block, ...]] = []
    for group in by_traits.values():
        owned = np.all(is_own[[number[block] for block in group]], axis=0).tolist()
        # Names that all of them bind to the same place are alike too.
        if len(group) > 1 and all(
            owned[launch.column(name)] or all(block.bindings[name] == bound for block in group)
            for name, bound in group[0].bindings.items()
        ):
            groups.append(tuple(group))
        else:
            groups.extend((block,) for block in group)
    return tuple(sorted(groups, key=lambda group: group[0].core))


def _own_lines(launch: LaunchTable, line_bytes: int) -> NDArray[np.bool_]:
    """Whether the lines that a core copies by a name are copied by no one else, `(cores, names)`.

    Another name of the same core for these lines counts as someone else.
    """
    is_own = np.ones(launch.tensor.shape, np.bool_)
    copied = BurstsOfBodies(copied_place)
    for tensor in range(len(launch.tensors)):
        copies = bursts_of_cores(launch, tensor, copied)
        if not copies.size or bursts.are_apart(copies, line_bytes):
            continue
        runs = [
            _runs(launch, column, cores, line_bytes, copied)
            for column, cores in enumerate((launch.tensor == tensor).T)
            if cores.any()
        ]
        starts, ends, cells = map(np.concatenate, zip(*runs, strict=True))
        if are_apart(starts, ends):
            continue
        by_start = np.argsort(starts, kind="stable")
        starts, ends = starts[by_start], ends[by_start]
        # Runs of one core and name do not overlap, so a run that does belongs to another.
        before = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
        after = np.append(starts[1:], ends.max())
        is_own.reshape(-1)[cells[by_start[(before > starts) | (after < ends)]]] = False
    return is_own


def _runs(
    launch: LaunchTable,
    column: int,
    cores: NDArray[np.bool_],
    line_bytes: int,
    copied: BurstsOfBodies,
) -> tuple[Numbers, Numbers, Numbers]:
    """Runs of lines that *cores* copy by the name of *column*: starts, ends and owner of each.

    The owner is the index of core and name in `(cores, names)`, flattened.
    """
    none = np.zeros(0, np.int64)
    found = [(none, none, none)]
    rows = rows_of_pieces(launch, launch.names[column], copied)
    first, phase = np.divmod(launch.base[:, column], line_bytes)
    # The offset of a name within a line decides which lines a program copies.
    for within in distinct(phase[cores]).tolist():
        if rows is None:
            break
        here = np.flatnonzero(cores & (phase == within))
        lines = _lines(launch, rows, distinct(launch.program[here]), within, line_bytes)
        whose, which = lines.rows_of(launch.program[here])
        core = here[whose]
        cells = core * len(launch.names) + column
        found.append((lines.starts[which] + first[core], lines.ends[which] + first[core], cells))
    starts, ends, cells = map(np.concatenate, zip(*found, strict=True))
    return starts, ends, cells


def _lines(
    launch: LaunchTable,
    rows: tuple[Numbers, Numbers, Numbers],
    programs: Numbers,
    within: int,
    line_bytes: int,
) -> Owned:
    """The runs of lines of each of *programs*, for a name that begins *within* bytes into a line.

    *rows* is everything that the programs copy by it, see :func:`rows_of_pieces`.
    """
    starts, ends, row = rows
    program = launch.program_of_row[row]
    if programs.size < len(launch.programs):
        chosen = np.isin(program, programs)
        starts, ends, program = starts[chosen], ends[chosen], program[chosen]
    if not starts.size:
        return Owned.nothing(len(launch.programs))
    low, high = (starts + within) // line_bytes, -(-(ends + within) // line_bytes)
    return Owned.of(low, high, program, len(launch.programs))


def has_cross_core_flags(program: Program) -> bool:
    """Whether *program* uses flags between cores, so that its blocks differ in time."""
    return any(body.has_cross_core_flags for body in program.leaves)
