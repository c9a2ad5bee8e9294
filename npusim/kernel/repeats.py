"""Vector micro-ops with strides too wide for an instruction's fields, split by repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.isa import BLOCK_BYTES, Local, MicroOp

__all__ = ["STRIDE_BLOCKS", "in_reach"]

__kernel_vocabulary__ = True

STRIDE_BLOCKS = 2**8 - 1
"""Strides have 8-bit fields in UnaryRepeatParams and BinaryRepeatParams (assumed)."""


def in_reach(op: MicroOp) -> Iterator[MicroOp]:
    """*op*, or one micro-op for each repeat if repeats are more than 255 blocks apart.

    Operands without strides are divided evenly.
    """
    operands = {
        role.operand: operand
        for role in op.roles
        if isinstance(operand := getattr(op, role.operand), Local)
    }
    wide = [operand for operand in operands.values() if _reaches_too_far(operand)]
    if not wide:
        yield op
        return
    repeats = wide[0].repeats
    for index in range(repeats):
        parts = {name: _part(operand, index, repeats) for name, operand in operands.items()}
        yield replace(op, **parts)  # type: ignore[type-var]


def _reaches_too_far(operand: Local) -> bool:
    return operand.repeats > 1 and operand.repeat_stride > STRIDE_BLOCKS


def _part(operand: Local, index: int, repeats: int) -> Local:
    """The part of *operand* that repeat number *index* of *repeats* accesses."""
    count = operand.count // repeats
    if not operand.is_strided:
        return operand.at(index * count, count)
    offset_bytes = operand.offset_bytes + index * operand.repeat_stride * BLOCK_BYTES
    return replace(
        operand, offset_bytes=offset_bytes, count=count, repeat_stride=operand.repeat_blocks
    )
