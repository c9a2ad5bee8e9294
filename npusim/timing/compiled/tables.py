"""Programs and cores as flat tables for the compiled engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.cross_core_flags import awaits
from npusim.data.integers import distinct
from npusim.kernel.program import Block
from npusim.timing.pipes.decode import (
    COPY,
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


def table(rows: Sequence[Sequence[int] | Numbers], columns: int) -> Numbers:
    """*rows* as an array, `(len(rows), columns)`."""
    return np.array(rows, np.int64).reshape(-1, columns)


class _Pattern(NamedTuple):
    """The data that all calls of a body share."""

    first_part: int
    """Index of its first part among those of all bodies; it has *parts* of them."""
    parts: int
    ops: int
    copies: Numbers
    """Number of copies of each pipe, `(pipes,)`."""
    cross_sets: list[int]
    """Numbers of the flags between cores that it sets."""


class _Placed(NamedTuple):
    """A body, and where it is in the tables."""

    decoded: Decoded
    by: Decoder
    stretch: int
    """Index of its first stretch."""
    step: int
    """Index of its first step."""


@dataclass
class ProgramTables:
    """The programs of a launch, and the decoders that decoded them."""

    codes: list[Code]

    def __post_init__(self) -> None:
        self.decoders = list(dict.fromkeys(code.decoder for code in self.codes))
        every = {id(runs): runs for code in self.codes for runs in code.runs_of_bodies}
        decoders = {id(runs): code.decoder for code in self.codes for runs in code.runs_of_bodies}
        self._bodies: dict[int, _Placed] = {}
        """Address of a decoded object -> the object and its place."""
        stretches = steps = 0
        for key, runs in every.items():
            for decoded in (run.decoded for run in runs):
                if id(decoded) not in self._bodies:
                    self._bodies[id(decoded)] = _Placed(decoded, decoders[key], stretches, steps)
                    stretches += len(decoded.stretches)
                    steps += len(decoded.steps)
        self._used = {decoder: self._copies_of(decoder) for decoder in self.decoders}
        """The indices of the copies of each decoder, which may have decoded other launches too."""
        self.copies: list[tuple[Decoder, CopyStep]] = [
            (decoder, decoder.copies[index])
            for decoder, used in self._used.items()
            for index in used.tolist()
        ]
        names = dict.fromkeys(copy.place.name for _, copy in self.copies)
        self.names = {name: number for number, name in enumerate(names)}
        """Name of global memory -> its column."""
        events = dict.fromkeys(flag for decoder in self.decoders for flag in decoder.cross_flags)
        self.cross_flags = {flag: number for number, flag in enumerate(events)}
        """Flag between cores -> its number."""
        self._parts: list[tuple[int, int, int]] = []
        self._run_shifts: list[dict[str, int]] = []
        self._patterns = {key: self._pattern(runs) for key, runs in every.items()}
        """Address of the runs of a body -> the data that all its calls share."""
        self._tables: dict[tuple[int, Decoder], tuple[Numbers, Numbers]] = {}

    def _copies_of(self, decoder: Decoder) -> Numbers:
        own = [placed.decoded.copied for placed in self._bodies.values() if placed.by is decoder]
        return distinct(np.concatenate([np.zeros(0, np.int64), *own]))

    def steps(self) -> tuple[Numbers, Numbers]:
        """All steps, `(steps, 7)`, and the stretches, `(stretches, 2 + 2 pipes)`."""
        steps, bounds = [table((), 7)], [table((), 2 + 2 * len(PIPES))]
        for decoded, decoder, _, first in self._bodies.values():
            own, copied = decoded.steps.copy(), decoded.steps[:, 0] == COPY
            own[copied, 3] = np.searchsorted(self._used[decoder], decoded.copied)
            moved = decoded.bounds.copy()
            moved[:, 2::2] += first
            steps.append(own)
            bounds.append(moved)
        return np.concatenate(steps), np.concatenate(bounds)

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
        """The decoders, `(decoders, 4)`, the flags between cores that they set, and the number of
        each of these flags in each decoder, `(decoders, flags)`.
        """
        rows: list[tuple[int, ...]] = []
        sets: list[int] = []
        first_copy = 0
        for decoder in self.decoders:
            rows.append((first_copy, len(decoder.flags), len(sets), decoder.cross_core))
            first_copy += self._used[decoder].size
            sets += [self.cross_flags[flag] for flag in decoder.cross_flags]
        numbers = [
            [decoder.flags.get(flag, -1) for flag in self.cross_flags] for decoder in self.decoders
        ]
        return table(rows, 4), np.array(sets, np.int64), table(numbers, len(self.cross_flags) or 1)

    def part_rows(self) -> tuple[Numbers, Numbers]:
        """The parts of all bodies, `(parts, 3)`, and the shift that each run of a body adds to
        offsets into global memory, `(runs, names)`; one column of zeros if there are no names.
        """
        names = len(self.names) or 1
        rows = [[found.get(name, 0) for name in self.names] or [0] for found in self._run_shifts]
        return table(self._parts, 3), table(rows, names)

    def code_rows(self) -> tuple[Numbers, Numbers, Numbers]:
        """The programs, `(codes, 3)`, their calls, `(calls, 3)`, and the shift that each call adds
        to offsets into global memory, `(calls, names)`.
        """
        first = np.cumsum([0, *(code.calls.body.size for code in self.codes)])
        calls = np.zeros((first[-1], 3), np.int64)
        shifts = np.zeros((first[-1], len(self.names) or 1), np.int64)
        rows = []
        for code, start, end in zip(self.codes, first, first[1:], strict=False):
            body, own = code.calls.body, shifts[start:end]
            sizes = self._of_bodies(code)[0][body]
            calls[start:end] = sizes
            calls[start:end, 2] = np.cumsum(sizes[:, 2]) - sizes[:, 2]
            for column, name in enumerate(code.calls.names):
                if name in self.names:
                    own[:, self.names[name]] = code.calls.shifts[:, column]
            rows.append((start, sizes[:, 1].sum(), self.decoders.index(code.decoder)))
        return table(rows, 3), calls, shifts

    def _of_bodies(self, code: Code) -> tuple[Numbers, Numbers]:
        """For each body in the table of *code*: index of its first part, number of parts and
        number of micro-ops, `(bodies, 3)`; and its copies of each pipe, `(bodies, pipes)`.
        """
        # Programs of one launch share the tuple of bodies.
        key = id(code.calls.bodies), code.decoder
        if key not in self._tables:
            patterns = [self._patterns[id(runs)] for runs in code.runs_of_bodies]
            sizes = table([pattern[:3] for pattern in patterns], 3)
            copies = table([pattern.copies for pattern in patterns], len(PIPES))
            self._tables[key] = sizes, copies
        return self._tables[key]

    def _pattern(self, runs: list[Run]) -> _Pattern:
        first_part = len(self._parts)
        for number, run in enumerate(runs, len(self._run_shifts)):
            first = self._bodies[id(run.decoded)].stretch
            stretches = range(first, first + len(run.decoded.stretches))
            self._parts += [(stretch, number, run.first) for stretch in stretches]
        self._run_shifts += [run.shifts for run in runs]
        last = runs[-1] if runs else None
        ops = last.first + sum(map(len, last.decoded.rows)) if last else 0
        copies = table([run.decoded.copies for run in runs], len(PIPES)).sum(axis=0)
        sets = [number for run in runs for number in run.decoded.cross_sets]
        return _Pattern(first_part, len(self._parts) - first_part, ops, copies, sets)

    def copies_of(self, code: Code) -> Numbers:
        """Number of copies of each pipe in *code*, `(pipes,)`."""
        often = np.bincount(code.calls.body, minlength=len(code.calls.bodies))
        copies: Numbers = often @ self._of_bodies(code)[1]
        return copies

    def most_risen(self) -> int:
        """The most sets of any flag between cores for one core."""
        if not self.cross_flags:
            return 0
        # A flag is set for the n-th time by the last of the n-th sets.
        most: Counter[CrossFlag] = Counter()
        for code in self.codes:
            sets: Counter[CrossFlag] = Counter()
            often = np.bincount(code.calls.body, minlength=len(code.calls.bodies)).tolist()
            for runs, calls in zip(code.runs_of_bodies, often, strict=True):
                for number in self._patterns[id(runs)].cross_sets if calls else ():
                    sets[code.decoder.cross_flags[number]] += calls
            most |= sets
        return most.total()


class LaneTables:
    """The lanes of a launch: the program of each, and the bindings of its names."""

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
        """The binding of each name on each lane, `(lanes, names, 5)`; zeros if it has none."""
        names = self._programs.names
        found = np.zeros((len(self._groups), len(names) or 1, 5), np.int64)
        for row, group in zip(found, self._groups, strict=True):
            for name, bound in group[0].bindings.items():
                if name not in names:
                    continue
                different = len({block.bindings[name] for block in group})
                tensor = self._tensors[bound.tensor]
                own = bound.base_bytes, bound.is_cached, different, bound.is_early
                row[names[name]] = tensor, *own
        return found

    def hearers(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """For each lane and flag between cores: the start of its list of waiting lanes, those
        lists, and the same two for the lanes that must set the flag first.
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
                key = block.kind, block.group if mode != "all" else None, mode
                if key not in known:
                    near = of_group[block.group] if mode != "all" else range(len(firsts))
                    heard = [i for i in near if awaits(firsts[i], mode, block)]
                    # All cores that wait for this one wait for the same set of cores.
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
