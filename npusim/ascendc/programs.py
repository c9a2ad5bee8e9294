"""Convert the recording of a launch to the programs of its cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from npusim.ascendc.arithmetic import READS, Reading, Readings
from npusim.ascendc.auto_sync import AutoSync
from npusim.ascendc.calls.scalars import READ_TILING
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.folding import rounds_of
from npusim.ascendc.launch import Launch
from npusim.ascendc.recording import GlobalOperand
from npusim.check.bounds import BoundsError
from npusim.data.dtypes import DType
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Global,
    MicroOp,
    ScalarAlu,
    global_operand,
    moved,
    reads,
    writes,
    writes_global,
)
from npusim.kernel.program import Binding, Block, Body, Line, Program, short_line
from npusim.kernel.table import Calls, TabledProgram

__all__ = ["Place", "Written", "written"]

NOWHERE = ("", 0)
OPERATION = ScalarAlu("add", "computed", 0)
"""The scalar micro-op for a C++ operator; the host computes its value."""
Integers = NDArray[np.int64]
Form = tuple[int, tuple[tuple[MicroOp, ...], ...]]
"""A call, and the flags and barriers before each of its micro-ops."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in global memory."""

    name: str
    start: int
    nbytes: int


class SourceProgram(TabledProgram):
    """A program whose messages name lines of C++."""

    def numbered(self, index: int) -> str:
        """The index of a micro-op, and the line that issued it."""
        ((call, begin, _),) = self.between(index, index + 1)
        file, line = short_line(call.lines[index - begin])
        return f"#{index} (line {line} of {file})"


@dataclass(frozen=True, slots=True)
class Written:
    """The programs of a launch."""

    blocks: tuple[Block, ...]
    stored: frozenset[str]
    """Tensors that are written."""
    loaded: frozenset[str]
    """Tensors that are read."""
    types: dict[str, DType]
    """Tensor -> the element type of its first copy."""
    is_mix: bool
    """Whether cube and vector cores start together."""
    reads_tiling: bool
    """Whether the kernel reads its sizes from global memory."""
    reads_values: bool
    """Whether the kernel read values: with other values it may have other programs."""


def written(launch: Launch, places: Sequence[Place], spec: DeviceSpec) -> Written:
    """The programs of *launch*, whose tensors are at *places*; raises AscendCError."""
    return _Writing(launch, places, spec).written()


class _Writing:
    def __init__(self, launch: Launch, places: Sequence[Place], spec: DeviceSpec) -> None:
        self._launch, self._spec, self._readings = launch, spec, Readings()
        self._places = sorted(places, key=lambda place: place.start)
        self._starts = np.array([place.start for place in self._places], np.int64)
        self._ops: dict[tuple[int, int, str], tuple[MicroOp, ...]] = {}
        self._programs: dict[bytes, Program] = {}
        self._orders: dict[tuple[str, bytes], Integers] = {}
        """Calls of a core of a kind -> their forms."""
        self._forms: dict[Form, int] = {}
        self._form_of: list[Form] = []
        self._numbers: dict[bytes, int] = {}
        """The calls of a round -> the index of its body."""
        self._bodies: list[Body] = []
        self._claimed: list[dict[str, int]] = []
        """Buffer -> the end of the bytes that are used in it."""
        self._stored: set[str] = set()
        self._loaded: set[str] = set()
        self._types: dict[str, DType] = {}

    def written(self) -> Written:
        launch, recording = self._launch, self._launch.recording
        launch.lines.learn(x for called in recording.called for x in called.addresses)
        records = recording.records
        order = np.argsort(records["core"], kind="stable")
        edges = np.searchsorted(records["core"][order], np.arange(len(launch.kinds) + 1))
        blocks = []
        for core, kind in enumerate(launch.kinds):
            rows = records[order[edges[core] : edges[core + 1]]]
            blocks.append(self._block(core, kind, rows))
        return Written(
            tuple(blocks),
            frozenset(self._stored),
            frozenset(self._loaded),
            self._types,
            recording.halves > 0,
            any(called.name == READ_TILING for called in recording.called),
            launch.reads_values,
        )

    def _block(self, core: int, kind: str, rows: NDArray[np.void]) -> Block:
        called = rows["called"].astype(np.int64)
        tensor, offset = self._located(rows["address"], called)
        for number in np.unique(tensor[tensor >= 0]).tolist():
            own = tensor == number
            self._check_inside(core, self._places[number], called[own], offset[own])
        forms = self._ordered(core, called)
        rounds = rounds_of(called, tensor, offset, len(self._places))
        body = np.array(
            [
                self._body(core, forms[at], tensor[at], rounds.within[at])
                for at in map(slice, rounds.first[:-1], rounds.first[1:])
            ],
            np.int64,
        )
        bindings, shifts = {}, rounds.begin
        for number in np.flatnonzero(rounds.touched.any(axis=0)).tolist():
            own = rounds.touched[:, number]
            base = int(shifts[own, number].min())
            shifts[own, number] -= base
            name = self._places[number].name
            bindings[name] = Binding(name, base)
        key = kind.encode() + body.tobytes() + shifts.tobytes()
        if key not in self._programs:
            self._programs[key] = self._program(body, shifts)
        halves = self._launch.recording.halves
        return Block(core, kind, self._programs[key], bindings, core // (1 + halves))

    def _located(
        self, address: NDArray[np.int64], called: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The index of the tensor of each address, or -1, and the offset in it."""
        tensor = np.searchsorted(self._starts, address, side="right") - 1
        is_global = address >= 0
        lost = is_global & (tensor < 0)
        if lost.any():
            first = int(called[np.argmax(lost)])
            where = self._launch.at(self._launch.recording.called[first].addresses)
            raise AscendCError(
                f"{self._launch.recording.kernel}: what is in global memory must lie in a tensor, "
                f"but an operand lies before all of them ({where}); check its address"
            )
        tensor = np.where(is_global, tensor, -1)
        starts = self._starts[np.maximum(tensor, 0)] if len(self._starts) else 0
        return tensor, np.where(is_global, address - starts, 0)

    def _check_inside(
        self, core: int, place: Place, called: NDArray[np.int64], offset: NDArray[np.int64]
    ) -> None:
        """Raise BoundsError if an operand extends beyond its tensor."""
        for number in np.unique(called).tolist():
            furthest = int(offset[called == number].max())
            for op in self._launch.micro_ops(number, core):
                operand = global_operand(op)
                end = furthest + operand.end_bytes if operand else 0
                if end > place.nbytes:
                    what = self._launch.recording.called[number]
                    raise BoundsError(
                        f"{self._launch.recording.kernel}: {what.name} must stay within the "
                        f"{place.nbytes} bytes of {place.name}, but core {core} touches "
                        f"[{furthest}:{end}] ({self._launch.at(what.addresses)}); move less, or "
                        f"pass a larger tensor"
                    )

    def _ordered(self, core: int, called: Integers) -> Integers:
        """The index of the form of each call: what the compiler adds around its micro-ops."""
        key = self._launch.kinds[core], called.tobytes()
        if key not in self._orders:
            sync = AutoSync() if self._launch.auto_sync else None
            arithmetic = _Arithmetic(self._launch, self._readings)
            found = []
            for number in called.tolist():
                ops = self._launch.micro_ops(number, core)
                computed = arithmetic.before(number) if ops else ()
                added = tuple(
                    (*(() if index else computed), *(sync.before(op) if sync else ()))
                    for index, op in enumerate(ops)
                )
                form = number, added
                if form not in self._forms:
                    self._forms[form] = len(self._form_of)
                    self._form_of.append(form)
                found.append(self._forms[form])
            self._orders[key] = np.array(found, np.int64)
        return self._orders[key]

    def _body(self, core: int, forms: Integers, tensor: Integers, within: Integers) -> int:
        """The index of the body of a round."""
        kind = self._launch.kinds[core].encode()
        key = kind + forms.tobytes() + tensor.tobytes() + within.tobytes()
        if key not in self._numbers:
            parts: list[MicroOp] = []
            lines: list[Line] = []
            rows = zip(forms.tolist(), tensor.tolist(), within.tolist(), strict=True)
            for form, where, start in rows:
                number, added = self._form_of[form]
                for before, op in zip(added, self._named(core, number, where), strict=True):
                    parts += [*before, moved(op, start) if start else op]
                line = next(iter(self._launch.lines_of(number)), NOWHERE)
                lines += [line] * (len(parts) - len(lines))
            self._numbers[key] = len(self._bodies)
            self._bodies.append(Body(tuple(parts), tuple(lines)))
            claimed: dict[str, int] = {}
            for op in set(parts):
                for local in (*reads(op), *writes(op)):
                    claimed[local.buffer] = max(claimed.get(local.buffer, 0), local.end_bytes)
            self._claimed.append(claimed)
        return self._numbers[key]

    def _program(self, body: Integers, shifts: Integers) -> Program:
        used, own = np.unique(body, return_inverse=True)
        claimed: dict[str, int] = {}
        for number in used.tolist():
            for buffer, end in self._claimed[number].items():
                claimed[buffer] = max(claimed.get(buffer, 0), end)
        bodies = tuple(self._bodies[number] for number in used.tolist())
        names = tuple(place.name for place in self._places)
        table = Calls(bodies, names, own.reshape(-1), shifts)
        return SourceProgram(self._launch.recording.kernel, table, claimed)

    def _named(self, core: int, number: int, tensor: int) -> tuple[MicroOp, ...]:
        """The micro-ops of a call, whose operand in global memory is this tensor."""
        key = number, tensor, self._launch.kinds[core]
        if key not in self._ops:
            ops = self._launch.micro_ops(number, core)
            if tensor >= 0:
                name = self._places[tensor].name
                ops = tuple(_renamed(op, name) for op in ops)
                is_stored = [writes_global(op) for op in ops if global_operand(op)]
                for operand in self._launch.recording.called[number].arguments:
                    if isinstance(operand, GlobalOperand):
                        self._types.setdefault(name, operand.dtype)
                if any(is_stored):
                    self._stored.add(name)
                if not all(is_stored):
                    self._loaded.add(name)
            self._ops[key] = ops
        return self._ops[key]


class _Arithmetic:
    """The scalar operations of a core between its calls."""

    def __init__(self, launch: Launch, readings: Readings) -> None:
        self._launch, self._readings = launch, readings
        self._operations = 0
        """The operations before the next call."""
        self._reading: tuple[Reading, ...] = ()
        self._calls: set[tuple[int, ...]] = set()
        """The calls so far by which the current statement reads values."""

    def before(self, number: int) -> tuple[MicroOp, ...]:
        """The operations before call *number*."""
        found = (OPERATION,) * self._operations
        self._operations = 0
        called = self._launch.recording.called[number]
        line = next(iter(self._launch.lines_of(number)), NOWHERE)
        reading = self._readings.at(line) if called.name in READS else ()
        if reading != self._reading or called.addresses in self._calls:
            self._calls.clear()
            self._operations = sum(each.operations for each in reading)
        self._reading = reading
        self._calls.add(called.addresses)
        return found


def _renamed(op: MicroOp, name: str) -> MicroOp:
    """*op* with tensor *name* as its operand in global memory."""
    place = global_operand(op)
    if place is None:
        return op
    field = next(role.operand for role in op.roles if role.memory == "global")
    return replace(op, **{field: Global(name, *_fields(place))})  # type: ignore[type-var]


def _fields(place: Global) -> tuple[int, int, int, int]:
    return place.offset_bytes, place.burst_bytes, place.bursts, place.stride_bytes
