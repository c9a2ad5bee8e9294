"""Flags between cores, checked group by group, so that one group stands for all equal ones.

Cores that the flags of a group tie together are walked together, see :class:`Exchange`: their
accesses to memory shared within the group must be ordered call by call. Memory that groups share
may be accessed in different phases, which flags of all cores separate; within a phase, no other
core may access the bytes that a core writes.

The result is either that all is well, or inconclusive: then all cores are compared with each other,
which finds the error and its message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from npusim.check.byte_ranges import (
    Numbers,
    Pieces,
    Search,
    is_read_elsewhere,
    merged,
    overlap,
    shifted,
)
from npusim.check.cross_core_races import by_kind, check_apart, common_bytes, shared_tensors
from npusim.check.hazards import (
    CrossCoreOrder,
    Exchange,
    Followed,
    Members,
    Orders,
    Recorder,
    Touch,
    Visible,
)
from npusim.check.hazards.pasts import PIPES, Accesses
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode, global_operand
from npusim.kernel.program import Block, Program
from npusim.kernel.table import Calls, TabledProgram

__all__ = ["check_order"]

Group = tuple[int, ...]
"""Cores, by their index in the launch."""
Called = tuple[list[Followed], Calls]
"""See :meth:`Recorder.call_by_call`."""


def check_order(blocks: tuple[Block, ...], orders: Orders) -> None:
    """Raise DeadlockError, FlagError or RaceError if flags between cores are not sufficient."""
    ranges, recorder = Search(blocks), Recorder(orders)
    tensors, modes = shared_tensors(blocks, ranges), _modes(blocks)
    if not modes and not tensors:
        return
    met = [kind for kind, mode in modes if mode == "all"]
    if len(met) < 2 and not any(mode == "pair" for _, mode in modes):
        groups = _groups(blocks, is_grouped=any(mode != "all" for _, mode in modes))
        among = frozenset(x for x in tensors if _share_bytes(groups, ranges, x))
        if met or not among:
            launch = _Launch(blocks, groups, frozenset(tensors) - among, among, *met)
            phases = launch.phases(recorder)
            parted = Search(launch.blocks)
            if phases and all(_are_apart(parted, x, launch.kinds, phases) for x in among):
                return
    check_apart(blocks, tensors, CrossCoreOrder(blocks, recorder))


def _modes(blocks: tuple[Block, ...]) -> set[tuple[str, CrossMode]]:
    """Kinds of cores, and the modes of their flags between cores."""
    # Every body of a table is run by some program of it, and most programs share one.
    tables = {(block.kind, Calls.of(block.program).bodies) for block in blocks}
    leaves = {(kind, leaf) for kind, bodies in tables for body in bodies for leaf in body.leaves}
    return {
        (kind, op.mode)
        for kind, leaf in leaves
        if leaf.has_cross_core_flags
        for op in leaf
        if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag)
    }


def _groups(blocks: tuple[Block, ...], is_grouped: bool) -> list[Group]:
    """The cores that flags of a group tie together; single cores if there are none."""
    found: dict[int, list[int]] = {}
    for core, block in enumerate(blocks):
        found.setdefault(block.group if is_grouped else core, []).append(core)
    return [tuple(group) for group in found.values()]


def _share_bytes(groups: list[Group], ranges: Search, tensor: str) -> bool:
    """Whether a group touches bytes of *tensor* that another one writes."""
    group = np.zeros(sum(map(len, groups)), np.int64)
    for number, cores in enumerate(groups):
        group[[*cores]] = number
    writes, reads = (ranges.of_groups(group, tensor, is_write) for is_write in (True, False))
    return overlap(writes) or is_read_elsewhere(writes, reads)


def _are_apart(ranges: Search, tensor: str, kinds: set[str], phases: list[Numbers]) -> bool:
    """Whether no core touches what another one writes of *tensor*, phase by phase.

    Among the *kinds* of access, additions in the same type do not conflict.
    """
    touched = {kind: ranges.in_phases(tensor, kind, phases) for kind in kinds | {"write"}}
    writes = touched.pop("write")
    return not overlap(writes) and not any(
        is_read_elsewhere(writes, each)
        or (
            kind != "read"
            and any(is_read_elsewhere(each.together(), x) for k, x in touched.items() if k != kind)
        )
        for kind, each in touched.items()
    )


@dataclass(slots=True)
class _Footprints:
    """The accesses of calls to shared tensors, numbered."""

    found: list[dict[tuple[str, str], Pieces]] = field(default_factory=lambda: [{}])
    """Tensor and kind -> the bytes, for each footprint."""
    _numbers: dict[object, int] = field(default_factory=lambda: {(): 0})
    _clashes: dict[tuple[int, int], bool] = field(default_factory=dict)

    def number(self, touched: dict[tuple[str, str], list[Pieces]]) -> int:
        """The number of the footprint *touched*; 0 for none."""
        each = {key: merged(pieces) for key, pieces in sorted(touched.items())}
        key = tuple((key, starts.tobytes(), ends.tobytes()) for key, (starts, ends) in each.items())
        number = self._numbers.setdefault(key, len(self.found))
        if number == len(self.found):
            self.found.append(each)
        return number

    def clash(self, one: int, other: int) -> bool:
        """Whether two footprints race unless they are ordered."""
        key = min(one, other), max(one, other)
        if key not in self._clashes:
            self._clashes[key] = any(
                tensor == another
                and (kind != other_kind or kind == "write")
                and common_bytes(pieces, others) is not None
                for (tensor, kind), pieces in self.found[one].items()
                for (another, other_kind), others in self.found[other].items()
            )
        return self._clashes[key]


class _Launch:
    """The calls of a launch, as the cores of a group see them."""

    def __init__(
        self,
        blocks: tuple[Block, ...],
        groups: list[Group],
        within: frozenset[str],
        among: frozenset[str],
        met: str = "",
    ) -> None:
        """Cores of a group share tensors *within* it, groups those *among* them; cores of kind
        *met* use flags of all cores.
        """
        self.blocks = blocks
        """The blocks, with bodies split where flags between cores require it."""
        self._groups, self._within, self._among = groups, within, among
        self._met = met
        self.kinds: set[str] = set()
        """Kinds of access to shared tensors, see :func:`kind_of`."""
        self._footprints = _Footprints()
        self._visible: list[Visible] = []
        self._numbers: dict[object, int] = {}
        self._pipes: dict[str, dict[str, set[int]]] = {}
        """Kind of core, and role of pipes -> the pipes that have it."""

    def phases(self, recorder: Recorder) -> list[Numbers] | None:
        """The phase of each call of each of `blocks` in what it touches among groups.

        None unless it is certain that no cores of a group race, or wait forever.
        """
        called = dict[Program, Called]()
        programs = dict[Program, TabledProgram]()
        for program in dict.fromkeys(block.program for block in self.blocks):
            found = recorder.call_by_call(program)
            if found is None:
                return None
            programs[program] = TabledProgram(program.name, found[1], {})
            called[programs[program]] = found
        self.blocks = tuple([replace(x, program=programs[x.program]) for x in self.blocks])
        times = self._times_met(called)
        if times is None:
            return None
        calls = self._numbered(called)
        walks: dict[object, list[list[int]] | None] = {}
        exchanges: dict[tuple[str, ...], Exchange] = {}
        phases = [np.zeros(0, np.int64)] * len(self.blocks)
        for group in self._groups:
            kinds = tuple(self.blocks[core].kind for core in group)
            key = kinds, *(calls[core].tobytes() for core in group)
            if kinds not in exchanges:
                exchanges[kinds] = Exchange(self._members(kinds, times), self._footprints.clash)
            if key not in walks:
                own = [calls[core].tolist() for core in group]
                walks[key] = exchanges[kinds].walk(own, self._visible)
            walk = walks[key]
            if walk is None:
                return None
            for core, of_calls in zip(group, walk, strict=True):
                phases[core] = np.array(of_calls, np.int64)
        return phases

    def _times_met(self, called: dict[Program, Called]) -> int | None:
        """How often all cores of the kind *met* wait for each other.

        None unless each of them sets the same flags in the same order, and waits for them likewise.
        """
        sequences = set()
        for program in {block.program for block in self.blocks if block.kind == self._met}:
            uses = [
                use.op
                for followed in called[program][0]
                for use in followed.effect.uses
                if use.op.mode == "all"
            ]
            for kind in (CrossCoreSetFlag, CrossCoreWaitFlag):
                sequences.add(tuple(op.event for op in uses if isinstance(op, kind)))
        if len(sequences) > 1:
            return None
        return len(sequences.pop()) if sequences else 0

    def _members(self, kinds: tuple[str, ...], times: int) -> Members:
        def those(role: str) -> tuple[frozenset[int], ...]:
            return tuple(frozenset(self._pipes.get(kind, {}).get(role, ())) for kind in kinds)

        return Members(
            kinds, those("touching"), those("phased"), those("setting"), those("meeting"), times
        )

    # ---- calls, by number ----

    def _numbered(self, called: dict[Program, Called]) -> list[Numbers]:
        """For each core the numbers of its calls, equal where other cores see the same of them.

        That is the flags that the body uses, the bindings of its names, and their offsets.
        """
        every = [*{id(x): x for found, _ in called.values() for x in found}.values()]
        places = {id(each): number for number, each in enumerate(every)}
        names = sorted(
            {
                name
                for block in self.blocks
                for name, bound in block.bindings.items()
                if bound.tensor in self._within
            }
        )
        touched = map(_names, every)
        touches = np.array([[name in those for name in names] for those in touched], np.bool_)
        touches = touches.reshape(len(every), len(names))
        bindings: dict[object, int] = {}
        columns: list[list[Numbers]] = []
        cores: list[int] = []
        for group in self._groups:
            origins: dict[str, int] = {}
            for core in group:
                block = self.blocks[core]
                found, calls = called[block.program]
                followed = np.array([places[id(each)] for each in found], np.int64)
                bound = tuple((x, block.bindings[x].tensor) for x in sorted(block.bindings))
                binding = bindings.setdefault((block.kind, bound), len(bindings))
                offsets = self._offsets(block, calls, names, origins)
                own = np.where(touches[followed], offsets, 0)
                columns.append([np.full(followed.size, binding), followed, *own.T])
                cores.append(core)
        number = _combined([np.concatenate(column) for column in zip(*columns, strict=True)])
        sizes = [own[0].size for own in columns]
        edges = np.cumsum([0, *sizes], dtype=np.int64)
        whose = np.repeat(np.arange(len(cores)), sizes)
        seen: list[int] = []
        for row in np.unique(number, return_index=True)[1].tolist():
            place = int(whose[row])
            _, which, *at = (int(column[row - edges[place]]) for column in columns[place])
            moved = dict(zip(names, at, strict=True))
            seen.append(self._seen(self.blocks[cores[place]], every[which], moved))
        number = np.array(seen, np.int64)[number]
        split = dict(zip(cores, np.split(number, edges[1:-1]), strict=True))
        return [split[core] for core in range(len(self.blocks))]

    def _offsets(
        self, block: Block, calls: Calls, names: list[str], origins: dict[str, int]
    ) -> Numbers:
        """The offset of each of *names* for each call, `(calls, names)`.

        Relative to the group's first offset in the tensor, given by *origins*.
        """
        found = np.zeros((calls.body.size, len(names)), np.int64)
        for column, name in enumerate(names):
            bound = block.bindings.get(name)
            if bound is None or bound.tensor not in self._within:
                continue
            origin = origins.setdefault(bound.tensor, bound.base_bytes)
            found[:, column] = bound.base_bytes - origin
            if name in calls.names:
                found[:, column] += calls.shifts[:, calls.names.index(name)]
        return found

    def _seen(self, block: Block, followed: Followed, moved: dict[str, int]) -> int:
        """The number of what others see of a call of *block*; *moved* has its names' offsets."""
        pipes = self._pipes.setdefault(block.kind, {})
        for use in followed.effect.uses:
            if isinstance(use.op, CrossCoreSetFlag):
                role = "setting" if use.op.mode == "group" else "meeting"
                pipes.setdefault(role, set()).add(PIPES.index(use.op.pipe))
        together: dict[object, list[int]] = {}
        for number, accesses in enumerate(followed.accesses):
            if self._shared_by(block, accesses):
                on = {pipe for _, pipe in _touched_by(accesses)}
                # Ordering after the last access of a pipe implies ordering after all its accesses.
                key = on.pop() if len(on) == 1 else (number,)
                together.setdefault(key, []).append(number)
        touches = tuple(
            self._touch(block, [followed.accesses[x] for x in numbers], moved, tuple(numbers))
            for numbers in together.values()
        )
        found = self._numbers.setdefault((followed.number, touches), len(self._visible))
        if found == len(self._visible):
            self._visible.append(Visible(followed.effect, touches))
        return found

    def _touch(
        self,
        block: Block,
        accesses: list[Accesses],
        moved: dict[str, int],
        numbers: tuple[int, ...],
    ) -> Touch:
        """*accesses* of *block*, whose *numbers* are those of a call."""
        pipes = self._pipes[block.kind]
        touched: dict[tuple[str, str], list[Pieces]] = {}
        is_phased = False
        for each in accesses:
            for tensor, pipe in self._shared_by(block, each):
                is_phased |= tensor in self._among
                role = "phased" if tensor in self._among else "touching"
                pipes.setdefault(role, set()).add(pipe)
            for (name, kind), pieces in by_kind(each).items():
                self.kinds.add(kind)
                if name in moved and self._tensor(block, name) in self._within:
                    key = block.bindings[name].tensor, kind
                    touched.setdefault(key, []).append(shifted(pieces, moved[name]))
        return Touch(numbers, self._footprints.number(touched), is_phased)

    def _shared_by(self, block: Block, accesses: Accesses) -> set[tuple[str, int]]:
        """The shared tensors that *accesses* of *block* touch, and by which pipes."""
        found = {(self._tensor(block, name), pipe) for name, pipe in _touched_by(accesses)}
        return {(tensor, pipe) for tensor, pipe in found if tensor in self._within | self._among}

    @staticmethod
    def _tensor(block: Block, name: str) -> str:
        # A name without a binding is reported by the check of bounds.
        return block.bindings[name].tensor if name in block.bindings else ""


def _touched_by(accesses: Accesses) -> set[tuple[str, int]]:
    """Names of global memory, and the pipes that touch them."""
    return {
        (place.name, PIPES.index(op.pipe))
        for _, ops in accesses
        for op in ops
        for place in [global_operand(op)]
        if place is not None
    }


def _names(followed: Followed) -> set[str]:
    return {name for accesses in followed.accesses for name, _ in _touched_by(accesses)}


def _combined(columns: list[Numbers]) -> Numbers:
    """A number for each row of *columns*, equal for equal rows."""
    numbers: dict[bytes, int] = {}
    table = np.stack(columns, axis=1, dtype=np.int64)
    rows = table.view(f"V{table.itemsize * len(columns)}").ravel().tolist()
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], np.int64)
