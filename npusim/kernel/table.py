"""A launch as one table: which core runs which body, with which offsets.

A row is a call of a body: the number of the body, and the bytes by which each name of global memory
is shifted. The rows of a program are contiguous, and cores that run the same at other offsets share
them. So results that depend only on bodies are computed once per body, those that depend on the
order of bodies once per distinct sequence, and offsets are arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from npusim.isa import MicroOp
from npusim.kernel.program import Block, Body, Call, Declared, FirstCalls, Program

__all__ = ["Calls", "LaunchTable", "MicroOps", "TabledProgram", "in_pairs", "spread"]

__kernel_vocabulary__ = True

Integers = NDArray[np.int64]


def spread(sizes: Integers, first: Integers | int = 0) -> tuple[Integers, Integers]:
    """Expand *sizes* rows from *first* on for each item: the item of each row, and the row itself.

    >>> spread(np.array([2, 1]), np.array([5, 0]))
    (array([0, 0, 1]), array([5, 6, 0]))
    """
    item = np.repeat(np.arange(sizes.size), sizes)
    before = np.cumsum(sizes) - sizes
    return item, np.arange(item.size) + (first - before)[item]


def held_bytes(arrays: Iterable[Integers]) -> int:
    """Memory that *arrays* hold; a view holds all of its base array."""
    whole = [array if array.base is None else array.base for array in arrays]
    return sum(nbytes for nbytes in {id(array): array.nbytes for array in whole}.values())


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of bodies, one per row."""

    bodies: tuple[Body, ...]
    names: tuple[str, ...]
    """Names of global memory, one column of *shifts* each."""
    body: Integers
    """Number of the body, `(calls,)`."""
    shifts: Integers
    """Bytes added to every offset into a name, `(calls, names)`."""

    @cached_property
    def sizes(self) -> Integers:
        """Number of micro-ops of each body, `(bodies,)`."""
        return np.array([len(body) for body in self.bodies], np.int64)

    @staticmethod
    def of(program: Program) -> Calls:
        """The calls of *program*, which may be made of a table or of objects."""
        if isinstance(program, TabledProgram):
            return program.table
        if program not in _CALLS:
            _CALLS[program] = Calls._of_objects(program)
        return _CALLS[program]

    @staticmethod
    def _of_objects(program: Program) -> Calls:
        bodies: dict[Body, int] = {}
        names: dict[str, int] = {}
        for call in program.calls:
            bodies.setdefault(call.body, len(bodies))
            for name in call.shifts:
                names.setdefault(name, len(names))
        body = np.array([bodies[call.body] for call in program.calls], np.int64)
        shifts = np.zeros((len(program.calls), len(names)), np.int64)
        for row, call in zip(shifts, program.calls, strict=True):
            for name, nbytes in call.shifts.items():
                row[names[name]] = nbytes
        return Calls(tuple(bodies), tuple(names), body, shifts)

    def as_objects(self) -> tuple[Call, ...]:
        """A :class:`Call` for each row, with the shifts of the names that its body touches."""
        columns = []
        for body in self.bodies:
            columns.append([(x, name) for x, name in enumerate(self.names) if name in body.names])
        rows = zip(self.body.tolist(), self.shifts.tolist(), strict=True)
        return tuple(
            Call(self.bodies[body], {name: shifts[x] for x, name in columns[body]})
            for body, shifts in rows
        )


_CALLS: WeakKeyDictionary[Program, Calls] = WeakKeyDictionary()
"""Programs made of objects -> their calls, which hold no reference to them."""


class TabledProgram(Program):
    """A program whose calls are rows of a table; objects are created on access."""

    table: Calls

    def __init__(
        self,
        name: str,
        table: Calls,
        claimed_bytes: dict[str, int],
        queues: tuple[Declared, ...] = (),
    ) -> None:
        vars(self).update(
            name=name, table=table, claimed_bytes=claimed_bytes, lines=(), queues=queues
        )

    @cached_property
    def parts(self) -> tuple[Call, ...]:
        return self.table.as_objects()

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        return self.parts

    @cached_property
    def called(self) -> tuple[Body, ...]:
        return tuple(map(self.table.bodies.__getitem__, self.table.body.tolist()))

    @cached_property
    def first_calls(self) -> FirstCalls:
        numbers = self.table.body.tolist()
        # For equal keys the last entry wins; in reversed order that is the first row of each.
        first = dict(zip(reversed(numbers), reversed(range(len(numbers))), strict=True))
        rows = sorted(first.values())
        starts = (self._ends - self.table.sizes[self.table.body])[rows].tolist()
        bodies = [self.table.bodies[numbers[row]] for row in rows]
        return tuple(zip(starts, bodies, strict=True))

    @cached_property
    def _ends(self) -> Integers:
        return np.cumsum(self.table.sizes[self.table.body])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0


class MicroOps:
    """Numbers for the micro-ops of bodies without calls; equal micro-ops get the same number."""

    def __init__(self) -> None:
        self.distinct: list[MicroOp] = []
        """The first micro-op of each number."""
        self._numbers: dict[MicroOp, int] = {}
        self._by_address: dict[int, int] = {}
        """Number by address of the object; bodies share many objects and keep them alive."""
        self._of_bodies: dict[Body, list[int]] = {}

    def of(self, body: Body) -> list[int]:
        """The number of each micro-op of *body*."""
        if body not in self._of_bodies:
            known = self._by_address
            self._of_bodies[body] = [
                known[id(op)] if id(op) in known else self._number(op) for op in body.ops
            ]
        return self._of_bodies[body]

    def _number(self, op: MicroOp) -> int:
        number = self._numbers.setdefault(op, len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(op)
        self._by_address[id(op)] = number
        return number


def in_pairs(bodies: tuple[Body, ...], body: Integers, first: Integers) -> tuple[Body, ...]:
    """Combine each sequence of calls into one body that makes them, without their shifts.

    *body* holds the numbers of the bodies called, `(rows,)`, sequence after sequence; *first* the
    start of each, and the end of the last. A body calls two halves, each of these two halves again,
    and so on. Halves that recur anywhere are one body, so a result per body is computed once for
    steady loops of any length.
    """
    found, node = list(bodies), body
    while (sizes := np.diff(first)).max(initial=0) > 1:
        sequence, number = spread(sizes // 2)
        left = first[sequence] + 2 * number
        values, pair = np.unique(node[left] * len(found) + node[left + 1], return_inverse=True)
        ends = np.cumsum([0, *(sizes + 1) // 2])
        halves = np.zeros(ends[-1], np.int64)
        # The last one of an odd sequence remains unpaired.
        halves[ends[1:] - 1] = node[first[1:] - 1]
        halves[ends[sequence] + number] = len(found) + pair
        parts = zip(*(x.tolist() for x in np.divmod(values, len(found))), strict=True)
        found += [Body((Call(found[one]), Call(found[other]))) for one, other in parts]
        node, first = halves, ends
    return tuple(found[node[start]] if end > start else Body(()) for start, end in pairwise(first))


@dataclass(frozen=True, eq=False)
class LaunchTable:
    """The blocks of a launch as arrays; a core is the index of its block in the launch."""

    programs: tuple[Program, ...]
    """Each distinct program; its rows are contiguous."""
    program: Integers
    """The number of each core's program, `(cores,)`."""
    bodies: tuple[Body, ...]
    names: tuple[str, ...]
    first: Integers
    """The first row of each program, and the end of the last one, `(programs + 1,)`."""
    body: Integers
    """`(rows,)`."""
    shifts: Integers
    """`(rows, names)`."""
    tensors: tuple[str, ...]
    tensor: Integers
    """The number of the tensor to which a core binds a name, or -1, `(cores, names)`."""
    base: Integers
    """Offset in the tensor where the name begins, `(cores, names)`."""

    @staticmethod
    def of(blocks: tuple[Block, ...]) -> LaunchTable:
        """The table of *blocks*, built from objects or tables and cached while they live."""
        known = _KNOWN.get(blocks[0]) if blocks else None
        if known is None or [each() for each in known[0]] != [*blocks]:
            known = tuple(map(ref, blocks)), _table_of(blocks)
            if blocks:
                _KNOWN[blocks[0]] = known
        return known[1]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays and of those of its programs."""
        tables = [program.table for program in self.programs if isinstance(program, TabledProgram)]
        arrays = [array for table in tables for array in (table.body, table.shifts)]
        arrays += [self.program, self.first, self.body, self.shifts, self.tensor, self.base]
        return held_bytes(arrays)

    @property
    def cores(self) -> int:
        """Number of cores."""
        return self.program.size

    @cached_property
    def program_of_row(self) -> Integers:
        """The program of each row, `(rows,)`."""
        return np.repeat(np.arange(len(self.programs)), np.diff(self.first))

    def whole(self) -> dict[Program, Body]:
        """All calls of each program as one body, see :func:`in_pairs`."""
        found = in_pairs(self.bodies, self.body, self.first)
        return dict(zip(self.programs, found, strict=True))

    @cached_property
    def micro_ops(self) -> MicroOps:
        """The micro-ops of its bodies, numbered once for all users."""
        return MicroOps()

    def column(self, name: str) -> int:
        """The column of *name*; raises ValueError."""
        return self.names.index(name)

    def sequences(self) -> list[int]:
        """A number for each core, equal where the calls are the same except for their shifts.

        Such cores call the same bodies in order and shift the same names. A core that binds several
        names to one tensor gets a number that no other core has.
        """
        found: dict[Hashable, int] = {}
        rows = [slice(*edges) for edges in zip(self.first, self.first[1:], strict=False)]
        keys = [(self.body[x].tobytes(), self.shifts[x].any(axis=0).tobytes()) for x in rows]
        in_order = np.sort(self.tensor, axis=1)
        aliased = np.any((np.diff(in_order, axis=1) == 0) & (in_order[:, 1:] >= 0), axis=1)
        return [
            found.setdefault((keys[program], core if is_aliased else None), len(found))
            for core, (program, is_aliased) in enumerate(
                zip(self.program.tolist(), aliased.tolist(), strict=True)
            )
        ]


_KNOWN: WeakKeyDictionary[Block, tuple[tuple[ref[Block], ...], LaunchTable]] = WeakKeyDictionary()
"""First block of a launch -> all of them, and their table, which references none of them."""


def _table_of(blocks: tuple[Block, ...]) -> LaunchTable:
    programs = tuple(dict.fromkeys(block.program for block in blocks))
    number = {program: index for index, program in enumerate(programs)}
    tables = [Calls.of(program) for program in programs]
    names = dict.fromkeys(
        (
            *(name for each in dict.fromkeys(table.names for table in tables) for name in each),
            *(name for block in blocks for name in block.bindings),
        )
    )
    columns = {name: index for index, name in enumerate(names)}
    bodies, body = _numbered(tables)
    shifts = [np.zeros((table.body.size, len(names)), np.int64) for table in tables]
    for own, table in zip(shifts, tables, strict=True):
        own[:, [columns[name] for name in table.names]] = table.shifts
    return LaunchTable(
        programs,
        np.array([number[block.program] for block in blocks], np.int64),
        bodies,
        tuple(names),
        np.cumsum([0, *(table.body.size for table in tables)]),
        body,
        np.concatenate([np.zeros((0, len(names)), np.int64), *shifts]),
        *_bound(blocks, columns),
    )


def _numbered(tables: Iterable[Calls]) -> tuple[tuple[Body, ...], Integers]:
    """The bodies of all *tables*, each once, and the number of each row's, `(rows,)`."""
    bodies: dict[Body, int] = {}
    # Programs of one launch share the same tuple object of bodies, so its address identifies it.
    numbers: dict[int, Integers] = {}
    rows = [np.zeros(0, np.int64)]
    for table in tables:
        key = id(table.bodies)
        if key not in numbers:
            own = [bodies.setdefault(body, len(bodies)) for body in table.bodies]
            numbers[key] = np.array(own, np.int64)
        rows.append(numbers[key][table.body])
    return tuple(bodies), np.concatenate(rows)


def _bound(
    blocks: tuple[Block, ...], columns: dict[str, int]
) -> tuple[tuple[str, ...], Integers, Integers]:
    """The tensors that *blocks* bind, and for each core and name its tensor and offset."""
    tensors = dict.fromkeys(bound.tensor for block in blocks for bound in block.bindings.values())
    number = {name: index for index, name in enumerate(tensors)}
    tensor = np.full((len(blocks), len(columns)), -1, np.int64)
    base = np.zeros((len(blocks), len(columns)), np.int64)
    for core, block in enumerate(blocks):
        for name, bound in block.bindings.items():
            tensor[core, columns[name]] = number[bound.tensor]
            base[core, columns[name]] = bound.base_bytes
    return tuple(tensors), tensor, base
