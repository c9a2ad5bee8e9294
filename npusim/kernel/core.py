"""Cores that a kernel is written for: typed tiles of their buffers and a verb for each micro-op.

.. code-block:: python

    core = VectorCore("double", spec)
    x_in, y_out = core.vecin(FLOAT32, columns, depth=2), core.vecout(FLOAT32, columns, depth=2)

    def row(x: GmView, y: GmView) -> None:
        loaded, doubled = core.load(x_in, x), y_out.alloc()
        core.mul(doubled, loaded, 2.0)
        x_in.free(loaded)
        core.store(y_out, doubled, y)

A tile is a :class:`~npusim.isa.Local`: `tile[a:b]` selects elements, and `as_dtype` reads its
bytes as another type. Queues carry tiles from pipe to pipe, and set and wait for flags as TPipe
and TQue do. Each verb of the vector pipe writes its micro-op and the barrier that lets the next
one read the result; within an ``independent()`` block there are no barriers, and one follows the
block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.data.dtypes import DType
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Local, Register, ScalarAlu, ScalarLoad, ScalarStore
from npusim.isa.scalar import AluOp
from npusim.kernel.builder import Builder
from npusim.kernel.launch import launch
from npusim.kernel.program import Binding, Block
from npusim.kernel.queues import ProgramError, Queue, Slot
from npusim.kernel.steps import Step

__all__ = ["Core", "TileQueue"]

__kernel_vocabulary__ = True


class TileQueue:
    """Tiles of *count* elements of *dtype* that one pipe fills and another one drains (TQue)."""

    def __init__(self, queue: Queue, dtype: DType, count: int) -> None:
        self.queue = queue
        self.dtype = dtype
        self.count = count
        self._slots = {slot.offset_bytes: slot for slot in queue.slots}
        self._tiles: dict[Slot, Local] = {}

    def alloc(self) -> Local:
        """The next free tile, for the producer; raises ProgramError when none is left."""
        return self._tile(self.queue.alloc())

    def enque(self, tile: Local) -> None:
        """Hand a filled tile to the consumer."""
        self.queue.enque(self.slot(tile))

    def deque(self) -> Local:
        """The oldest filled tile, for the consumer; raises ProgramError when there is none."""
        return self._tile(self.queue.deque())

    def free(self, tile: Local) -> None:
        """Release a tile that the consumer has read, so that it can be filled again."""
        self.queue.free(self.slot(tile))

    @property
    def only(self) -> Local:
        """The tile of a queue of depth 1, in use or not."""
        (slot,) = self.queue.slots
        return self._tile(slot)

    @property
    def in_use(self) -> list[Local]:
        """Tiles that the producer fills, or the consumer reads."""
        return [self._tile(slot) for slot in self.queue.in_use]

    def slot(self, tile: Local) -> Slot:
        """The buffer that *tile* begins in; raises ProgramError where it is not of this queue."""
        found = self._slots.get(tile.offset_bytes)
        if found is None:
            raise ProgramError(
                f"TileQueue: a tile must begin where one of its queue does, at byte "
                f"{', '.join(map(str, self._slots))} of {self.queue.slots[0].buffer}, not at "
                f"{tile.offset_bytes}; pass what alloc or deque of this queue returned"
            )
        return found

    def _tile(self, slot: Slot) -> Local:
        if slot not in self._tiles:
            self._tiles[slot] = slot.of(self.dtype, self.count)
        return self._tiles[slot]


class Core(Builder):
    """A core of kind *kind* of *spec*, and the program that is written for it.

    *alone* lets the kernel claim every byte of its buffers, see :class:`Builder`.
    """

    def __init__(self, name: str, spec: DeviceSpec, kind: str, *, alone: bool = False) -> None:
        super().__init__(name, spec.cores[kind], spec.sync, alone=alone)
        self.spec = spec
        self.kind = kind
        self.kinds: str | tuple[str, ...] = kind
        """The kind of each core that a launch starts, by core number, or one kind for all."""

    @property
    def is_310p(self) -> bool:
        """Whether the core is of arch 2002, where the vector and the cube unit share one core."""
        return self.spec.arch == "2002"

    def tile(self, dtype: DType, count: int, buffer: str = "ub") -> Local:
        """Claim a tile of *count* elements outside any queue (TBuf); raises ProgramError."""
        return self.claim(buffer, dtype.nbytes(count)).of(dtype, count)

    def tiles(
        self, dtype: DType, count: int, src: Pipe, dst: Pipe, depth: int = 1, buffer: str = "ub"
    ) -> TileQueue:
        """A queue of *depth* tiles of *count* elements, from pipe *src* to pipe *dst*."""
        queue = self.queue(buffer, dtype.nbytes(count), src, dst, depth)
        return TileQueue(queue, dtype, count)

    def launch(
        self,
        *steps: Step,
        begin: Callable[[], None] | None = None,
        bound: Callable[[int], dict[str, Binding]] | None = None,
        cached: Callable[[str], bool] = lambda _: True,
        block_dim: int = 0,
    ) -> tuple[Block, ...]:
        """A block for each core that has a tile in *steps*: :func:`npusim.kernel.launch.launch`."""
        return launch(
            self, self.kinds, *steps, begin=begin, bound=bound, cached=cached, block_dim=block_dim
        )

    # ---- scalar unit ----

    def get_value(self, register: Register, src: Local) -> None:
        """Load the single element of *src* into *register* (GetValue), without waiting."""
        self.emit(ScalarLoad(register, src))

    def set_value(self, dst: Local, register: Register) -> None:
        """Store *register* to the single element of *dst* (SetValue), without waiting."""
        self.emit(ScalarStore(dst, register))

    def alu(
        self,
        op: AluOp,
        dst: Register,
        a: Register | float,
        b: Register | float = 0,
        c: Register | float = 0,
    ) -> None:
        """`dst = op(a, b, c)` on registers and constants; a float stands for its bits in fp32."""
        self.emit(ScalarAlu(op, dst, _in_register(a), _in_register(b), _in_register(c)))


def _in_register(operand: Register | float) -> Register | int:
    """*operand* as the scalar unit reads it: a float as its bits in fp32."""
    if isinstance(operand, float):
        return int(np.float32(operand).view(np.uint32))
    return operand
