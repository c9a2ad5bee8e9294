"""Computes the values of a launch: the program of each core, in an order that the flags allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from npusim.check.cross_core_flags import CrossCoreFlagCounts
from npusim.data.errors import TrapError
from npusim.data.product import CubeOrder
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    ORDERING,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    MicroOp,
    global_operand,
    writes_global,
)
from npusim.kernel.program import Block, Body, Call, Program
from npusim.values.buffers import Buffers
from npusim.values.matrices import Panels
from npusim.values.registers import renamed
from npusim.values.semantics import Memory, State, run

__all__ = ["DEFAULT_MODEL", "Model", "Player"]

CrossCoreOp = CrossCoreSetFlag | CrossCoreWaitFlag
Piece = list[MicroOp] | CrossCoreOp
"""Micro-ops between two flags between cores, or one such flag."""


@dataclass(frozen=True, slots=True)
class Model:
    """How values are computed."""

    cube_order: CubeOrder = "k16"
    """How many products of fp16 or bf16 the cube adds up exactly before it rounds."""
    byte_exact: bool = False
    """Keep L1 and L0 as bytes all the time, which gives the same values more slowly."""


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
        self._blocks, self._spec, self._orders = blocks, spec, orders
        self._model = model
        self._panels = Panels()
        self._data = {tensor.name: tensor.data for tensor in tensors}
        self._pieces: dict[Body, list[Piece]] = {}
        self._written = {
            block.bindings[name].tensor for block in blocks for name in _stored(block.program)
        }
        self._has_cross_core_flags = any(
            isinstance(op, CrossCoreOp)
            for block in blocks
            for body in block.program.bodies
            for op in body
        )
        self._buffers: dict[str, Buffers] = {}
        self._reordered: dict[Program, tuple[Call, ...]] = {}

    def run(self, progress: Callable[[float], None] | None = None) -> None:
        """Run all blocks; *progress* is called with the share that has begun."""
        if not self._has_cross_core_flags:
            for index, block in enumerate(self._blocks):
                if progress:
                    progress(index / len(self._blocks))
                for _ in self._play(block):
                    raise AssertionError("a program without flags between cores never stops")
            return
        flags = CrossCoreFlagCounts(self._blocks)
        plays = {block: self._play(block) for block in self._blocks}
        waiting: dict[Block, CrossCoreWaitFlag] = {}
        while plays:
            block = next(x for x in plays if x not in waiting or flags.take(x, waiting[x]))
            waiting.pop(block, None)
            for op in plays[block]:
                if isinstance(op, CrossCoreSetFlag):
                    flags.set(block, op)
                elif not flags.take(block, op):
                    waiting[block] = op
                    break
            else:
                del plays[block]
                if progress:
                    progress(1 - len(plays) / len(self._blocks))

    def _play(self, block: Block) -> Iterator[CrossCoreOp]:
        """Run *block*, stopping at each flag between cores."""
        overflow, order = self._spec.half_overflow, self._model.cube_order
        state = State(self._fresh(block.kind), {}, overflow, order, self._panels)
        bound = self._bound(block)
        try:
            for call in self._calls(block.program):
                state.memories = _shifted(bound, call.shifts)
                for piece in self._pieces_of(call.body):
                    if isinstance(piece, list):
                        run(piece, state)
                    else:
                        yield piece
        except TrapError as trap:
            raise TrapError(f"{trap} (core {block.core})") from None

    def _fresh(self, kind: str) -> Buffers:
        """Empty buffers; cores that run one after the other, each to its end, use the same ones."""
        if self._has_cross_core_flags or kind not in self._buffers:
            self._buffers[kind] = Buffers(self._spec.cores[kind], byte_exact=self._model.byte_exact)
        else:
            self._buffers[kind].reset()
        return self._buffers[kind]

    def _bound(self, block: Block) -> dict[str, Memory]:
        memories = {}
        for name, bound in block.bindings.items():
            data = self._data[bound.tensor]
            if data is None:
                raise ValueError(
                    f"chip: tensor {bound.tensor} must have values, but only its size is known; "
                    f"place an array or ask for time only"
                )
            memories[name] = Memory(data, bound.base_bytes, bound.tensor not in self._written)
        return memories

    def _calls(self, program: Program) -> tuple[Call, ...]:
        """The calls of *program*; if program order is not allowed, one call in an order that is."""
        if program not in self._reordered:
            order = self._orders[program]
            calls = program.calls
            if not isinstance(order, range):
                ops = renamed(program.ops)
                calls = (Call(Body(tuple(ops[index] for index in order))),)
            self._reordered[program] = calls
        return self._reordered[program]

    def _pieces_of(self, body: Body) -> list[Piece]:
        pieces: list[Piece] | None = self._pieces.get(body)
        quiet: list[MicroOp]
        if pieces is None:
            pieces, quiet = [], []
            for op in body:
                if isinstance(op, CrossCoreOp):
                    pieces += [quiet, op]
                    quiet = []
                elif not isinstance(op, ORDERING):
                    quiet.append(op)
            pieces.append(quiet)
            self._pieces[body] = pieces
        return pieces


def _shifted(bound: dict[str, Memory], shifts: dict[str, int]) -> dict[str, Memory]:
    if not shifts:
        return bound
    return {
        name: replace(memory, base_bytes=memory.base_bytes + shifts.get(name, 0))
        for name, memory in bound.items()
    }


def _stored(program: Program) -> set[str]:
    """Names of global memory that *program* writes."""
    names = set()
    for body in program.bodies:
        for op in body:
            place = global_operand(op)
            if place is not None and writes_global(op):
                names.add(place.name)
    return names
