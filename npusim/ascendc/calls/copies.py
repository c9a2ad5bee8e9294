"""Copies between global memory and the buffers of a core, and within the unified buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.ascendc.calls.table import Chip, Table, buffer_of, local, place
from npusim.ascendc.recording import GlobalOperand, LocalOperand, Number
from npusim.data.dtypes import UINT8
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Copy, CopyToL1, Load, LoadTable, Local, MicroOp, Padding, Store
from npusim.isa.mte import AtomicOp

__all__ = ["CALLS"]

ATOMICS: tuple[AtomicOp, ...] = ("add", "max", "min")
"""By the number of Atomic in recorder.h, from SUM on."""

TABLE_BLOCK_BYTES = {"bt": 64, "fb": 128}
"""The units of blockLen (asc-devkit, DataCopy, L1ToBiasTable-Buffer and L1ToFixpipe-Buffer)."""

Operand = LocalOperand | GlobalOperand


def _data_copy(_: Chip, dst: Operand, src: Operand, count: int, *atomic: int) -> Iterator[MicroOp]:
    if isinstance(dst, LocalOperand) and isinstance(src, LocalOperand):
        yield _within(local(dst, count), local(src, count))
        return
    inner = dst if isinstance(dst, LocalOperand) else src
    assert isinstance(inner, LocalOperand)
    # A partial block at the end is not copied.
    nbytes = inner.dtype.nbytes(count) // BLOCK_BYTES * BLOCK_BYTES
    if nbytes:
        yield from _moved(dst, src, nbytes, 1, nbytes, nbytes, *atomic)


def _data_copy_blocks(
    _: Chip,
    dst: Operand,
    src: Operand,
    bursts: int,
    length: int,
    src_gap: int,
    dst_gap: int,
    *atomic: int,
) -> Iterator[MicroOp]:
    if isinstance(dst, LocalOperand) and isinstance(src, LocalOperand):
        table = TABLE_BLOCK_BYTES.get(buffer_of(dst))
        if table is not None:
            yield from _tables(dst, src, bursts, table, length, src_gap, dst_gap)
            return
    burst, src_pitch, dst_pitch = (
        blocks * BLOCK_BYTES for blocks in (length, length + src_gap, length + dst_gap)
    )
    yield from _moved(dst, src, burst, bursts, dst_pitch, src_pitch, *atomic)


def _tables(
    dst: LocalOperand,
    src: LocalOperand,
    bursts: int,
    block_bytes: int,
    length: int,
    src_gap: int,
    dst_gap: int,
) -> Iterator[MicroOp]:
    """Vectors from L1 into the bias table, or scales into the fixpipe buffer."""
    burst = length * block_bytes
    count = burst * 8 // dst.dtype.bits
    src_bytes = src.dtype.nbytes(count)
    for index in range(bursts):
        there, own = local(dst, count), local(src, count)
        yield LoadTable(
            replace(
                there, offset_bytes=there.offset_bytes + index * (burst + dst_gap * block_bytes)
            ),
            replace(
                own, offset_bytes=own.offset_bytes + index * (src_bytes + src_gap * BLOCK_BYTES)
            ),
        )


def _within(dst: Local, src: Local) -> MicroOp:
    """A copy between buffers of a core."""
    if dst.buffer in TABLE_BLOCK_BYTES:
        return LoadTable(dst, src)
    if dst.buffer == "l1":
        return CopyToL1(dst, src, src.nbytes)
    return Copy(dst, src)


def _data_copy_pad(
    _: Chip,
    dst: LocalOperand,
    _src: GlobalOperand,
    bursts: int,
    burst_bytes: int,
    src_stride: int,
    dst_stride: int,
    left: int,
    right: int,
    is_known: int,
    value: Number,
) -> Iterator[MicroOp]:
    fill = value.value if is_known else None
    row = dst.dtype.nbytes(left) + burst_bytes + dst.dtype.nbytes(right)
    is_whole = not left and not right and burst_bytes % BLOCK_BYTES == 0
    dst_pitch = align_up(row, BLOCK_BYTES) + dst_stride * BLOCK_BYTES
    own = _bytes(dst, 0, (bursts - 1) * dst_pitch + row)
    yield Load(
        own,
        place(burst_bytes, bursts, burst_bytes + src_stride),
        _pitch(bursts, dst_pitch),
        None if is_whole else Padding(left, right, fill),
    )


def _data_copy_pad_out(
    _: Chip,
    dst: GlobalOperand,
    src: LocalOperand,
    bursts: int,
    burst_bytes: int,
    src_stride: int,
    dst_stride: int,
    *atomic: int,
) -> Iterator[MicroOp]:
    src_pitch = align_up(burst_bytes, BLOCK_BYTES) + src_stride * BLOCK_BYTES
    yield from _moved(dst, src, burst_bytes, bursts, burst_bytes + dst_stride, src_pitch, *atomic)


def _moved(
    dst: Operand,
    src: Operand,
    burst: int,
    bursts: int,
    dst_pitch: int,
    src_pitch: int,
    atomic: int = 0,
    atomic_type: int = 0,
) -> Iterator[MicroOp]:
    """*bursts* of *burst* bytes, with the distance from start to start in bytes on each side."""
    if isinstance(dst, LocalOperand) and isinstance(src, LocalOperand):
        for index in range(bursts):
            yield _within(
                _bytes(dst, index * dst_pitch, burst), _bytes(src, index * src_pitch, burst)
            )
    elif isinstance(dst, LocalOperand):
        own = _bytes(dst, 0, (bursts - 1) * dst_pitch + burst)
        yield Load(own, place(burst, bursts, src_pitch), _pitch(bursts, dst_pitch))
    elif isinstance(src, LocalOperand):
        own = _bytes(src, 0, (bursts - 1) * src_pitch + burst)
        combined = GlobalOperand(atomic_type).dtype if atomic else None
        yield Store(
            *(place(burst, bursts, dst_pitch), own, _pitch(bursts, src_pitch)),
            atomic=combined,
            atomic_op=ATOMICS[max(atomic - 1, 0)],
        )


def _pitch(bursts: int, pitch_bytes: int) -> int:
    return pitch_bytes if bursts > 1 else 0


def _bytes(operand: LocalOperand, start: int, nbytes: int) -> Local:
    """A range of a tensor in its type, or as bytes if it ends within an element."""
    dtype = operand.dtype
    offset = operand.address_bytes + start
    if nbytes * 8 % dtype.bits:
        return Local(buffer_of(operand), offset, UINT8, nbytes)
    return Local(buffer_of(operand), offset, dtype, nbytes * 8 // dtype.bits)


CALLS: Table = {
    "DataCopy": _data_copy,
    "DataCopyBlocks": _data_copy_blocks,
    "DataCopyPad": _data_copy_pad,
    "DataCopyPadOut": _data_copy_pad_out,
}
