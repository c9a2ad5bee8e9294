"""Micro-ops of the vector pipe that make fewer elements of many; names follow Ascend C."""

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
"""What a smallest or largest element leaves: itself, its number, or both, in that order.

The number of the first one, of several, is in the bits of an unsigned integer as wide as the
element; alone it has 32 bits (asc-devkit, ReduceRepeat.md, ReduceOrder and table 3).
"""


def _left(order: ReduceOrder, dtype: DType) -> int:
    """Elements of *dtype* that a result of *order* takes."""
    if order == "index":
        return 32 // dtype.bits
    return 1 if order == "value" else 2


@dataclass(frozen=True, slots=True)
class Reduce(MicroOp):
    """The smallest or largest element of *src*, or their sum, as the first element of *dst*.

    With *order* the number of an extreme in *src* goes with it (ReduceMax, ReduceMin with
    calIndex). A sum adds up each repeat as :class:`WholeReduce` does, and the repeats one after the
    other (asc-devkit, ReduceSum.md, the first way).
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
    """Each repeat of *src* becomes one result in *dst* (WholeReduceSum, ...Max, ...Min).

    Results are an element each, or as *order* says; they lie *dst_stride* results apart, and *dst*
    names all from the first to the last. Repeats have as many blocks each, or the lanes of a mask;
    the last one may end early. With a *mask* only so many elements of each repeat take part, the
    first ones. A sum adds neighbours, then neighbours of these, and so on, as if what takes no part
    were 0 (asc-devkit, ReduceRepeat.md; the zeros are assumed). An index is the number of the lane.
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
        """Elements of *dst* that a result takes."""
        return _left(self.order, self.dst.dtype)

    @property
    def places(self) -> Numbers:
        """The numbers of the elements of *dst* that it writes, result by result."""
        first = np.arange(self.src.repeats) * self.dst_stride * self.result_elements
        return (first[:, None] + np.arange(self.result_elements)).reshape(-1)

    @property
    def span(self) -> int:
        """Elements from the first of the first result to the last of the last one."""
        return ((self.src.repeats - 1) * self.dst_stride + 1) * self.result_elements

    def __str__(self) -> str:
        mask = "" if self.mask is None else f", first {self.mask}"
        stride = "" if self.dst_stride == 1 else f" every {self.dst_stride}"
        order = "" if self.order == "value" else f".{self.order}"
        return f"whole_reduce.{self.op}{order} {self.dst}{stride} <- {self.src}{mask}"


@dataclass(frozen=True, slots=True)
class Fold(MicroOp):
    """`dst = dst op repeat` for one repeat of *src* after the other, each as long as *dst*.

    Add, Max or Min whose result and first source have a repeat stride of 0, so that each repeat
    takes what the one before it has left.
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
    """Each block of 32 bytes of *src* becomes one element of *dst* (BlockReduceSum and so on).

    A sum adds neighbours, then neighbours of these, and so on: ``((x0+x1)+(x2+x3))+...``, as if
    what a mask leaves out were 0. With a *dst_stride* the results of repeats begin so many times
    eight elements apart, and of a block that the mask leaves out whole the result stays as it was;
    *dst* names all from the first to the last (asc-devkit, ReduceDataBlock.md; the zeros are
    assumed). With *pairs* each two neighbours become one instead, and results of repeats lie a
    *dst_stride* times as many elements apart as a whole repeat has pairs (ReducePairElem.md).
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
        """How many elements become one."""
        return 2 if self.pairs else BLOCK_BYTES * 8 // self.src.dtype.bits

    @property
    def blocks(self) -> Numbers:
        """The numbers of the blocks, or pairs, of a repeat that have lanes which take part."""
        if self.src.mask is None:
            return np.arange(self.src.repeat_elements // self.group)
        return np.unique(lanes(self.src.mask) // self.group)

    @property
    def places(self) -> Numbers:
        """The numbers of the elements of *dst* that it writes, block by block."""
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
        """Elements from the first one of *dst* to the last one that it writes."""
        return int(self.places.max(initial=-1)) + 1

    def __str__(self) -> str:
        stride = "" if self.dst_stride is None else f" every {self.dst_stride}"
        what = "pair" if self.pairs else "block"
        return f"{what}_reduce.{self.op} {self.dst}{stride} <- {self.src}"
