"""Micro-ops that fill L0A and L0B fractal by fractal, or from the windows of an image (im2col).

A fractal has 512 bytes: 16 rows of 32 bytes in L1 and in L0A, transposed in L0B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np

from npusim.data.dtypes import UINT8, Array
from npusim.data.layout import FRACTAL_BYTES, c0
from npusim.devices.schema import Pipe
from npusim.isa.fields import Range
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import MAX_REPEATS, STRIDE, Local, Numbers
from npusim.isa.work import Transfer, Work

__all__ = ["LoadFractals", "LoadImage", "turned_squares"]

EXTENT = Range(1, 2**15 - 1)
"""Height or width of an image (asc-devkit, LoadData_3D.md, table 4)."""
FILTER = Range(1, 2**9 - 1)
"""Height or width of a filter: 8 bits, and a flag that adds 256."""
STEP, DILATION, PAD = Range(1, 63), Range(1, 255), Range(0, 255)
POSITION = Range(0, 2**16 - 1)


IMAGE_INSTRUCTIONS = 3
"""Its own, and those that set the image size and the padding (asc-devkit@82b89a1,
impl/basic_api/dav_c220/kernel_operator_mm_impl.h). That they also take queue entries is assumed."""


@dataclass(frozen=True, slots=True)
class LoadFractals(MicroOp):
    """Copy fractals from L1 to L0A or L0B (LoadData 2D), or transpose them (LoadDataWithTranspose).

    A repeat copies one fractal, or when transposing, as many as form a square (asc-devkit,
    LoadDataWithTranspose.md): one of 16 bits, two below each other of 8 bits, two next to each
    other of 32 bits, four of 4 bits. Repeats begin *src_stride* fractals or squares apart, and in
    the destination *dst_stride* fractals; the fractals of a square are *inner_stride* apart there.
    *src* and *dst* begin with the first fractal and extend to the last one.
    """

    dst: Local
    src: Local
    repeats: Annotated[int, Range(1, MAX_REPEATS)]
    src_stride: Annotated[int, STRIDE] = 1
    dst_stride: Annotated[int, STRIDE] = 1
    transpose: bool = False
    inner_stride: Annotated[int, STRIDE] = 1
    pipe: ClassVar[Pipe] = "mte1"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", touched="read"),
        Role("dst", "written", touched="written"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.repeats * self.inner * FRACTAL_BYTES)

    @property
    def inner(self) -> int:
        """Fractals of a repeat."""
        return {4: 4, 8: 2, 32: 2}.get(self.src.dtype.bits, 1) if self.transpose else 1

    @property
    def read(self) -> Local:
        """All bytes read, as one range."""
        nbytes = ((self.repeats - 1) * self.src_stride + 1) * self.inner * FRACTAL_BYTES
        return Local(self.src.buffer, self.src.offset_bytes, UINT8, nbytes)

    @property
    def written(self) -> Local:
        """All bytes written, as one range."""
        last = (self.repeats - 1) * self.dst_stride + (self.inner - 1) * self.inner_stride
        nbytes = (last + 1) * FRACTAL_BYTES
        return Local(self.dst.buffer, self.dst.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        turned = " transposed" if self.transpose else ""
        inner = f" of {self.inner} every {self.inner_stride}" if self.inner > 1 else ""
        strides = f"every {self.dst_stride}{inner} <- every {self.src_stride}"
        return f"load_fractals {self.dst} <- {self.src} {self.repeats} {strides}{turned}"


def turned_squares(fractals: Array) -> Array:
    """`(repeats, fractals of a square, 16, elements of a row)`, each square transposed."""
    repeats, inner, rows, width = fractals.shape
    if inner * rows == width:
        return fractals.reshape(repeats, width, width).swapaxes(1, 2).reshape(fractals.shape)
    square = fractals.swapaxes(1, 2).reshape(repeats, rows, rows)
    turned = square.swapaxes(1, 2).reshape(repeats, rows, inner, width)
    return turned.swapaxes(1, 2)


@dataclass(frozen=True, slots=True)
class LoadImage(MicroOp):
    """Fill L0A or L0B with a tile of an image's im2col matrix (LoadData with LoadData3DParamsV2).

    *src* is an image of *channels*, a multiple of C0, in L1: (channels / C0, height, width, C0). A
    window slides over it. Each window position, row by row, is a row of a matrix, whose columns are
    the elements in the window: by blocks of C0 channels, then by row and column of the filter. The
    *m* x *k* tile of that matrix from (*m_start*, *k_start*) goes to L0A as Zz, transposed first
    with *transpose*, or to L0B as Zn.
    """

    dst: Local
    src: Local
    height: Annotated[int, EXTENT]
    width: Annotated[int, EXTENT]
    channels: Annotated[int, POSITION]
    m: Annotated[int, POSITION]
    k: Annotated[int, POSITION]
    m_start: Annotated[int, POSITION] = 0
    k_start: Annotated[int, POSITION] = 0
    transpose: bool = False
    filter_height: Annotated[int, FILTER] = 1
    filter_width: Annotated[int, FILTER] = 1
    stride_height: Annotated[int, STEP] = 1
    stride_width: Annotated[int, STEP] = 1
    dilation_height: Annotated[int, DILATION] = 1
    dilation_width: Annotated[int, DILATION] = 1
    pad_left: Annotated[int, PAD] = 0
    pad_right: Annotated[int, PAD] = 0
    pad_top: Annotated[int, PAD] = 0
    pad_bottom: Annotated[int, PAD] = 0
    pad_value: float = 0
    pipe: ClassVar[Pipe] = "mte1"
    instructions: ClassVar[int] = IMAGE_INSTRUCTIONS
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Transfer(self.dst.nbytes)

    @property
    def positions(self) -> tuple[int, int]:
        """Window positions along the height and along the width."""
        high = self.height + self.pad_top + self.pad_bottom
        wide = self.width + self.pad_left + self.pad_right
        reach = self.dilation_height * (self.filter_height - 1)
        across = self.dilation_width * (self.filter_width - 1)
        return (
            (high - reach - 1) // self.stride_height + 1,
            (wide - across - 1) // self.stride_width + 1,
        )

    @property
    def elements(self) -> Numbers:
        """The index in *src* of each element of the tile, `(m, k)`; -1 for padding."""
        return _elements(self)

    def __str__(self) -> str:
        turned = " transposed" if self.transpose else ""
        piece = f"[{self.m_start}:+{self.m}, {self.k_start}:+{self.k}]"
        image = f"{self.channels}x{self.height}x{self.width}"
        window = f"{self.filter_height}x{self.filter_width}"
        return f"load_image {self.dst} <- {self.src} {image} by {window} {piece}{turned}"


@lru_cache(maxsize=256)
def _elements(op: LoadImage) -> Numbers:
    width = c0(op.src.dtype)
    down, across = np.divmod(op.m_start + np.arange(op.m), max(1, op.positions[1]))
    # k is (block of channels, row of the filter, column of the filter, channel).
    rest, channel = np.divmod(op.k_start + np.arange(op.k), width)
    rest, column = np.divmod(rest, op.filter_width)
    block, row = np.divmod(rest, op.filter_height)
    y = down[:, None] * op.stride_height + row * op.dilation_height - op.pad_top
    x = across[:, None] * op.stride_width + column * op.dilation_width - op.pad_left
    found = ((block * op.height + y) * op.width + x) * width + channel
    is_inside = (y >= 0) & (y < op.height) & (x >= 0) & (x < op.width)
    return np.where(is_inside, found, -1)
