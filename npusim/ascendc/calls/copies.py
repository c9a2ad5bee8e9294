"""Copies between global memory and the buffers of a core, and within the unified buffer."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.ascendc.calls.table import Chip, Table, buffer_of, local, place
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import GlobalOperand, LocalOperand, Number
from npusim.data.dtypes import UINT8
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Copy, Load, Local, MicroOp, Store

__all__ = ["CALLS"]

Operand = LocalOperand | GlobalOperand


def _data_copy(_: Chip, dst: Operand, src: Operand, count: int) -> Iterator[MicroOp]:
    if isinstance(dst, LocalOperand) and isinstance(src, LocalOperand):
        yield Copy(local(dst, count), local(src, count))
        return
    inner = dst if isinstance(dst, LocalOperand) else src
    assert isinstance(inner, LocalOperand)
    # What is no whole blocks is copied up to the last whole one.
    nbytes = inner.dtype.nbytes(count) // BLOCK_BYTES * BLOCK_BYTES
    if nbytes:
        yield from _moved(dst, src, nbytes, 1, nbytes, nbytes)


def _data_copy_blocks(
    _: Chip, dst: Operand, src: Operand, bursts: int, length: int, src_gap: int, dst_gap: int
) -> Iterator[MicroOp]:
    burst, src_pitch, dst_pitch = (
        blocks * BLOCK_BYTES for blocks in (length, length + src_gap, length + dst_gap)
    )
    yield from _moved(dst, src, burst, bursts, dst_pitch, src_pitch)


def _data_copy_pad(
    _: Chip,
    dst: Operand,
    src: Operand,
    bursts: int,
    burst_bytes: int,
    src_stride: int,
    dst_stride: int,
    is_padded: int = 0,
    left: int = 0,
    _right: int = 0,
    value: Number | None = None,
) -> Iterator[MicroOp]:
    padded = align_up(burst_bytes, BLOCK_BYTES)
    if isinstance(dst, LocalOperand):
        if is_padded and (left or (value is not None and value.bits)):
            raise AscendCError("DataCopyPad must pad on the right and with zeros; it does not yet")
        pitches = padded + dst_stride * BLOCK_BYTES, burst_bytes + src_stride
    else:
        pitches = burst_bytes + dst_stride, padded + src_stride * BLOCK_BYTES
    yield from _moved(dst, src, burst_bytes, bursts, *pitches)


def _moved(
    dst: Operand, src: Operand, burst: int, bursts: int, dst_pitch: int, src_pitch: int
) -> Iterator[MicroOp]:
    """*bursts* of *burst* bytes, from start to start so many bytes apart on each side."""
    if isinstance(dst, LocalOperand) and isinstance(src, LocalOperand):
        for index in range(bursts):
            yield Copy(_bytes(dst, index * dst_pitch, burst), _bytes(src, index * src_pitch, burst))
    elif isinstance(dst, LocalOperand):
        nbytes = (bursts - 1) * dst_pitch + burst
        yield Load(
            _bytes(dst, 0, nbytes), place(burst, bursts, src_pitch), _pitch(bursts, dst_pitch)
        )
    elif isinstance(src, LocalOperand):
        nbytes = (bursts - 1) * src_pitch + burst
        yield Store(
            place(burst, bursts, dst_pitch), _bytes(src, 0, nbytes), _pitch(bursts, src_pitch)
        )


def _pitch(bursts: int, pitch_bytes: int) -> int:
    return pitch_bytes if bursts > 1 else 0


def _bytes(operand: LocalOperand, start: int, nbytes: int) -> Local:
    """A range of a tensor in its type, or as bytes where it ends within an element."""
    dtype = operand.dtype
    offset = operand.address_bytes + start
    if nbytes * 8 % dtype.bits:
        return Local(buffer_of(operand), offset, UINT8, nbytes)
    return Local(buffer_of(operand), offset, dtype, nbytes * 8 // dtype.bits)


CALLS: Table = {
    "DataCopy": _data_copy,
    "DataCopyBlocks": _data_copy_blocks,
    "DataCopyPad": _data_copy_pad,
}
