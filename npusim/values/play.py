"""Computes the values of a launch: the program of each core, in an order that flags allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from npusim.check.cross_core_flags import CrossCoreFlagCounts
from npusim.data.blas import one_thread
from npusim.data.errors import TrapError
from npusim.data.product import CubeOrder
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag
from npusim.kernel.program import Block, Body, Call, Program
from npusim.values.buffers import Buffers
from npusim.values.facts import CrossCoreOp, facts_of
from npusim.values.lanes import Batch, batches
from npusim.values.late import Late
from npusim.values.matrices import Panels
from npusim.values.registers import renamed
from npusim.values.repeats import Repeat, repeat_at
from npusim.values.semantics import Memory, State, run

__all__ = ["DEFAULT_MODEL", "Model", "Player", "bases_of", "moved", "ordered"]


@dataclass(frozen=True, slots=True)
class Model:
    """Options for computing values."""

    cube_order: CubeOrder = "k16"
    """How many products of fp16 or bf16 the cube sums exactly before it rounds."""
    byte_exact: bool = False
    """Store L1 and L0 as bytes at all times, and compute each block alone: the same values, more
    slowly."""


DEFAULT_MODEL = Model()


class Player:
    """Runs blocks on the bytes of *tensors*."""

    def __init__(
        self,
        blocks: tuple[Block, ...],
        tensors: list[GlobalTensor],
        spec: DeviceSpec,
        orders: dict[Program, Sequence[int]],
        model: Model = DEFAULT_MODEL,
    ) -> None:
        self._blocks, self._spec = blocks, spec
        self._model = model
        self._panels = Panels(sum(tensor.nbytes for tensor in tensors))
        self._data = {tensor.name: tensor.data for tensor in tensors}
        programs = {block.program for block in blocks}
        self._calls = {program: ordered(program, orders[program]) for program in programs}
        bodies = {program: {call.body for call in self._calls[program]} for program in programs}
        self._written, late = set[str](), set[str]()
        for block in blocks:
            for body in bodies[block.program]:
                facts = facts_of(body)
                self._written |= {block.bindings[name].tensor for name in facts.stored}
                late |= {block.bindings[name].tensor for name in facts.drained}
        self._has_cross_core_flags = any(
            facts_of(body).meets for program in programs for body in bodies[program]
        )
        # Byte-exact memory does not allow deferred products.
        self._late = None if model.byte_exact else Late(self._panels, model.cube_order)
        self._late_tensors = set() if model.byte_exact else late
        self._buffers: dict[tuple[str, int], Buffers] = {}
        self._repeated: dict[tuple[object, ...], Buffers] = {}
        """Kind of core, lanes and repeats -> buffers of calls that are computed together."""
        self._trapped: dict[int, str] = {}
        """Index of a block in the launch -> why it stopped."""

    def run(self, progress: Callable[[float], None] | None = None) -> None:
        """Run all blocks; *progress* is called with the share that has started."""
        with one_thread():
            self._run(progress)

    def _run(self, progress: Callable[[float], None] | None) -> None:
        batches = self._batches()
        if self._has_cross_core_flags:
            # Blocks of a batch advance together, so cores that take turns might deadlock.
            flags = {batch: self._flags(batch[0]) for batch in batches}
            if not _meet(flags, CrossCoreFlagCounts(self._blocks)):
                batches = [(block,) for block in self._blocks]
        plays = {batch: self._play(batch) for batch in batches}
        if not _meet(plays, CrossCoreFlagCounts(self._blocks), progress):
            raise AssertionError("flags between cores have been checked")
        if self._trapped:
            _, reason = min(self._trapped.items())
            raise TrapError(reason)
        if self._late is not None:
            self._late.flush()

    def _flags(self, block: Block) -> Iterator[CrossCoreOp]:
        """The flags between cores of *block* in order."""
        for call in self._calls[block.program]:
            for piece in facts_of(call.body).pieces:
                if not isinstance(piece, list):
                    yield piece

    def _batches(self) -> list[Batch]:
        """The blocks, grouped into those that are computed together."""
        if self._model.byte_exact:
            return [(block,) for block in self._blocks]
        return batches(self._blocks, self._calls)

    def _play(self, batch: Batch) -> Iterator[CrossCoreOp]:
        """Run the blocks of *batch* together, stopping at each flag between cores."""
        first = batch[0]
        if any(place < self._blocks.index(first) for place in self._trapped):
            return
        overflow, order = self._spec.half_overflow, self._model.cube_order
        buffers = self._fresh(first.kind, len(batch))
        state = State(buffers, {}, overflow, order, self._panels, late=self._late)
        bound = self._bound(batch)
        calls = [self._calls[block.program] for block in batch]
        place = 0
        try:
            while place < len(calls[0]):
                together = tuple(each[place] for each in calls)
                state.memories = _memories(bound, together)
                repeat = None if self._model.byte_exact else repeat_at(place, calls, bound)
                if repeat is not None:
                    self._run_repeat(repeat, first.kind, together[0].body, state)
                    place += repeat.count
                    continue
                for piece in facts_of(together[0].body).pieces:
                    if isinstance(piece, list):
                        run(piece, state)
                    else:
                        yield piece
                place += 1
        except TrapError as trap:
            state.trapped[0] = str(trap)
        if state.trapped:
            lane, reason = min(state.trapped.items())
            self._stop(batch[lane], reason)

    def _run_repeat(self, repeat: Repeat, kind: str, body: Body, before: State) -> None:
        """Compute the calls of *repeat*, of which the first one would start from *before*."""
        key = kind, *before.lead, repeat.count
        if key not in self._repeated:
            lanes = before.lead[0] if before.lead else None
            core = self._spec.cores[kind]
            self._repeated[key] = Buffers(core, lanes=lanes, repeats=repeat.count)
        buffers = self._repeated[key]
        buffers.reset()
        state = repeat.state(before, buffers)
        state.memories = repeat.memories(before.memories)
        (ops,) = facts_of(body).pieces
        assert isinstance(ops, list)
        run(ops, state)

    def _stop(self, block: Block, reason: str) -> None:
        """Record that *block* trapped; in the end the first one in launch order is reported.

        Raises TrapError at once where others may wait for *block*, since blocks run alone there.
        """
        self._trapped[self._blocks.index(block)] = message = f"{reason} (core {block.core})"
        if self._has_cross_core_flags:
            raise TrapError(message)

    def _fresh(self, kind: str, lanes: int) -> Buffers:
        """Empty buffers; batches that run to their end one after the other share them."""
        key = kind, lanes
        if self._has_cross_core_flags or key not in self._buffers:
            core, byte_exact = self._spec.cores[kind], self._model.byte_exact
            side_by_side = lanes if lanes > 1 else None
            self._buffers[key] = Buffers(core, byte_exact=byte_exact, lanes=side_by_side)
        else:
            self._buffers[key].reset()
        return self._buffers[key]

    def _bound(self, batch: Batch) -> dict[str, Memory]:
        """The bindings of global memory names for the blocks of *batch*."""
        memories = {}
        for name, bound in batch[0].bindings.items():
            data = self._data[bound.tensor]
            if data is None:
                raise ValueError(
                    f"chip: tensor {bound.tensor} must have values, but only its size is known; "
                    f"place an array or ask for time only"
                )
            is_constant = bound.tensor not in self._written
            is_late = bound.tensor in self._late_tensors
            bases = bases_of(batch, name)
            memories[name] = Memory(data, bases[0], is_constant, is_late, bases)
        return memories


def _meet(
    plays: Mapping[Batch, Iterator[CrossCoreOp]],
    flags: CrossCoreFlagCounts,
    progress: Callable[[float], None] | None = None,
) -> bool:
    """Run batches from flag to flag, always the first that can; return whether all finish.

    *progress* is called with the share of the blocks that has started.
    """
    left, begun = dict(plays), 0
    blocks = sum(len(batch) for batch in plays)
    waiting: dict[Batch, _Wait] = {}
    while left:
        batch = next((x for x in left if x not in waiting or waiting[x].is_over(flags)), None)
        if batch is None:
            return False
        if waiting.pop(batch, None) is None:
            if progress:
                progress(begun / blocks)
            begun += len(batch)
        for op in left[batch]:
            if isinstance(op, CrossCoreSetFlag):
                for block in batch:
                    flags.set(block, op)
            elif not (wait := _Wait(batch, op)).is_over(flags):
                waiting[batch] = wait
                break
        else:
            del left[batch]
    return True


@dataclass(slots=True)
class _Wait:
    """*batch* waits at *op*."""

    batch: Batch
    op: CrossCoreWaitFlag
    up: int = 0
    """For this many of its first blocks the flag is set, and stays so until they pass."""

    def is_over(self, flags: CrossCoreFlagCounts) -> bool:
        """Let the whole batch pass if the flag is set for each block."""
        while self.up < len(self.batch):
            if not flags.is_up(self.batch[self.up], self.op):
                return False
            self.up += 1
        for block in self.batch:
            flags.lower(block, self.op)
        return True


def ordered(program: Program, order: Sequence[int]) -> tuple[Call, ...]:
    """The calls of *program*; if program order is not possible, one call in *order*, which is."""
    if isinstance(order, range):
        return program.calls
    ops = renamed(program.ops)
    return (Call(Body(tuple(ops[index] for index in order))),)


def _memories(bound: dict[str, Memory], calls: tuple[Call, ...]) -> dict[str, Memory]:
    """The bindings in *calls*, one per block, from *bound*, those of the blocks."""
    shifted = {name for call in {id(call): call for call in calls}.values() for name in call.shifts}
    memories = dict(bound)
    for name in shifted.intersection(bound):
        memory = bound[name]
        bases = moved(memory.bases, name, calls)
        memories[name] = Memory(memory.data, bases[0], memory.is_constant, memory.is_late, bases)
    return memories


def bases_of(batch: Batch, name: str) -> Sequence[int]:
    """Where *name* of global memory begins for each block of *batch*."""
    return _evenly(tuple(block.bindings[name].base_bytes for block in batch))


def moved(bases: Sequence[int], name: str, calls: tuple[Call, ...]) -> Sequence[int]:
    """Where *name* begins in *calls*, one per block, if it begins at *bases* for the blocks."""
    first, *others = calls
    by = first.shifts.get(name, 0)
    if any(call is not first for call in others):
        return _evenly(
            tuple(x + call.shifts.get(name, 0) for x, call in zip(bases, calls, strict=True))
        )
    if isinstance(bases, range):
        return range(bases.start + by, bases.stop + by, bases.step)
    return tuple(base + by for base in bases)


def _evenly(bases: tuple[int, ...]) -> Sequence[int]:
    """*bases*, as a range if they are equally spaced."""
    if len(bases) < 2 or bases[1] <= bases[0]:
        return bases
    even = range(bases[0], bases[-1] + 1, bases[1] - bases[0])
    return even if tuple(even) == bases else bases
