"""How vector cores start cube cores in tbe: by messages in global memory, one per rectangle.

The kernel is written for the vector core, whose calls of the Matmul API become messages to the cube
core of its group. The cube core multiplies a rectangle, block after block, each into a different
slot of the workspace; the vector cores process the blocks as they arrive, and send the next message
when they are done with all (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel, *_bf16.h and
*_pertoken.h: class Matmul, `Iterate<false>`). A rectangle is a core's part of a row of blocks, as
far as it fits the workspace.

The flag that signals a written message represents the cube core's polling, and the size of a
message, a line of the scalar unit's cache, is assumed; so is that each Iterate reloads what the
previous one left in L1, and that both vector cores finish half of a block each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import INT32
from npusim.kernel import CubeCore, Duplicate, GmView, Pieces, Step, VectorCore
from npusim.kernel.steps import Integers
from npusim.ops.npu_quant_matmul.tiling import MESSAGE_BYTES, Plan

MESSAGE = 2
"""The flag that vector cores set when they have written a message."""
COUNT = MESSAGE_BYTES * 8 // INT32.bits


def places(plan: Plan, pieces: Pieces) -> tuple[Integers, NDArray[np.bool_]]:
    """The slot of each piece in its core's part of the workspace, and where rectangles start.

    Unless vector cores start the cube cores, all pieces of a core form one rectangle.
    """
    if not plan.is_driven:
        return pieces.index % plan.workspace_blocks, pieces.index == 0
    # A rectangle belongs to one matrix and one row of blocks.
    here = np.stack([pieces.core, pieces.matrix, pieces.row - pieces.inside])
    is_new = np.concatenate([[True], (np.diff(here) != 0).any(axis=0)])
    first = np.flatnonzero(is_new)[np.cumsum(is_new) - 1]
    place = (np.arange(first.size) - first) % plan.workspace_blocks
    return place, place == 0


def message_to(plan: Plan, group: int) -> GmView:
    """The message to cube core index *group*, and the following ones."""
    messages = GmView.vector("messages", INT32, plan.cube.cores * COUNT)
    return messages[:, group * COUNT :]


MESSAGE_OF_GROUP = GmView.vector("messages", INT32, COUNT)
"""The start of the messages under a group's name for them."""


def receive_step(core: CubeCore, pieces: Pieces, begins: NDArray[np.bool_]) -> Step:
    """Let a cube core wait for a message and read it; nothing after it is issued earlier."""
    inbox = core.tile(INT32, COUNT, "l1")

    def receive(message: GmView) -> None:
        core.cross_core_wait_flag("group", "scalar", MESSAGE)
        core.data_copy(inbox[: message.columns], message.operand)
        core.sync("mte2", "scalar")

    return Step(receive, (MESSAGE_OF_GROUP,), pieces.core[begins], np.flatnonzero(begins))


class Outbox:
    """Messages of a vector core; only the first of the two in a group writes them."""

    def __init__(self, core: VectorCore) -> None:
        self._core, self._message = core, core.tile(INT32, COUNT)

    def prepare(self) -> None:
        """Fill the buffer, once."""
        self._core.emit(Duplicate(self._message, 1))
        self._core.sync("vector", "mte3")

    def send_step(self, halves: Pieces, begins: NDArray[np.bool_]) -> Step:
        """Before each rectangle: start the cube core once all stores so far have been issued."""
        chosen = halves.core[begins]
        arguments = MESSAGE_OF_GROUP, chosen % 2
        return Step(self._send, arguments, chosen, np.flatnonzero(begins))

    def _send(self, message: GmView, half: int) -> None:
        # A core without rows has no stores after the blocks that it waited for.
        self._core.sync("mte2", "mte3")
        if half == 0:
            self._core.data_copy(message.operand, self._message[: message.columns])
        self._core.cross_core_set_flag("group", "mte3", MESSAGE)
