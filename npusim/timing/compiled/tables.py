"""Programs and cores as the flat tables that the compiled engine reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.cross_core_flags import awaits
from npusim.kernel.program import Block
from npusim.timing.pipes.decode import (
    COPY,
    CROSS_SET,
    PIPES,
    Code,
    CopyStep,
    CrossFlag,
    Decoded,
    Decoder,
    Run,
)

__all__ = ["LaneTables", "ProgramTables"]

Numbers = NDArray[np.int64]
Groups = Sequence[tuple[Block, ...]]


def table(rows: Sequence[Sequence[int]], columns: int) -> Numbers:
    """*rows* as an array, `(len(rows), columns)`."""
    return np.array(rows, np.int64).reshape(-1, columns)


class _Pattern(NamedTuple):
    """What the calls of a body have in common."""

    parts: Numbers
    """Its parts, as those of a program whose only call it is, `(parts, 3)`."""
    shifts: Numbers
    """What its runs add to the offsets into global memory, `(runs, names)`."""
    ops: int
    copies: Numbers
    """How many copies each pipe makes, `(pipes,)`."""
    cross_sets: list[int]
    """The numbers of the flags between cores that are set."""


class _Bodies(NamedTuple):
    """The bodies of a table, one after the other."""

    sizes: Numbers
    """Parts, runs and micro-ops of each, `(bodies, 3)`."""
    first: Numbers
    """Where those of each begin."""
    parts: Numbers
    shifts: Numbers
    copies: Numbers
    """How many copies each pipe makes, `(bodies, pipes)`."""


def _spread(sizes: Numbers, first: Numbers) -> tuple[Numbers, Numbers]:
    """For *sizes* rows from *first* on of each call: the call, and the row."""
    ends = np.cumsum(sizes)
    call = np.repeat(np.arange(sizes.size), sizes)
    return call, np.arange(call.size) - np.repeat(ends - sizes - first, sizes)


@dataclass
class ProgramTables:
    """The programs of a launch and the decoders they came through."""

    codes: list[Code]

    def __post_init__(self) -> None:
        self.decoders = list(dict.fromkeys(code.decoder for code in self.codes))
        self.copies: list[tuple[Decoder, CopyStep]] = [
            (decoder, copy) for decoder in self.decoders for copy in decoder.copies
        ]
        names = dict.fromkeys(copy.place.name for _, copy in self.copies)
        self.names = {name: number for number, name in enumerate(names)}
        """Name of global memory -> its column."""
        events = dict.fromkeys(flag for decoder in self.decoders for flag in decoder.cross_flags)
        self.cross_flags = {flag: number for number, flag in enumerate(events)}
        """Flag between cores -> its number."""
        self._bodies: dict[int, tuple[Decoded, int]] = {}
        """Address of what is decoded -> it, and the number of its first stretch."""
        stretches = 0
        every = {id(runs): runs for code in self.codes for runs in code.runs_of_bodies}
        for run in chain.from_iterable(every.values()):
            if id(run.decoded) not in self._bodies:
                self._bodies[id(run.decoded)] = run.decoded, stretches
                stretches += len(run.decoded.stretches)
        self._known: dict[tuple[int, int], _Bodies] = {}
        self._patterns = {key: self._pattern(runs) for key, runs in every.items()}
        """Address of what a body runs -> what each call of it has in common."""

    def steps(self) -> tuple[Numbers, Numbers]:
        """All steps, `(steps, 6)`, and the stretches, `(stretches, 1 + 2 pipes)`."""
        steps: list[tuple[int, ...]] = []
        rows = []
        for decoded, _ in self._bodies.values():
            ops = [iter(numbers.tolist()) for numbers in decoded.rows]
            for stretch in decoded.stretches:
                row = [stretch.cycles]
                for found, numbers in zip(stretch.steps, ops, strict=True):
                    row += [len(steps), len(found)]
                    steps += [(*step, op) for step, op in zip(found, numbers, strict=False)]
                rows.append(row)
        return table(steps, 6), table(rows, 1 + 2 * len(PIPES))

    def copy_steps(self) -> Numbers:
        """The copies, `(copies, 8)`."""
        return table(
            [
                (
                    self.names[copy.place.name],
                    copy.place.offset_bytes,
                    copy.is_read,
                    copy.gm_port,
                    copy.l2_port,
                    copy.piece_bytes,
                    copy.is_aliased,
                    copy.startup,
                )
                for _, copy in self.copies
            ],
            8,
        )

    def decoder_rows(self) -> tuple[Numbers, Numbers, Numbers]:
        """The decoders, `(decoders, 4)`, their sets of flags between cores, and the number that
        each has for each of these flags, `(decoders, flags)`.
        """
        rows: list[tuple[int, ...]] = []
        sets: list[int] = []
        first_copy = 0
        for decoder in self.decoders:
            rows.append((first_copy, len(decoder.flags), len(sets), decoder.cross_core))
            first_copy += len(decoder.copies)
            sets += [self.cross_flags[flag] for flag in decoder.cross_flags]
        numbers = [
            [decoder.flags.get(flag, -1) for flag in self.cross_flags] for decoder in self.decoders
        ]
        return table(rows, 4), np.array(sets, np.int64), table(numbers, len(self.cross_flags) or 1)

    def code_rows(self) -> tuple[Numbers, Numbers, Numbers]:
        """The programs, `(codes, 3)`, their parts, `(parts, 3)`, and what each run adds to the
        offsets into global memory, `(runs, names)`.
        """
        rows: list[tuple[int, ...]] = []
        parts, shifts = [table([], 3)], [self._shifts([])]
        first_part = first_shift = 0
        for code in self.codes:
            of_code, moved = self._parts_of(code)
            of_code[:, 1] += first_shift
            rows.append((first_part, len(of_code), self.decoders.index(code.decoder)))
            first_part += len(of_code)
            first_shift += len(moved)
            parts.append(of_code)
            shifts.append(moved)
        return table(rows, 3), np.concatenate(parts), np.concatenate(shifts)

    def _parts_of(self, code: Code) -> tuple[Numbers, Numbers]:
        """The parts of *code* and the shifts of its runs: those of each call, moved on."""
        table = code.calls
        known = self._of_bodies(code)
        # Of each call its first part, its first run and its first micro-op: (calls, 3)
        sizes = known.sizes[table.body]
        first = np.cumsum(sizes, axis=0) - sizes
        moved = np.zeros((table.body.size, len(self.names) or 1), np.int64)
        for column, name in enumerate(table.names):
            if name in self.names:
                moved[:, self.names[name]] = table.shifts[:, column]
        call, where = _spread(sizes[:, 0], known.first[table.body, 0])
        parts = known.parts[where] + first[call] * (0, 1, 1)
        call, where = _spread(sizes[:, 1], known.first[table.body, 1])
        return parts, known.shifts[where] + moved[call]

    def _of_bodies(self, code: Code) -> _Bodies:
        """What programs of one table of bodies have in common."""
        key = id(code.calls.bodies), id(code.decoder)
        if key not in self._known:
            found = [self._patterns[id(runs)] for runs in code.runs_of_bodies]
            rows = [[len(x.parts), len(x.shifts), x.ops] for x in found]
            sizes = np.array(rows, np.int64).reshape(-1, 3)
            self._known[key] = _Bodies(
                sizes,
                np.cumsum(sizes, axis=0) - sizes,
                np.concatenate([table([], 3), *(x.parts for x in found)]),
                np.concatenate([self._shifts([]), *(x.shifts for x in found)]),
                table([x.copies.tolist() for x in found], len(PIPES)),
            )
        return self._known[key]

    def _pattern(self, runs: list[Run]) -> _Pattern:
        parts = []
        for number, run in enumerate(runs):
            _, first = self._bodies[id(run.decoded)]
            stretches = range(first, first + len(run.decoded.stretches))
            parts += [(stretch, number, run.first) for stretch in stretches]
        last = runs[-1] if runs else None
        ops = last.first + sum(map(len, last.decoded.rows)) if last else 0
        none = np.zeros(len(PIPES), np.int64)
        copies = sum((self._copies[id(run.decoded)] for run in runs), none)
        sets = [number for run in runs for number in self._cross_sets[id(run.decoded)]]
        shifts = self._shifts(run.shifts for run in runs)
        return _Pattern(table(parts, 3), shifts, ops, copies, sets)

    def _shifts(self, found: Iterable[dict[str, int]]) -> Numbers:
        """Shifts by name as rows, `(shifts, names)`; a column of zeros where there are no names."""
        rows = [[shifts.get(name, 0) for name in self.names] or [0] for shifts in found]
        return table(rows, len(self.names) or 1)

    def copies_of(self, code: Code) -> Numbers:
        """How many copies each pipe makes in *code*, `(pipes,)`."""
        often = np.bincount(code.calls.body, minlength=len(code.calls.bodies))
        copies: Numbers = often @ self._of_bodies(code).copies
        return copies

    def most_risen(self) -> int:
        """How often flags between cores rise for one core at most."""
        # A flag rises for the n-th time with the last of the n-th sets.
        most: Counter[CrossFlag] = Counter()
        for code in self.codes:
            sets: Counter[CrossFlag] = Counter()
            often = np.bincount(code.calls.body, minlength=len(code.calls.bodies)).tolist()
            for runs, calls in zip(code.runs_of_bodies, often, strict=True):
                for number in self._patterns[id(runs)].cross_sets if calls else ():
                    sets[code.decoder.cross_flags[number]] += calls
            most |= sets
        return most.total()

    @cached_property
    def _copies(self) -> dict[int, Numbers]:
        """Address of what is decoded -> how many copies each pipe makes in it."""
        return {key: _count_of_copies(body) for key, (body, _) in self._bodies.items()}

    @cached_property
    def _cross_sets(self) -> dict[int, list[int]]:
        """Address of what is decoded -> the numbers of the flags between cores that it sets."""
        return {
            key: [
                x
                for stretch in body.stretches
                for steps in stretch.steps
                for what, _, _, x, _ in steps
                if what == CROSS_SET
            ]
            for key, (body, _) in self._bodies.items()
        }


def _count_of_copies(body: Decoded) -> Numbers:
    """How many copies each pipe makes in *body*, `(pipes,)`."""
    counts = np.zeros(len(PIPES), np.int64)
    for stretch in body.stretches:
        for pipe, steps in enumerate(stretch.steps):
            counts[pipe] += sum(step[0] == COPY for step in steps)
    return counts


class LaneTables:
    """The lanes of a launch: which program each runs, and what its names mean."""

    def __init__(
        self, programs: ProgramTables, groups: Groups, codes: Sequence[Code], tensors: Sequence[str]
    ) -> None:
        self._programs, self._groups, self._codes = programs, groups, codes
        self._tensors = {name: number for number, name in enumerate(tensors)}

    def members(self) -> Numbers:
        """The lanes, `(lanes, 2)`: program, cores."""
        numbers = {code: number for number, code in enumerate(self._programs.codes)}
        rows = zip(self._codes, self._groups, strict=True)
        return table([(numbers[code], len(group)) for code, group in rows], 2)

    def bindings(self) -> Numbers:
        """What each name means to each lane, `(lanes, names, 4)`; zeros where it has none."""
        names = self._programs.names
        found = np.zeros((len(self._groups), len(names) or 1, 4), np.int64)
        for row, group in zip(found, self._groups, strict=True):
            for name, bound in group[0].bindings.items():
                if name not in names:
                    continue
                different = len({block.bindings[name] for block in group})
                tensor = self._tensors[bound.tensor]
                row[names[name]] = tensor, bound.base_bytes, bound.is_cached, different
        return found

    def hearers(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """For each lane and flag between cores: where its hearers begin, all hearers, and the same
        of the lanes that must have set the flag before they hear of it.
        """
        firsts = [group[0] for group in self._groups]
        hearers: list[int] = []
        setters: list[int] = []
        first_hearer, first_setter = [0], [0]
        known: dict[tuple[str, int | None, str], tuple[list[int], list[int]]] = {}
        of_group: dict[int, list[int]] = {}
        for lane, block in enumerate(firsts):
            of_group.setdefault(block.group, []).append(lane)
        for block in firsts:
            for mode, _ in self._programs.cross_flags:
                key = block.kind, block.group if mode == "group" else None, mode
                if key not in known:
                    near = of_group[block.group] if mode == "group" else range(len(firsts))
                    heard = [i for i in near if awaits(firsts[i], mode, block)]
                    # All cores that await this one await the same set of cores.
                    await_ = [
                        i for i in near if heard and awaits(firsts[heard[0]], mode, firsts[i])
                    ]
                    known[key] = heard, await_
                heard, await_ = known[key]
                hearers += heard
                setters += await_
                first_hearer.append(len(hearers))
                first_setter.append(len(setters))
        first = np.array(first_hearer, np.int64), np.array(first_setter, np.int64)
        return first[0], np.array(hearers, np.int64), first[1], np.array(setters, np.int64)
