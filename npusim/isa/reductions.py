"""Micro-ops of the vector pipe that reduce many elements to fewer; names follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from npusim.data.dtypes import DType
from npusim.devices.schema import Pipe
from npusim.isa.fields import Range
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import BLOCK_BYTES, REPEAT_BLOCKS, STRIDE, Local, Numbers, lanes
from npusim.isa.work import Arithmetic, Work

__all__ = [
    "BlockReduce",
    "ExtremeOp",
    "Fold",
    "FoldOp",
    "Reduce",
    "ReduceOp",
    "ReduceOrder",
    "WholeReduce",
]

ExtremeOp = Literal["min", "max"]
FoldOp = Literal["add", "min", "max"]
ReduceOp = Literal["sum", "min", "max"]
ReduceOrder = Literal["value", "index", "value_index", "index_value"]
"""The result for an extreme element: its value, its index, or both, in that order.

If several are equal, the index is that of the first. It is stored in the bits of an unsigned
integer as wide as the element; alone it has 32 bits (asc-devkit, ReduceRepeat.md, ReduceOrder
and table 3).
"""


def _left(order: ReduceOrder, dtype: DType) -> int:
    """Elements of *dtype* in a result of *order*."""
    if order == "index":
        return 32 // dtype.bits
    return 1 if order == "value" else 2


@dataclass(frozen=True, slots=True)
class Reduce(MicroOp):
    """The smallest or largest element of *src*, or their sum, as the first element of *dst*.

    With *order* the index of an extreme in *src* is written too (ReduceMax, ReduceMin with
    calIndex). A sum reduces each repeat as :class:`WholeReduce` does, then adds the repeats one
    after the other (asc-devkit, ReduceSum.md, the first way).
    """

    op: ReduceOp
    dst: Local
    src: Local
    order: Literal["value", "value_index"] = "value"
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    @property
    def result_elements(self) -> int:
        """Elements of *dst* that it writes."""
        return _left(self.order, self.dst.dtype)

    def __str__(self) -> str:
        order = "" if self.order == "value" else f".{self.order}"
        return f"reduce.{self.op}{order} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class WholeReduce(MicroOp):
    """Reduce each repeat of *src* to one result in *dst* (WholeReduceSum, ...Max, ...Min).

    A result is one element, or as *order* says; results are *dst_stride* results apart, and *dst*
    covers all from the first to the last. Repeats have equal blocks, or the lanes of a mask; the
    last one may be partial. *mask* limits each repeat to its first elements. A sum adds neighbours,
    then neighbours of these sums, and so on, with inactive elements as 0 (asc-devkit,
    ReduceRepeat.md; the zeros are assumed). An index is the number of the lane.
    """

    op: ReduceOp
    dst: Local
    src: Local
    mask: Annotated[int, Range(1, 128)] | None = None
    order: ReduceOrder = "value"
    dst_stride: Annotated[int, STRIDE] = 1
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    @property
    def result_elements(self) -> int:
        """Elements of *dst* in a result."""
        return _left(self.order, self.dst.dtype)

    @property
    def places(self) -> Numbers:
        """Indices of the elements of *dst* that it writes, result by result."""
        first = np.arange(self.src.repeats) * self.dst_stride * self.result_elements
        return (first[:, None] + np.arange(self.result_elements)).reshape(-1)

    @property
    def span(self) -> int:
        """Elements from the start of the first result to the end of the last one."""
        return ((self.src.repeats - 1) * self.dst_stride + 1) * self.result_elements

    def __str__(self) -> str:
        mask = "" if self.mask is None else f", first {self.mask}"
        stride = "" if self.dst_stride == 1 else f" every {self.dst_stride}"
        order = "" if self.order == "value" else f".{self.order}"
        return f"whole_reduce.{self.op}{order} {self.dst}{stride} <- {self.src}{mask}"


@dataclass(frozen=True, slots=True)
class Fold(MicroOp):
    """`dst = dst op repeat` for each repeat of *src* in turn, each as long as *dst*.

    Add, Max or Min whose result and first source have a repeat stride of 0, so that each repeat
    uses the result of the one before.
    """

    op: FoldOp
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "updated"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"fold.{self.op} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class BlockReduce(MicroOp):
    """Reduce each block of 32 bytes of *src* to one element of *dst* (BlockReduceSum and so on).

    A sum adds neighbours, then neighbours of these sums, and so on: ``((x0+x1)+(x2+x3))+...``, with
    inactive elements as 0. With *dst_stride* the results of repeats begin that many times eight
    elements apart, and the result of a block whose lanes are all inactive is not written; *dst*
    covers all from the first to the last (asc-devkit, ReduceDataBlock.md; the zeros are assumed).
    With *pairs* it reduces pairs of neighbours instead, and results of repeats are *dst_stride*
    times as many elements apart as a full repeat has pairs (ReducePairElem.md).
    """

    op: ReduceOp
    dst: Local
    src: Local
    dst_stride: Annotated[int, STRIDE] | None = None
    pairs: bool = False
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    @property
    def group(self) -> int:
        """How many elements are reduced to one."""
        return 2 if self.pairs else BLOCK_BYTES * 8 // self.src.dtype.bits

    @property
    def blocks(self) -> Numbers:
        """Indices of the blocks, or pairs, of a repeat with active lanes."""
        if self.src.mask is None:
            return np.arange(self.src.repeat_elements // self.group)
        return np.unique(lanes(self.src.mask) // self.group)

    @property
    def places(self) -> Numbers:
        """Indices of the elements of *dst* that it writes, block by block."""
        blocks = self.blocks
        count = -(-self.src.count // self.group)
        if self.src.mask is not None:
            count = self.src.repeats * blocks.size
        if self.dst_stride is None:
            return np.arange(count)
        repeat, block = np.divmod(np.arange(count), blocks.size)
        whole = REPEAT_BLOCKS * BLOCK_BYTES * 8 // self.src.dtype.bits // self.group
        return repeat * self.dst_stride * whole + blocks[block]

    @property
    def span(self) -> int:
        """Elements from the first of *dst* to the last one that it writes."""
        return int(self.places.max(initial=-1)) + 1

    def __str__(self) -> str:
        stride = "" if self.dst_stride is None else f" every {self.dst_stride}"
        what = "pair" if self.pairs else "block"
        return f"{what}_reduce.{self.op} {self.dst}{stride} <- {self.src}"
