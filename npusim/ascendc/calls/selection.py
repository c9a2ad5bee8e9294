"""Calls of the vector unit that compare, select and gather."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from npusim.ascendc.calls.table import Chip, Table, every_repeat, local
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import Lanes, LocalOperand, Number
from npusim.data.dtypes import INT32, UINT8
from npusim.isa import Compare, CompareScalar, Gather, Local, MicroOp, Select
from npusim.isa.selection import CompareOp

__all__ = ["CALLS"]

COMPARISONS: tuple[CompareOp, ...] = get_args(CompareOp)
"""By the number of CMPMODE."""
BY_REGISTER = 0
"""The number of VSEL_CMPMASK_SPR in SELMODE."""


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
    """Whole repeats: the results of a comparison lie bit by bit, whatever a mask says."""
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
    if mode == BY_REGISTER:
        raise AscendCError(
            "Select must read its mask from a tensor, in mode 1 or 2, not in mode 0 from the "
            "register; use one of these"
        )
    if isinstance(b, Number):
        to, first = every_repeat(lanes, dst, a)
        yield Select(to, _bits(mask, to.count), first, b.value)
        return
    to, first, second = every_repeat(lanes, dst, a, b)
    yield Select(to, _bits(mask, to.count), first, second)


def _gather(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    offsets: LocalOperand,
    base_bytes: int,
    lanes: Lanes,
) -> Iterator[MicroOp]:
    to, places = every_repeat(lanes, dst, offsets)
    begin = src.address_bytes + base_bytes
    # Offsets may reach beyond what is named: all that the tensor has may be read.
    count = max(1, src.size - base_bytes * 8 // src.dtype.bits)
    yield Gather(to, replace(local(src, count), offset_bytes=begin), replace(places, dtype=INT32))


CALLS: Table = {
    "Compare": _compare,
    "Compares": _compare_scalar,
    "Gather": _gather,
    "Select": _select,
}
