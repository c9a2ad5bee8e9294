"""Whether uninitialised bytes end up in an output.

At launch a core's buffers contain what other kernels left there. Reading that is not an error in
itself: vector instructions, fractals and copies of whole blocks extend past the end of a tile, and
their results there are discarded, or stored where a later store overwrites them. It is an error if
it remains: in an output, or in the condition of a trap. So a mark for each byte of each buffer goes
through the program as values do (``flow``), and what a block leaves in an output, or reads back
from one, must have none. Marks depend on the operands, not on the result: zero times an
uninitialised number is uninitialised. Contents of workspaces count as written.

Calls of one body that start with the same marks have the same effect, so each is followed once.
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
"""The marks of a core: for each buffer written so far the number of its contents, and the marked
registers."""
Numbers = NDArray[np.int64]


class UnwrittenError(HazardError):
    """Uninitialised bytes end up in an output, or stop the core."""


class _Followed(NamedTuple):
    state: State
    """The state after a body."""
    out: dict[int, Numbers]
    """Index of a micro-op that stores unwritten bytes -> their destination, relative to the first
    byte of its name of global memory."""


class Written:
    """Checks the blocks of one kind of core; bodies shared by their programs are followed once."""

    def __init__(self, core: Core, orders: Orders, outputs: Mapping[str, int]) -> None:
        self._core, self._orders, self._outputs = core, orders, outputs
        self._marks = Marks(core, np.uint8)
        self._contents: list[Array] = []
        self._numbers: dict[bytes, int] = {}
        """Marks of a buffer -> their number among the contents."""
        self._loaded: dict[str, int] = {}
        """Buffer -> the number of its present marks; absent if nothing was written."""
        self._after: dict[tuple[int, State], _Followed] = {}
        self._steps: dict[int, _Step] = {}
        """Number of a micro-op -> its effect on marks."""
        self._programs: dict[Program, list[dict[int, Numbers]]] = {}
        """For each call of a program, the unwritten bytes that it stores."""
        self._in_order: set[Program] = set()
        """Programs followed in program order."""

    def check(self, block: Block, order: Sequence[int], like: Block | None = None) -> None:
        """Raise UnwrittenError if *block* leaves unwritten bytes, naming the first that read them.

        *order* is one that the flags of its program allow; without races, any such order will do.
        *like* is a block of the same sequence (see :meth:`LaunchTable.sequences`) that was checked
        before: in program order it stores the same unwritten bytes.
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
            # The destinations depend on the shifts of each call.
            followed = self._after_body(body, state)
            state = followed.state
            outs.append(followed.out)
        return outs

    def _after_body(self, body: Body, state: State) -> _Followed:
        """The effect of *body* in *state*."""
        key = self._orders.number(body), state
        if key not in self._after:
            if body.calls:
                self._after[key] = self._after_calls(body.calls, state)
            else:
                self._after[key] = self._run(state, self._steps_of(body))
        return self._after[key]

    def _steps_of(self, body: Body) -> Iterator[tuple[int, _Step]]:
        """The effects of the micro-ops of *body*, each with its index, if they have any."""
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
        """The effect of *steps*, one after the other, in *state*."""
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
        # One bit per byte, without the unwritten bytes at the end of the buffer.
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
    """The calls of *program*, each with the index of its first micro-op and what it stores."""
    start = 0
    for call, out in zip(program.calls, outs, strict=True):
        yield start, call, out
        start += len(call.body)


class _Outputs:
    """The unwritten bytes that a block has stored in outputs."""

    def __init__(self, block: Block, sizes: Mapping[str, int]) -> None:
        self._bindings, self._sizes = block.bindings, sizes
        self._left: dict[str, tuple[Numbers, Numbers]] = {}
        """Output -> its unwritten bytes, and the micro-ops that stored them."""

    def stores(
        self, index: int, op: MicroOp, place: Global, shift: int, places: Numbers | None
    ) -> None:
        """Micro-op *index* overwrites *place*, with unwritten bytes at *places*."""
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
            # There is slack for whole blocks beyond the end, which is never read.
            new = new[new < size]
            spots, by = np.append(spots, new), np.append(by, np.full(new.size, index))
        self._left[bound.tensor] = spots, by

    def reads(self, place: Global, shift: int) -> int | None:
        """The micro-op that stored unwritten bytes where *place* reads, if any did."""
        bound = self._bindings[place.name]
        spots, by = self._left.get(bound.tensor, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        hit = self._within(spots, place, bound.base_bytes + shift)
        return int(by[hit][0]) if hit.any() else None

    def first(self) -> int | None:
        """The first micro-op whose unwritten bytes remain."""
        return min((int(by.min()) for _, by in self._left.values() if by.size), default=None)

    @staticmethod
    def _within(spots: Numbers, place: Global, base_bytes: int) -> NDArray[np.bool_]:
        behind = spots - (base_bytes + place.offset_bytes)
        if place.bursts == 1 or place.stride_bytes == 0:
            within = behind < place.burst_bytes
        else:
            # The latest burst that begins before each spot: if it does not reach the spot, none
            # does.
            burst = np.minimum(behind // place.stride_bytes, place.bursts - 1)
            within = behind - burst * place.stride_bytes < place.burst_bytes
        inside: NDArray[np.bool_] = (behind >= 0) & within
        return inside


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A micro-op, with everything that does not depend on marks."""

    op: MicroOp
    only_orders: bool
    """Whether it has no effect on marks."""
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
        """Pass *marks* through it; return those that it stores, unless all are WRITTEN."""
        if not marks.registers and self.fills and all(map(marks.is_written, self.reads)):
            for area in self.writes:
                marks.write(area)
            return None
        out = self.flow(self.op, marks)
        return out.copy() if out is not None and out.any() else None


def _places(op: MicroOp, out: Array) -> Numbers:
    """The bytes of its name of global memory where *op* stores marks *out*, one row per burst."""
    place = global_operand(op)
    if place is None:
        return np.zeros(0, np.int64)
    rows, columns = np.nonzero(out)
    size = place.burst_bytes // out.shape[1]
    first = place.offset_bytes + rows * place.stride_bytes + columns * size
    spots: Numbers = (first[:, None] + np.arange(size)).reshape(-1)
    return spots


# ---- messages ----


class _Search:
    """Follows a program again, with a separate mark for each micro-op that reads first."""

    def __init__(self, program: Program, core: Core) -> None:
        self.program = program
        self.marks = Marks(core, np.int32)
        self.read: dict[int, str] = {}
        """Mark -> the first unwritten bytes that its micro-op reads."""

    def find(self, order: Sequence[int], last: int) -> str:
        """The message for micro-op *last*, which stores unwritten bytes."""
        for index in order:
            op = self.program.ops[index]
            out = self._follow(index, _Step.of(op))
            if out is not None and index == last:
                return self._says(index, op, int(out[out != WRITTEN][0]))
        raise AssertionError(f"{self.program.name}: everything that it lets out is written")

    def _follow(self, index: int, step: _Step) -> Array | None:
        """Pass marks through *step*, which replaces NOBODY by its own mark where it reads."""
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
            # Bytes that it only reads remain unwritten.
            array[(array == mine) & (before[name] == NOBODY) & ~written[name]] = NOBODY
        self._forget()
        return out

    def _forget(self) -> None:
        """Reset caches after marks were changed without :class:`Marks` noticing."""
        for buffer in self.marks.bytes:
            self.marks.forget(buffer)

    def _unwritten(self, area: Area) -> str | None:
        """The first bytes of *area* that were never written."""
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
    """Start and end of the pieces of *area*."""
    if area.shape is None:
        return [(area.start, area.end)]
    starts, ends = areas.edges(area.shape)
    first = area.start - int(starts[0])
    return [(first + int(a), first + int(b)) for a, b in zip(starts, ends, strict=True)]
