"""Buffers and steps that the kernels of the family have in common.

Assumed of all of them: in which order their buffers lie.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Duplicate,
    Global,
    Local,
    Register,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Store,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.sums import FLOATS_PER_BLOCK, LANES, every_row

__all__ = [
    "RootsOfRows",
    "float_bits",
    "multiply_by_block",
    "multiply_by_row",
    "narrow",
    "read_root",
    "root_by_scalar",
    "root_by_vector",
    "spread",
    "widen",
]


def float_bits(number: float) -> int:
    """The bits of *number* in fp32, as the scalar unit reads it."""
    return int(np.float32(number).view(np.uint32))


# ---- 1 / root ----


def root_by_scalar(
    builder: Builder, root: Register, total: Local, mean: float, epsilon: float
) -> None:
    """`1 / sqrt(total x mean + epsilon)` of *total* `(1,)` to register *root*.

    The scalar unit waits for the vector pipe, and the vector pipe for it. Assumed: that the product
    is rounded before the sum.
    """
    builder.sync("vector", "scalar")
    builder.emit(
        ScalarLoad(root, total),
        ScalarAlu("f32_mul", root, root, float_bits(mean)),
        ScalarAlu("f32_add", root, root, float_bits(epsilon)),
        ScalarAlu("f32_sqrt", root, root),
        ScalarAlu("f32_div", root, float_bits(1), root),
    )
    builder.sync("scalar", "vector")


def root_by_vector(
    builder: Builder, roots: Local, ones: Local, epsilon: float, mean: float | None = None
) -> None:
    """`1 / sqrt(roots [x mean] + epsilon)` in the place of *roots*; *ones* has as many numbers."""
    if mean is not None:
        step(builder, BinaryScalar("mul", roots, roots, mean))
    step(builder, BinaryScalar("add", roots, roots, epsilon))
    step(builder, Unary("sqrt", roots, roots))
    step(builder, Duplicate(ones, 1.0))
    step(builder, Binary("div", roots, ones, roots))


def read_root(builder: Builder, root: Register, where: Local) -> None:
    """*where* `(1,)` to register *root*, between the vector pipe's work before and after."""
    builder.sync("vector", "scalar")
    builder.emit(ScalarLoad(root, where))
    builder.sync("scalar", "vector")


class RootsOfRows:
    """1 / root of up to *rows* rows, side by side as pipe *source* finds them, stored together.

    On 310P, which stores whole blocks, they are added to what is in global memory, so that rows of
    another core in the same block get zeros. The vendor's kernel clears that memory first; here it
    is clear when it is allocated, and the few bytes of that take no time. Unless they are stored
    (*is_stored*) they only stay until the next rows.
    """

    def __init__(
        self,
        builder: Builder,
        spec: DeviceSpec,
        rows: int,
        source: Pipe = "scalar",
        *,
        is_stored: bool = True,
    ) -> None:
        self._builder, self._is_310p, self._source = builder, spec.arch == "2002", source
        self._numbers = align_up(rows, FLOATS_PER_BLOCK)
        nbytes = FLOAT32.nbytes(self._numbers)
        self._queue = builder.queue("ub", nbytes, source, "mte3") if is_stored else None
        self._kept = None if is_stored else builder.claim("ub", nbytes)

    def alloc(self) -> Slot:
        """Room for the next rows."""
        if self._queue is None:
            assert self._kept is not None
            return self._kept
        slot = self._queue.alloc()
        if self._is_310p and self._source == "vector":
            # What is not set of the last block is added, too.
            step(self._builder, Duplicate(slot.of(FLOAT32, self._numbers), 0.0))
        return slot

    def keep(self, root: Register, slot: Slot, row: int) -> None:
        """Register *root* to element *row* of *slot*."""
        self._builder.emit(ScalarStore(slot.of(FLOAT32, 1, FLOAT32.nbytes(row)), root))

    def store(self, slot: Slot, rstd: GmView) -> None:
        """What is in *slot* to *rstd* `(rows,)`."""
        if self._queue is None:
            return
        if not self._is_310p:
            store(self._builder, self._queue, slot, rstd)
            return
        whole = align_up(rstd.columns, FLOATS_PER_BLOCK)
        for row in range(rstd.columns, whole) if self._source == "scalar" else ():
            self._builder.emit(ScalarAlu("add", "zero", 0))
            self.keep("zero", slot, row)
        self._queue.enque(slot)
        slot = self._queue.deque()
        where = Global(rstd.name, rstd.offset_bytes, FLOAT32.nbytes(whole))
        self._builder.emit(Store(where, slot.of(FLOAT32, whole), atomic=FLOAT32))
        self._queue.free(slot)


# ---- types ----


def widen(builder: Builder, dst: Local, src: Local) -> None:
    """*src* of any float in fp32."""
    if src.dtype is FLOAT32:
        step(builder, BinaryScalar("add", dst, src, 0.0))
    else:
        step(builder, Cast(dst, src))


def narrow(builder: Builder, spec: DeviceSpec, dst: Local, src: Local) -> None:
    """fp32 *src*, to nearest even, in the 16 bits of *dst*."""
    # fp16 has CAST_NONE, which rounds to nearest even; 310P has no other.
    is_half = dst.dtype is FLOAT16 and spec.arch == "2002"
    assert dst.dtype in (FLOAT16, BFLOAT16)
    step(builder, Cast(dst, src, "none" if is_half else "rint"))


# ---- several rows an instruction ----


def spread(builder: Builder, blocks: Local, numbers: Local) -> None:
    """Each of *numbers* eight times."""
    step(builder, Broadcast(blocks, numbers))


def multiply_by_block(
    builder: Builder, plane: Local, blocks: Local, rows: int, dst: Local | None = None
) -> None:
    """Each row of *plane* `(rows, pitch)` times the number of which *blocks* has eight a row."""
    pitch = plane.count // rows
    for start in range(0, pitch, LANES):
        width = min(LANES, pitch - start)
        here = every_row(plane, pitch, start, width, rows)
        to = here if dst is None else every_row(dst, pitch, start, width, rows)
        # Block stride 0: the block of the row for each of the eight; repeat stride 1: the next row.
        factor = Local(
            blocks.buffer, blocks.offset_bytes, FLOAT32, here.count, 0, 1, here.repeat_blocks
        )
        step(builder, Binary("mul", to, here, factor))


def multiply_by_row(
    builder: Builder, plane: Local, row: Local, rows: int, dtype: DType = FLOAT32
) -> None:
    """Each row of *plane* `(rows, pitch)` times *row* `(pitch,)`."""
    pitch = plane.count // rows
    lanes = LANES * FLOAT32.bits // dtype.bits
    per_block = FLOATS_PER_BLOCK * FLOAT32.bits // dtype.bits
    stride = dtype.nbytes(pitch) // BLOCK_BYTES
    for start in range(0, pitch, lanes):
        blocks = min(lanes, pitch - start) // per_block
        count, skip = rows * blocks * per_block, dtype.nbytes(start)
        here = Local(plane.buffer, plane.offset_bytes + skip, dtype, count, 1, stride, blocks)
        factor = Local(row.buffer, row.offset_bytes + skip, dtype, count, 1, 0, blocks)
        step(builder, Binary("mul", here, here, factor))
