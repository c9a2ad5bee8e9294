"""Rules of micro-ops that fill L0A and L0B by fractals, or with im2col columns of an image."""

from __future__ import annotations

import numpy as np

from npusim.check.rules.rule import Place, Rule, fits, names
from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    UINT8,
    UINT32,
)
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import LoadFractals, LoadImage

__all__ = ["FILLING", "RULES"]

FILLING = (LoadFractals, LoadImage)
FRACTAL_DTYPES = {
    "2201": (INT4, INT8, UINT8, FLOAT16, BFLOAT16, INT32, UINT32, FLOAT32),
    "2002": (INT8, UINT8, FLOAT16),
}
"""asc-devkit, LoadData_2D.md, LoadDataWithTranspose.md, LoadData_3D.md."""
NARROW = (INT4, INT8, UINT8)


def _can_turn(op: LoadFractals, place: Place) -> bool:
    """Whether squares of that type can be transposed on their way to that buffer."""
    if not op.transpose:
        return True
    if place.arch == "2002":
        return op.src.dtype is FLOAT16
    return op.src.dtype is not INT4 or op.dst.buffer == "l0b"


def _written_once(op: LoadFractals) -> bool:
    numbers = np.arange(op.repeats)[:, None] * op.dst_stride
    places = numbers + np.arange(op.inner) * op.inner_stride
    return bool(np.unique(places).size == places.size)


def _image_fits(op: LoadImage) -> bool:
    """Whether the tile lies in the window's matrix, and the image in *src*."""
    rows, columns = op.positions
    width = c0(op.src.dtype)
    return (
        0 < op.m <= rows * columns - op.m_start
        and 0 < op.k <= op.channels * op.filter_height * op.filter_width - op.k_start
        and op.k_start % width == 0 == op.channels % width
        and op.src.count == op.channels * op.height * op.width
        and rows > 0 < columns
    )


def _image_elements(op: LoadImage) -> int:
    """Elements of the whole fractals that the tile fills."""
    height, width = FRACTAL_ROWS, c0(op.dst.dtype)
    rows, columns = (op.k, op.m) if op.dst.buffer == "l0a" and op.transpose else (op.m, op.k)
    if op.dst.buffer == "l0b":
        height, width = width, height
    return align_up(rows, height) * align_up(columns, width)


RULES = (
    Rule(
        FILLING,
        lambda op, at: op.src.dtype is op.dst.dtype and op.src.dtype in FRACTAL_DTYPES[at.arch],
        lambda op, at: (
            f"src and dst must share one of {names(FRACTAL_DTYPES[at.arch])} on arch {at.arch}, "
            f"not {op.src.dtype.name}, {op.dst.dtype.name}; cast first"
        ),
    ),
    Rule(
        (LoadFractals,),
        _can_turn,
        lambda op, at: (
            f"{op.src.dtype.name} must not be turned on its way to {op.dst.buffer} on arch "
            f"{at.arch}; turn it before"
        ),
    ),
    Rule(
        (LoadFractals,),
        lambda op, _: _written_once(op),
        lambda op, _: (
            f"each fractal must have its own place, not {op.repeats} times {op.inner} every "
            f"{op.dst_stride} and {op.inner_stride}; raise the strides"
        ),
    ),
    Rule(
        (LoadImage,),
        lambda _, at: at.arch == "2201",
        lambda _, at: f"the arch must be 2201, not {at.arch}; copy fractal by fractal",
    ),
    Rule(
        (LoadImage,),
        lambda op, _: op.src.dtype not in NARROW or (op.dst.buffer == "l0a" and not op.transpose),
        lambda op, _: (
            f"{op.src.dtype.name} must go to l0a and not be turned, not go to {op.dst.buffer}; "
            f"turn it before"
        ),
    ),
    Rule(
        (LoadImage,),
        lambda op, _: _image_fits(op),
        lambda op, _: (
            f"the piece must lie within {op.positions[0]} x {op.positions[1]} positions of the "
            f"window and {op.channels * op.filter_height * op.filter_width} elements in it, from a "
            f"multiple of {c0(op.src.dtype)} on as channels are one, and src be the image, not "
            f"[{op.m_start}:+{op.m}, {op.k_start}:+{op.k}] of {op.src.count} elements; cut it so"
        ),
    ),
    Rule(
        (LoadImage,),
        lambda op, _: op.dst.count == _image_elements(op) and fits(op.pad_value, op.src.dtype),
        lambda op, _: (
            f"dst must be the {_image_elements(op)} elements of whole fractals, and pad_value one "
            f"of {op.src.dtype.name}, not {op.dst.count} and {op.pad_value}; change them"
        ),
    ),
)
