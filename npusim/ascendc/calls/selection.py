"""Calls of the vector unit that compare, select and gather."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from npusim.ascendc.calls.table import Chip, Table, every_repeat, lanes_of, local
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import Lanes, LocalOperand, Number
from npusim.data.dtypes import UINT8
from npusim.isa import (
    BLOCK_BYTES,
    CMP_MASK_BYTES,
    Compare,
    CompareScalar,
    Gather,
    GatherBlocks,
    GetCmpMask,
    Local,
    MicroOp,
    Scatter,
    Select,
    SetCmpMask,
)
from npusim.isa.selection import CmpMask, CompareOp

__all__ = ["CALLS"]

COMPARISONS: tuple[CompareOp, ...] = get_args(CompareOp)
"""By the number of CMPMODE."""
BY_REGISTER = 0
"""The number of VSEL_CMPMASK_SPR in SELMODE."""
REGISTER: CmpMask = "cmp_mask"


def _bits(operand: LocalOperand, count: int) -> Local:
    """A bit for each of *count* elements."""
    return local(operand, -(-count // 8), UINT8)


def _compare(
    _: Chip, dst: LocalOperand, a: LocalOperand, b: LocalOperand, mode: int, lanes: Lanes
) -> Iterator[MicroOp]:
    first, second = every_repeat(_whole(lanes, a), a, b)
    yield Compare(COMPARISONS[mode], _bits(dst, first.count), first, second)


def _compare_scalar(
    _: Chip, dst: LocalOperand, a: LocalOperand, scalar: Number, mode: int, lanes: Lanes
) -> Iterator[MicroOp]:
    (first,) = every_repeat(_whole(lanes, a), a)
    yield CompareScalar(COMPARISONS[mode], _bits(dst, first.count), first, scalar.value)


def _whole(lanes: Lanes, operand: LocalOperand) -> Lanes:
    """Whole repeats: a comparison stores one bit per element, whatever the mask."""
    if lanes.form in (1, 2):
        return Lanes(1, 256 * 8 // operand.dtype.bits, 0, lanes.repeats)
    return lanes


def _select(
    _: Chip,
    dst: LocalOperand,
    mask: LocalOperand,
    a: LocalOperand,
    b: LocalOperand | Number,
    mode: int,
    lanes: Lanes,
) -> Iterator[MicroOp]:
    # Each repeat has a bit for each of its lanes; in mode 0 all repeats use the bits of the first.
    count = lanes_of(dst) * every_repeat(lanes, dst)[0].repeats
    if mode == BY_REGISTER:
        count = lanes_of(dst)
    elif lanes.form == 0:
        count = lanes.low
    bits = _bits(mask, count)
    if isinstance(b, Number):
        to, first = every_repeat(lanes, dst, a)
        yield Select(to, bits, first, b.value)
        return
    to, first, second = every_repeat(lanes, dst, a, b)
    yield Select(to, bits, first, second)


def _select_by_register(
    _: Chip, dst: LocalOperand, a: LocalOperand, b: LocalOperand, mode: int, lanes: Lanes
) -> Iterator[MicroOp]:
    to, first, second = every_repeat(lanes, dst, a, b)
    if mode != BY_REGISTER:
        raise AscendCError(f"Select without a mask must be of mode 0, not {mode}; pass a mask")
    yield Select(to, REGISTER, first, second)


def _compare_to_register(
    _: Chip, a: LocalOperand, b: LocalOperand, mode: int, lanes: Lanes
) -> Iterator[MicroOp]:
    first, second = every_repeat(lanes, a, b)
    yield Compare(COMPARISONS[mode], REGISTER, first, second)


def _get_mask(_: Chip, dst: LocalOperand) -> Iterator[MicroOp]:
    yield GetCmpMask(local(dst, CMP_MASK_BYTES, UINT8))


def _set_mask(_: Chip, src: LocalOperand) -> Iterator[MicroOp]:
    yield SetCmpMask(local(src, CMP_MASK_BYTES, UINT8))


def _gather(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    offsets: LocalOperand,
    base_bytes: int,
    lanes: Lanes,
) -> Iterator[MicroOp]:
    to, places = every_repeat(lanes, dst, offsets)
    if src.address_bytes % BLOCK_BYTES:
        raise AscendCError(
            f"Gather: src must start at a multiple of {BLOCK_BYTES} bytes, not at "
            f"{src.address_bytes}; say by srcBaseAddr where it begins"
        )
    begin = src.address_bytes + base_bytes
    # Offsets may exceed the named range: the whole tensor may be read.
    count = max(1, src.size - base_bytes * 8 // src.dtype.bits)
    yield Gather(to, replace(local(src, count), offset_bytes=begin), places)


def _gather_blocks(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    offsets: LocalOperand,
    repeats: int,
) -> Iterator[MicroOp]:
    elements = repeats * lanes_of(dst)
    (to,) = every_repeat(Lanes(3, elements, 0, 1), dst)
    yield GatherBlocks(to, local(src, max(1, src.size)), local(offsets, 8 * repeats))


def _scatter(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    offsets: LocalOperand,
    base_bytes: int,
    lanes: Lanes,
) -> Iterator[MicroOp]:
    own, places = every_repeat(lanes, src, offsets)
    begin = dst.address_bytes + base_bytes
    count = max(1, dst.size - base_bytes * 8 // dst.dtype.bits)
    yield Scatter(replace(local(dst, count), offset_bytes=begin), own, places)


CALLS: Table = {
    "Compare": _compare,
    "CompareToRegister": _compare_to_register,
    "Compares": _compare_scalar,
    "Gather": _gather,
    "Gatherb": _gather_blocks,
    "GetCmpMask": _get_mask,
    "Scatter": _scatter,
    "Select": _select,
    "SelectByRegister": _select_by_register,
    "SetCmpMask": _set_mask,
}
