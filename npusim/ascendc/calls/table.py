"""Common parts of all tables of calls: operands of vector instructions, and buffers of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import COUNTER, Lanes, LocalOperand
from npusim.data.dtypes import DType
from npusim.data.integers import ceil_div
from npusim.devices.schema import CORE_KINDS, DeviceSpec
from npusim.isa import BLOCK_BYTES, Global, Local, MicroOp

__all__ = ["GM", "Chip", "Table", "buffer_of", "every_repeat", "lanes_of", "local", "place"]

Table = dict[str, Callable[..., Iterable[MicroOp]]]

GM = "gm"
"""The name of global memory in micro-ops, until it is replaced by that of a tensor."""

POSITIONS = (
    *("gm", "l1", "l0a", "l1", "l0b", "l1", "bt", "l0c", "ub"),
    *("ub", "ub", "ub", "ub", "l1", "fb", "ub"),
)
"""The buffer of each TPosition, by number (asc-devkit, docs/zh/api, TPosition.md)."""


@dataclass(frozen=True, slots=True)
class Chip:
    """The context that a call may depend on."""

    spec: DeviceSpec
    kind: str

    @property
    def has_cube(self) -> bool:
        """Whether the core has a cube."""
        return self.kind == CORE_KINDS[self.spec.arch][0]


def buffer_of(operand: LocalOperand) -> str:
    """The buffer of a tensor."""
    if operand.position >= len(POSITIONS):
        raise AscendCError("a tensor must have a place in a buffer; take it from a queue or a TBuf")
    return POSITIONS[operand.position]


def local(operand: LocalOperand, count: int, dtype: DType | None = None) -> Local:
    """*count* contiguous elements from the start of a tensor."""
    return Local(buffer_of(operand), operand.address_bytes, dtype or operand.dtype, count)


def place(burst_bytes: int, bursts: int = 1, stride_bytes: int = 0) -> Global:
    """This many bytes of global memory, from the address in the record."""
    return Global(GM, 0, burst_bytes, bursts, stride_bytes if bursts > 1 else 0)


def lanes_of(*operands: LocalOperand) -> int:
    """Elements of a repeat: 256 bytes of the widest operand."""
    return 8 * BLOCK_BYTES * 8 // max(operand.dtype.bits for operand in operands)


def every_repeat(lanes: Lanes, *operands: LocalOperand) -> tuple[Local, ...]:
    """The elements of each operand that a vector instruction accesses."""
    form, low, high, repeats = lanes
    elements = lanes_of(*operands)
    if form == 0:
        return tuple(local(operand, low) for operand in operands)
    if form == COUNTER:
        return tuple(_strided(operand, low, elements, None) for operand in operands)
    mask = (1 << low) - 1 if form == 1 else low % 2**64 | high % 2**64 << 64
    mask &= (1 << elements) - 1
    count = mask.bit_count() * repeats
    return tuple(_strided(operand, count, elements, mask) for operand in operands)


def _strided(operand: LocalOperand, count: int, elements: int, mask: int | None) -> Local:
    bits = operand.dtype.bits
    blocks = ceil_div(elements * bits, 8 * BLOCK_BYTES)
    if mask is not None:
        most, whole = mask.bit_length(), mask & (mask + 1) == 0
        if whole and (most * bits % (8 * BLOCK_BYTES) == 0 or count == most):
            blocks, mask = ceil_div(most * bits, 8 * BLOCK_BYTES), None
    of_a_repeat = mask.bit_count() if mask else blocks * 8 * BLOCK_BYTES // bits
    found = local(operand, count)
    return replace(
        found,
        block_stride=operand.block_stride,
        repeat_stride=operand.repeat_stride if count > of_a_repeat else blocks,
        repeat_blocks=blocks,
        mask=mask,
    )
