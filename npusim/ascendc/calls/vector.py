"""Calls of the vector unit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

from npusim.ascendc.calls.table import Chip, Table, every_repeat, local
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import Lanes, LocalOperand, Number
from npusim.data.dtypes import FLOAT16, INT32, RoundMode
from npusim.isa import (
    Axpy,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Fold,
    MicroOp,
    MulAddDst,
    Unary,
)
from npusim.isa.vector import BinaryOp, BitwiseOp, UnaryOp

__all__ = ["CALLS"]

ROUND_MODES: tuple[RoundMode, ...] = ("none", "rint", "floor", "ceil", "round", "trunc", "odd")
"""By the number of RoundMode."""


def _unary(
    op: UnaryOp, _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes
) -> Iterator[MicroOp]:
    yield Unary(op, *every_repeat(lanes, dst, src))


def _binary(
    op: BinaryOp | BitwiseOp,
    _: Chip,
    dst: LocalOperand,
    a: LocalOperand,
    b: LocalOperand,
    lanes: Lanes,
) -> Iterator[MicroOp]:
    to, first, second = every_repeat(lanes, dst, a, b)
    folds = lanes.form and lanes.repeats > 1 and dst.repeat_stride == a.repeat_stride == 0
    if folds and op in ("add", "min", "max") and dst.address_bytes == a.address_bytes:
        (total,) = every_repeat(lanes._replace(repeats=1), dst)
        yield Fold(op, total, second)
        return
    yield Binary(op, to, first, second)


def _binary_scalar(
    op: BinaryOp, _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes, scalar: Number
) -> Iterator[MicroOp]:
    to, first = every_repeat(lanes, dst, src)
    yield BinaryScalar(op, to, first, scalar.value)


def _cast(
    _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes, mode: int, scale: Number
) -> Iterator[MicroOp]:
    to, first = every_repeat(lanes, dst, src)
    if src.dtype is INT32 and dst.dtype is FLOAT16:
        # The chip multiplies by the scale, whatever the rounding (asc-devkit, Cast.md).
        if scale.value != 1:
            raise AscendCError(
                f"SetDeqScale must be 1 where int32_t becomes half, not {scale.value}; multiply "
                f"after it"
            )
        yield Cast(to, first)
        return
    yield Cast(to, first, ROUND_MODES[mode])


def _mul_add_dst(
    _: Chip, dst: LocalOperand, a: LocalOperand, b: LocalOperand, lanes: Lanes
) -> Iterator[MicroOp]:
    to, first, second = every_repeat(lanes, dst, a, b)
    yield MulAddDst(to, first, second)


def _axpy(
    _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes, scalar: Number
) -> Iterator[MicroOp]:
    to, first = every_repeat(lanes, dst, src)
    yield Axpy(to, first, scalar.value)


def _duplicate(_: Chip, dst: LocalOperand, lanes: Lanes, scalar: Number) -> Iterator[MicroOp]:
    (to,) = every_repeat(lanes, dst)
    yield Duplicate(to, scalar.value)


def _broadcast(_: Chip, dst: LocalOperand, src: LocalOperand, repeats: int) -> Iterator[MicroOp]:
    blocks = 8 * repeats
    count = blocks * 32 * 8 // dst.dtype.bits
    yield Broadcast(local(dst, count), local(src, blocks))


def _copy(_: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes) -> Iterator[MicroOp]:
    yield Copy(*every_repeat(lanes, dst, src))


UNARY: dict[str, UnaryOp] = {op.capitalize(): op for op in get_args(UnaryOp)}
BINARY: dict[str, Any] = {op.capitalize(): op for op in (*get_args(BinaryOp), *get_args(BitwiseOp))}
SCALAR: dict[str, BinaryOp] = {"Adds": "add", "Muls": "mul", "Maxs": "max", "Mins": "min"}

CALLS: Table = {
    **{name: partial(_unary, op) for name, op in UNARY.items()},
    **{name: partial(_binary, op) for name, op in BINARY.items()},
    **{name: partial(_binary_scalar, op) for name, op in SCALAR.items()},
    "Axpy": _axpy,
    "Brcb": _broadcast,
    "Cast": _cast,
    "Copy": _copy,
    "Duplicate": _duplicate,
    "MulAddDst": _mul_add_dst,
}
