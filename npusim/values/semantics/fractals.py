"""Micro-ops that fill L0A and L0B by fractals, or with im2col columns of an image."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from npusim.data.dtypes import INT4, pack_int4, unpack_int4
from npusim.data.layout import FRACTAL_BYTES, FRACTAL_ROWS, ZN, ZZ
from npusim.isa import LoadFractals, LoadImage, turned_squares
from npusim.values.matrices import L0Tile
from npusim.values.semantics.state import State

__all__ = ["load_fractals", "load_image"]


def load_fractals(op: LoadFractals, state: State) -> None:
    src, dst = state.buffers.window(op.read), state.buffers.window(op.written)
    nbytes = op.inner * FRACTAL_BYTES
    found = as_strided(src, (op.repeats, nbytes), (op.src_stride * nbytes, 1)).copy()
    if op.transpose:
        dtype = op.src.dtype
        elements = unpack_int4(found) if dtype is INT4 else found.view(dtype.numpy)
        squares = elements.reshape(op.repeats, op.inner, FRACTAL_ROWS, -1)
        turned = np.ascontiguousarray(turned_squares(squares)).reshape(op.repeats, -1)
        found = pack_int4(turned) if dtype is INT4 else turned.view(np.uint8)
    shape = op.repeats, op.inner, FRACTAL_BYTES
    steps = op.dst_stride * FRACTAL_BYTES, op.inner_stride * FRACTAL_BYTES, 1
    as_strided(dst, shape, steps)[...] = found.reshape(shape)


def load_image(op: LoadImage, state: State) -> None:
    values = state.read(op.src)
    padding = np.array([op.pad_value]).astype(values.dtype)
    piece = np.concatenate([values, padding])[op.elements]
    is_left = op.dst.buffer == "l0a"
    matrix = piece.T if is_left and op.transpose else piece
    layout = ZZ if is_left else ZN
    where = op.dst.offset_bytes, op.dst.dtype, op.dst.buffer, layout
    state.buffers.add_tile(op.dst.buffer, L0Tile(*where, np.ascontiguousarray(matrix)))
