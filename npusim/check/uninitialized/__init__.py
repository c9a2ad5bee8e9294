"""Does anything that nobody wrote end up in an output?

A core's buffers hold at launch what other kernels left there. To read it is no fault in itself:
vector instructions, fractals and copies of whole blocks reach over the end of a tile, and what they
make of it there is dropped, or stored where a later store puts something else. It is a fault where
it stays: in an output, or in what a trap stops by. So a mark for each byte of each buffer goes
through the program as values do (``flow``), and what a block leaves in an output, or reads back
from one, must bear none. What it is computed from counts, not what comes out: zero times an
unwritten number is unwritten, too. What a kernel keeps in workspaces counts as written.

Calls of one body that find the same marks leave the same, so each is followed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards import HazardError, Orders, areas
from npusim.check.hazards.areas import Area
from npusim.check.uninitialized.flow import FLOW, fills
from npusim.check.uninitialized.marks import NOBODY, WRITTEN, Array, Marks, Sink
from npusim.devices.schema import Core
from npusim.isa import (
    ORDERING,
    Global,
    MicroOp,
    Trap,
    combined_as,
    global_operand,
    writes_global,
)
from npusim.kernel.program import Block, Body, Call, Program

__all__ = ["UnwrittenError", "Written"]

State = tuple[tuple[tuple[str, int], ...], tuple[str, ...]]
"""The marks of a core: for each buffer that was written to the number of its contents, and the
registers that are marked."""
Numbers = NDArray[np.int64]


class UnwrittenError(HazardError):
    """What nobody wrote ends up in an output, or stops the core."""


class _Followed(NamedTuple):
    state: State
    """What a body leaves."""
    out: dict[int, Numbers]
    """Number of a micro-op that lets unwritten bytes out -> where they go, from the first byte of
    its name of global memory on."""


class Written:
    """Checks the blocks of one kind of core; bodies that their programs share are followed once."""

    def __init__(self, core: Core, orders: Orders, outputs: Mapping[str, int]) -> None:
        self._core, self._orders, self._outputs = core, orders, outputs
        self._marks = Marks(core, np.uint8)
        self._contents: list[Array] = []
        self._numbers: dict[bytes, int] = {}
        """Marks of a buffer -> their number among the contents."""
        self._loaded: dict[str, int] = {}
        """Buffer -> the number of what its marks are now; missing where nobody wrote anything."""
        self._after: dict[tuple[int, State], _Followed] = {}
        self._steps: dict[int, _Step] = {}
        """Number of a micro-op -> what it does to marks."""
        self._programs: dict[Program, list[dict[int, Numbers]]] = {}
        """For each call of a program what it lets out."""
        self._in_order: set[Program] = set()
        """Those that were followed in program order."""

    def check(self, block: Block, order: Sequence[int], like: Block | None = None) -> None:
        """Raise UnwrittenError if *block* leaves unwritten bytes, naming who read them first.

        *order* is one that the flags of its program allow; if that is free of races, any will do.
        *like* is a block of the same sequence (see :meth:`LaunchTable.sequences`) that was checked
        before: in program order it lets the same out.
        """
        program = block.program
        if like is not None and isinstance(order, range) and like.program in self._in_order:
            self._programs.setdefault(program, self._programs[like.program])
        if program not in self._programs:
            self._programs[program] = self._follow(program, order)
        if isinstance(order, range):
            self._in_order.add(program)
        if any(self._programs[program]):
            index = self._left(block, order, self._programs[program])
            if index is not None:
                raise UnwrittenError(_Search(program, self._core).find(order, index))

    def _follow(self, program: Program, order: Sequence[int]) -> list[dict[int, Numbers]]:
        state: State = ((), ())
        if not isinstance(order, range):
            steps = ((index, _Step.of(program.ops[index])) for index in order)
            return [self._run(state, steps).out]
        whole = self._after_body(self._orders.whole(program), state)
        outs: list[dict[int, Numbers]] = []
        for body in program.called if whole.out else ():
            # Where something is let out depends on the shifts of each call.
            followed = self._after_body(body, state)
            state = followed.state
            outs.append(followed.out)
        return outs

    def _after_body(self, body: Body, state: State) -> _Followed:
        """What *body* does when it finds *state*."""
        key = self._orders.number(body), state
        if key not in self._after:
            if body.calls:
                self._after[key] = self._after_calls(body.calls, state)
            else:
                self._after[key] = self._run(state, self._steps_of(body))
        return self._after[key]

    def _steps_of(self, body: Body) -> Iterator[tuple[int, _Step]]:
        """What the micro-ops of *body* do, each with its number; those without marks left out."""
        micro_ops = self._orders.micro_ops
        for index, number in enumerate(micro_ops.of(body)):
            if number not in self._steps:
                self._steps[number] = _Step.of(micro_ops.distinct[number])
            if not self._steps[number].only_orders:
                yield index, self._steps[number]

    def _after_calls(self, calls: tuple[Call, ...], state: State) -> _Followed:
        out: dict[int, Numbers] = {}
        start = 0
        for call in calls:
            followed = self._after_body(call.body, state)
            state = followed.state
            for index, places in followed.out.items():
                place = global_operand(call.ops[index]) if call.shifts else None
                shift = call.shifts.get(place.name, 0) if place else 0
                out[start + index] = places + shift
            start += len(call.body)
        return _Followed(state, out)

    def _run(self, state: State, steps: Iterable[tuple[int, _Step]]) -> _Followed:
        """What *steps* do one after the other, when they find *state*."""
        marks, wanted = self._marks, dict(state[0])
        for buffer in self._loaded.keys() - wanted.keys():
            marks.load(buffer, np.zeros(0, np.uint8))
        for buffer, number in wanted.items():
            if self._loaded.get(buffer) != number:
                marks.load(buffer, self._contents[number])
        marks.registers = dict.fromkeys(state[1], NOBODY)
        marks.changed.clear()
        outs: dict[int, Numbers] = {}
        for index, step in steps:
            out = step.out(marks)
            if out is not None:
                outs[index] = _places(step.op, out)
        wanted |= {buffer: self._number(marks.bytes[buffer]) for buffer in marks.changed}
        self._loaded = wanted
        after = tuple(sorted(wanted.items())), tuple(sorted(marks.registers))
        return _Followed(after, outs)

    def _number(self, marks: Array) -> int:
        # A bit for each byte; what nobody wrote at the end of the buffer is left out.
        raw = np.packbits(marks).tobytes().rstrip(b"\xff")
        number = self._numbers.setdefault(raw, len(self._contents))
        if number == len(self._contents):
            self._contents.append(np.unpackbits(np.frombuffer(raw, np.uint8)))
        return number

    def _left(
        self, block: Block, order: Sequence[int], outs: list[dict[int, Numbers]]
    ) -> int | None:
        """The first micro-op whose unwritten bytes stay in an output, or are used; None if none."""
        left = _Outputs(block, self._outputs)
        uses: Iterable[tuple[int, MicroOp, dict[str, int], Numbers | None]]
        if not isinstance(order, range):
            ops = block.program.ops
            uses = ((index, ops[index], {}, outs[0].get(index)) for index in order)
        else:
            uses = (
                (start + index, op, call.shifts, out.get(index))
                for start, call, out in _starts(block.program, outs)
                for index, op in enumerate(call.body)
            )
        for index, op, shifts, places in uses:
            if isinstance(op, Trap) and places is not None:
                return index
            place = global_operand(op)
            if place is None:
                continue
            shift = shifts.get(place.name, 0)
            if not writes_global(op):
                found = left.reads(place, shift)
                if found is not None:
                    return found
            else:
                left.stores(index, op, place, shift, places)
        return left.first()


def _starts(
    program: Program, outs: list[dict[int, Numbers]]
) -> Iterable[tuple[int, Call, dict[int, Numbers]]]:
    """The calls of *program*, each with the number of its first micro-op and what it lets out."""
    start = 0
    for call, out in zip(program.calls, outs, strict=True):
        yield start, call, out
        start += len(call.body)


class _Outputs:
    """The unwritten bytes that a block has put into outputs."""

    def __init__(self, block: Block, sizes: Mapping[str, int]) -> None:
        self._bindings, self._sizes = block.bindings, sizes
        self._left: dict[str, tuple[Numbers, Numbers]] = {}
        """Output -> its unwritten bytes, and the micro-ops that put them there."""

    def stores(
        self, index: int, op: MicroOp, place: Global, shift: int, places: Numbers | None
    ) -> None:
        """Micro-op *index* overwrites *place*, at *places* with unwritten bytes."""
        bound = self._bindings[place.name]
        size = self._sizes.get(bound.tensor)
        if size is None:
            return
        spots, by = self._left.get(bound.tensor, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        if spots.size and combined_as(op) is None:
            kept = ~self._within(spots, place, bound.base_bytes + shift)
            spots, by = spots[kept], by[kept]
        if places is not None:
            new = places + bound.base_bytes + shift
            # Beyond the end there is room for whole blocks, which nobody looks at.
            new = new[new < size]
            spots, by = np.append(spots, new), np.append(by, np.full(new.size, index))
        self._left[bound.tensor] = spots, by

    def reads(self, place: Global, shift: int) -> int | None:
        """The micro-op that put unwritten bytes where *place* is read, if any did."""
        bound = self._bindings[place.name]
        spots, by = self._left.get(bound.tensor, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        hit = self._within(spots, place, bound.base_bytes + shift)
        return int(by[hit][0]) if hit.any() else None

    def first(self) -> int | None:
        """The first micro-op whose unwritten bytes are still there."""
        return min((int(by.min()) for _, by in self._left.values() if by.size), default=None)

    @staticmethod
    def _within(spots: Numbers, place: Global, base_bytes: int) -> NDArray[np.bool_]:
        behind = spots - (base_bytes + place.offset_bytes)
        if place.bursts == 1 or place.stride_bytes == 0:
            within = behind < place.burst_bytes
        else:
            # The latest burst that begins before each spot: if none earlier reaches it, none does.
            burst = np.minimum(behind // place.stride_bytes, place.bursts - 1)
            within = behind - burst * place.stride_bytes < place.burst_bytes
        inside: NDArray[np.bool_] = (behind >= 0) & within
        return inside


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A micro-op, and what of it is the same whatever it finds."""

    op: MicroOp
    only_orders: bool
    """Whether it does nothing to marks."""
    fills: bool
    reads: tuple[Area, ...]
    writes: tuple[Area, ...]
    flow: Callable[[Any, Marks], Sink]

    @staticmethod
    def of(op: MicroOp) -> _Step:
        only_orders = isinstance(op, ORDERING)
        return _Step(
            *(op, only_orders, fills(op), areas.read(op), areas.written(op), FLOW[type(op)])
        )

    def out(self, marks: Marks) -> Array | None:
        """Pass *marks* through it; returns those of what it lets out, if any is not WRITTEN."""
        if not marks.registers and self.fills and all(map(marks.is_written, self.reads)):
            for area in self.writes:
                marks.write(area)
            return None
        out = self.flow(self.op, marks)
        return out.copy() if out is not None and out.any() else None


def _places(op: MicroOp, out: Array) -> Numbers:
    """The bytes of its name of global memory where *op* puts marks *out*, a row a burst."""
    place = global_operand(op)
    if place is None:
        return np.zeros(0, np.int64)
    rows, columns = np.nonzero(out)
    size = place.burst_bytes // out.shape[1]
    first = place.offset_bytes + rows * place.stride_bytes + columns * size
    spots: Numbers = (first[:, None] + np.arange(size)).reshape(-1)
    return spots


# ---- what to say ----


class _Search:
    """Follows a program once more, with a mark for each micro-op that reads first."""

    def __init__(self, program: Program, core: Core) -> None:
        self.program = program
        self.marks = Marks(core, np.int32)
        self.read: dict[int, str] = {}
        """Mark -> the first unwritten bytes that its micro-op reads."""

    def find(self, order: Sequence[int], last: int) -> str:
        """What to say of micro-op number *last*, which lets unwritten bytes out."""
        for index in order:
            op = self.program.ops[index]
            out = self._follow(index, _Step.of(op))
            if out is not None and index == last:
                return self._says(index, op, int(out[out != WRITTEN][0]))
        raise AssertionError(f"{self.program.name}: everything that it lets out is written")

    def _follow(self, index: int, step: _Step) -> Array | None:
        """Pass marks through *step*, which puts its own in place of NOBODY where it reads."""
        marks, mine = self.marks, index + NOBODY + 1
        first = next(filter(None, map(self._unwritten, step.reads)), None)
        if first is None:
            return step.out(marks)
        self.read[mine] = first
        before = {name: array.copy() for name, array in marks.bytes.items()}
        for view in (view for area in step.reads for view in marks.views(area)):
            view[view == NOBODY] = mine
        self._forget()
        out = step.out(marks)
        written = {name: np.zeros(array.size, bool) for name, array in before.items()}
        for area in step.writes:
            for start, end in _runs(area):
                written[area.place][start:end] = True
        for name, array in marks.bytes.items():
            # What it only reads is as unwritten as it was.
            array[(array == mine) & (before[name] == NOBODY) & ~written[name]] = NOBODY
        self._forget()
        return out

    def _forget(self) -> None:
        """Marks were changed where :class:`Marks` does not see it."""
        for buffer in self.marks.bytes:
            self.marks.forget(buffer)

    def _unwritten(self, area: Area) -> str | None:
        """The first bytes of *area* that nobody wrote."""
        marks = self.marks.bytes[area.place]
        for start, end in _runs(area):
            unset = np.flatnonzero(marks[start:end] == NOBODY)
            if unset.size:
                first = start + int(unset[0])
                others = np.flatnonzero(marks[first:end] != NOBODY)
                last = first + int(others[0]) if others.size else end
                return f"{area.place}[{first}:{last}]"
        return None

    def _says(self, index: int, op: MicroOp, mark: int) -> str:
        numbered = self.program.numbered
        does = "stops by" if isinstance(op, Trap) else "stores"
        reader = mark - NOBODY - 1
        start = f"{self.program.name}: bytes must be written before they are used, but nobody wrote"
        if reader == index:
            return (
                f"{start} {self.read[mark]} before {numbered(index)} {op.pipe}: {op} "
                f"{does} it; load or fill it before"
            )
        first = self.program.ops[reader]
        return (
            f"{start} {self.read[mark]} before {numbered(reader)} {first.pipe}: {first} "
            f"reads it, and {numbered(index)} {op.pipe}: {op} {does} what comes of it; load or "
            f"fill it before"
        )


def _runs(area: Area) -> list[tuple[int, int]]:
    """Where the pieces of *area* begin and end."""
    if area.shape is None:
        return [(area.start, area.end)]
    starts, ends = areas.edges(area.shape)
    first = area.start - int(starts[0])
    return [(first + int(a), first + int(b)) for a, b in zip(starts, ends, strict=True)]
