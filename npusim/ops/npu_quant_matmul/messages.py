"""How vector cores start cube cores in tbe: by messages in global memory, one a rectangle.

The kernel is written for the vector core, whose calls of the Matmul API become messages to the cube
core beside it. That one multiplies a rectangle, block after block, each into a place of its own in
the workspace; the vector cores take the blocks as they come, and send the next message when they
are done with all (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel, *_bf16.h and *_pertoken.h:
class Matmul, `Iterate<false>`). A rectangle is what a core has of a row of blocks, as far as it
fits the workspace.

The flag that says that a message has been written stands for the cube core's polling, and the size
of a message, a line of the scalar unit's cache, is assumed; so is that each Iterate loads anew what
the one before it kept in L1, and that both vector cores finish half of a block each.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import INT32
from npusim.isa import Duplicate, Load
from npusim.kernel.builder import Builder
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_quant_matmul.tiling import MESSAGE_BYTES, Plan

__all__ = ["Inbox", "Outbox", "message_of", "rectangles"]

MESSAGE = 2
"""The flag that vector cores set when they have written a message."""


def rectangles(plan: Plan, pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece, ...]]:
    """*pieces* as they are started: all at once, or a rectangle after the other."""
    if not plan.is_driven:
        yield pieces
        return
    rectangle: list[Piece] = []
    for piece in pieces:
        is_full = len(rectangle) == plan.workspace_blocks
        if rectangle and (is_full or rectangle[-1][:2] != piece[:2]):
            # Another matrix, or another row of blocks.
            yield tuple(rectangle)
            rectangle = []
        rectangle.append(piece)
    yield tuple(rectangle)


def message_of(plan: Plan, core: int) -> GmView:
    """The message to cube core number *core*, and those behind it."""
    messages = GmView.vector("messages", INT32, plan.cube.cores * MESSAGE_BYTES // 4)
    return messages[:, core * MESSAGE_BYTES // 4 :]


class Outbox:
    """Messages of a vector core; of the two beside a cube core only the first one writes them."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._slot = builder.claim("ub", MESSAGE_BYTES)

    def prepare(self) -> None:
        """Fill the buffer, once."""
        self._builder.emit(Duplicate(self._slot.of(INT32, MESSAGE_BYTES // 4), 1))
        self._builder.sync("vector", "mte3")

    def send(self, half: int) -> None:
        """Start the cube core once all stores so far are on their way."""
        repeat(
            self._builder, self._send, GmView.vector("messages", INT32, MESSAGE_BYTES // 4), half
        )

    def _send(self, message: GmView, half: int) -> None:
        # A core without rows has no stores that would come behind the blocks it has awaited.
        self._builder.sync("mte2", "mte3")
        if half == 0:
            self._builder.data_copy(message.operand, self._slot.of(INT32, message.columns))
        self._builder.cross_core_set_flag("group", "mte3", MESSAGE)


class Inbox:
    """Messages to a cube core."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._slot = builder.claim("l1", MESSAGE_BYTES)

    def receive(self) -> None:
        """Wait for a message and read it; nothing that follows is handed out before."""
        repeat(self._builder, self._receive, GmView.vector("messages", INT32, MESSAGE_BYTES // 4))

    def _receive(self, message: GmView) -> None:
        self._builder.cross_core_wait_flag("group", "scalar", MESSAGE)
        self._builder.emit(Load(self._slot.of(INT32, message.columns), message.operand))
        self._builder.sync("mte2", "scalar")
