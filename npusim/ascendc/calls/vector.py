"""Calls of the vector unit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

from npusim.ascendc.calls.table import Chip, Table, every_repeat, local
from npusim.ascendc.recording import COUNTER, Lanes, LocalOperand, Number
from npusim.data.dtypes import FLOAT16, INT32, RoundMode
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BLOCKS,
    Axpy,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    CastDequant,
    Copy,
    Duplicate,
    Fold,
    MicroOp,
    MulAddDst,
    Unary,
)
from npusim.isa.vector import (
    BinaryOp,
    BitwiseOp,
    MulAddForm,
    ReluOp,
    ScalarFormOp,
    UnaryOp,
)

__all__ = ["CALLS"]

ROUND_MODES: tuple[RoundMode, ...] = ("none", "rint", "floor", "ceil", "round", "trunc", "odd")
"""By the number of RoundMode."""


def _unary(
    op: UnaryOp, _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes
) -> Iterator[MicroOp]:
    yield Unary(op, *every_repeat(lanes, dst, src))


def _binary(
    op: BinaryOp | BitwiseOp | ReluOp,
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
    op: BinaryOp | ScalarFormOp,
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    lanes: Lanes,
    scalar: Number,
) -> Iterator[MicroOp]:
    to, first = every_repeat(lanes, dst, src)
    yield BinaryScalar(op, to, first, scalar.value)


def _cast(
    _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes, mode: int, scale: Number
) -> Iterator[MicroOp]:
    to, first = every_repeat(lanes, dst, src)
    if src.dtype is INT32 and dst.dtype is FLOAT16:
        # The chip multiplies by the scale, whatever the rounding (asc-devkit, Cast.md).
        yield Cast(to, first) if scale.value == 1 else CastDequant(to, first, scale.value)
        return
    yield Cast(to, first, ROUND_MODES[mode])


def _mul_add(
    form: MulAddForm,
    _: Chip,
    dst: LocalOperand,
    a: LocalOperand,
    b: LocalOperand,
    lanes: Lanes,
) -> Iterator[MicroOp]:
    to, first, second = every_repeat(lanes, dst, a, b)
    yield MulAddDst(to, first, second, form)


def _shift_right(
    _: Chip, dst: LocalOperand, src: LocalOperand, lanes: Lanes, scalar: Number, rounds: int
) -> Iterator[MicroOp]:
    to, first = every_repeat(lanes, dst, src)
    yield BinaryScalar("shift_right_round" if rounds else "shift_right", to, first, scalar.value)


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
    """In counter mode the mask is the element count of a repeat, which has as many blocks as these
    need, one block stride apart (asc-devkit, Copy（UBToUB掩码式高维数据搬运）.md).
    """
    if lanes.form != COUNTER:
        yield Copy(*every_repeat(lanes, dst, src))
        return
    for repeat in range(lanes.repeats):
        own = (
            each._replace(
                address_bytes=each.address_bytes + repeat * each.repeat_stride * BLOCK_BYTES,
                repeat_stride=REPEAT_BLOCKS * each.block_stride,
            )
            for each in (dst, src)
        )
        yield Copy(*every_repeat(lanes, *own))


UNARY: dict[str, UnaryOp] = {op.capitalize(): op for op in get_args(UnaryOp)}
BINARY: dict[str, Any] = {op.capitalize(): op for op in (*get_args(BinaryOp), *get_args(BitwiseOp))}
BINARY |= {
    "AddRelu": "add_relu",
    "SubRelu": "sub_relu",
    "AddReluCast": "add_relu",
    "SubReluCast": "sub_relu",
    "MulCast": "mul",
}
SCALAR: dict[str, BinaryOp | ScalarFormOp] = {
    "Adds": "add",
    "Muls": "mul",
    "Maxs": "max",
    "Mins": "min",
    "LeakyRelu": "leaky_relu",
    "ShiftLeft": "shift_left",
}
MUL_ADD: dict[str, MulAddForm] = {
    "MulAddDst": "mul_add_dst",
    "FusedMulAdd": "fused_mul_add",
    "FusedMulAddRelu": "mul_add_relu",
    "MulAddRelu": "mul_add_relu",
}

CALLS: Table = {
    **{name: partial(_unary, op) for name, op in UNARY.items()},
    **{name: partial(_binary, op) for name, op in BINARY.items()},
    **{name: partial(_binary_scalar, op) for name, op in SCALAR.items()},
    **{name: partial(_mul_add, form) for name, form in MUL_ADD.items()},
    "Axpy": _axpy,
    "Brcb": _broadcast,
    "Cast": _cast,
    "Copy": _copy,
    "Duplicate": _duplicate,
    "ShiftRight": _shift_right,
}
