"""Equivalent cores: one representative of each class is simulated, and stands for the others.

Two blocks are equivalent when they run the same program on the same kind of core, their
tensors begin at the same offset within a cache line, they use no flags between cores, and the L2
treats them alike: they access either the very same bytes, or lines that no other block accesses.
Then each request of one block has a counterpart in the other at the same cycle, and because links
are shared fairly, both end at the same cycle too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from npusim.data.tensor import GlobalTensor, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, Global, copied_place
from npusim.kernel.program import Block, Body, Program
from npusim.timing.memory import touched_lines

__all__ = ["equivalent_cores", "has_cross_core_flags"]

LineNumbers = NDArray[np.int64]
_Place = tuple[Global, int]
"""The global operand of a copy, and the bytes by which the call shifts it."""
CROSS_CORE_FLAGS = (CrossCoreSetFlag, CrossCoreWaitFlag)


def equivalent_cores(
    blocks: tuple[Block, ...],
    tensors: list[GlobalTensor],
    spec: DeviceSpec,
) -> tuple[tuple[Block, ...], ...]:
    """Sort *blocks* into classes whose members all have the times of the first."""
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
        # A flag ties the core to others at its own cycles: such a block is a class of its own.
        own = block.core if has_flags[block.program] else None
        by_traits.setdefault((block.program, block.kind, own, *places), []).append(block)
    # The lines that blocks touch are the costly part: not looked for if no two could be equal.
    if len(by_traits) == len(blocks):
        return tuple((block,) for block in blocks)
    lines = _Lines(line_bytes)
    # Lines of all blocks count, also of those without a partner: they may share a line with one.
    touched = {block: lines.of(block) for block in blocks}
    counts = _touch_counts(touched, tensors, line_bytes)
    groups: list[tuple[Block, ...]] = []
    for group in by_traits.values():
        if len(group) > 1 and all(
            _alike(group, name, touched, counts) for name in touched[group[0]]
        ):
            groups.append(tuple(group))
        else:
            groups.extend((block,) for block in group)
    return tuple(sorted(groups, key=lambda group: group[0].core))


class _Lines:
    """Which lines of its tensors each block touches; blocks of one program share the search."""

    def __init__(self, line_bytes: int) -> None:
        self._line_bytes = line_bytes
        self._places: dict[Program, dict[str, list[_Place]]] = {}
        self._cache: dict[tuple[Program, str, int], LineNumbers] = {}

    def of(self, block: Block) -> dict[str, LineNumbers]:
        """Name -> line numbers of its tensor, ascending, each once."""
        program = block.program
        if program not in self._places:
            self._places[program] = _places(program)
        numbers = {}
        for name, places in sorted(self._places[program].items()):
            first, phase = divmod(block.bindings[name].base_bytes, self._line_bytes)
            if (program, name, phase) not in self._cache:
                self._cache[program, name, phase] = self._search(places, phase)
            numbers[name] = self._cache[program, name, phase] + first
        return numbers

    def _search(self, places: list[_Place], phase: int) -> LineNumbers:
        runs: set[tuple[int, int]] = set()
        scattered: list[LineNumbers] = []
        for place, shift in places:
            lines = touched_lines(place, phase + shift, self._line_bytes)
            if isinstance(lines, slice):
                runs.add((lines.start, lines.stop))
            else:
                scattered.append(lines)
        return np.unique(np.concatenate([*(np.arange(*run) for run in sorted(runs)), *scattered]))


def _places(program: Program) -> dict[str, list[_Place]]:
    """Name -> where *program* copies from or to."""
    found: dict[str, list[_Place]] = {}
    bodies = {body: _copied(body) for body in program.bodies}
    for call in program.calls:
        for place in bodies[call.body]:
            found.setdefault(place.name, []).append((place, call.shifts.get(place.name, 0)))
    return found


def _copied(body: Body) -> list[Global]:
    return [place for place in map(copied_place, body) if place is not None]


def has_cross_core_flags(program: Program) -> bool:
    """Whether *program* sets or awaits flags between cores, so that its blocks differ in time."""
    return any(isinstance(op, CROSS_CORE_FLAGS) for body in program.leaves for op in body)


def _touch_counts(
    touched: dict[Block, dict[str, LineNumbers]], tensors: list[GlobalTensor], line_bytes: int
) -> dict[str, LineNumbers]:
    """Tensor -> how many blocks touch each of its lines."""
    counts = {
        tensor.name: np.zeros(allocated_bytes(tensor.nbytes) // line_bytes + 1, np.int64)
        for tensor in tensors
    }
    for block, names in touched.items():
        for name, lines in names.items():
            counts[block.bindings[name].tensor][lines] += 1
    return counts


def _alike(
    group: list[Block],
    name: str,
    touched: dict[Block, dict[str, LineNumbers]],
    counts: dict[str, LineNumbers],
) -> bool:
    """Whether the L2 treats all blocks of *group* the same where they use *name*."""
    first = group[0].bindings[name]
    if all(block.bindings[name] == first for block in group):
        return True
    return all(bool(np.all(counts[first.tensor][touched[block][name]] == 1)) for block in group)
