"""Layouts of a matrix in memory: ND, and the fractal layouts of the cube.

The cube works on *fractals*: blocks of 512 bytes that it reads as a whole. The name of a layout has
two letters. The first, a capital, is the order of the fractals of a matrix; the second, a small
letter, that of the elements inside a fractal. Z is row by row, N column by column, like the strokes
of the letters. asc-devkit, docs/zh, the guide's page on matrix fractals (关键分形格式详解.md):

========  =======  ==================================================  ==========================
layout    where    fractal (rows x columns)                            as an array
========  =======  ==================================================  ==========================
Nz        L1, GM   16 x C0                                             `(n1, m1, 16, C0)`
Zz        L0A      16 x C0                                             `(m1, k1, 16, C0)`
Zn        L0B      C0 x 16, column by column inside                    `(k1, n1, 16, C0)`
Nz        L0C      16 x 16                                             `(n1, m1, 16, 16)`
NC1HWC0   GM, L1   all pixels x C0                                     `(c1, h * w, C0)`
========  =======  ==================================================  ==========================

C0 is the number of elements in 32 bytes: 16 of fp16, 32 of int8, 64 of int4. In global memory Nz is
called FRACTAL_NZ. Edges are padded with zeros to whole fractals. Two layouts of convolutions are
matrices too. NC1HWC0 (also 5HD) is an image whose rows are pixels and whose columns are channels:
C0 channels of all pixels are adjacent. FRACTAL_Z of filters `(n, c, h, w)` is Zn of the matrix with
a column for each of the n filters, and c rows for each of the h * w positions, in groups of C0 per
position (its array is `(c1 * h * w, n1, 16, C0)`).

The guide writes both letters as capitals (NZ, ZZ, ZN), catlass the small one first (zN, zZ, nZ):
the layouts are the same, since the capital stands for the fractals in either position.

    >>> NZ.array_shape(20, 40, (16, 32))
    (2, 2, 16, 32)
    >>> NZ.offset(17, 33, (20, 40), (16, 32))
    1569
"""

from __future__ import annotations

from npusim.data.layout.orders import (
    FRACTAL_BYTES,
    FRACTAL_ROWS,
    NZ,
    ZN,
    ZZ,
    Layout,
    c0,
    from_fractals,
    to_fractals,
)
from npusim.data.layout.placement import NAMES, SPELLINGS, Placement, Spot

__all__ = [
    "FRACTAL_BYTES",
    "FRACTAL_ROWS",
    "NAMES",
    "NZ",
    "SPELLINGS",
    "ZN",
    "ZZ",
    "Layout",
    "Placement",
    "Spot",
    "c0",
    "from_fractals",
    "to_fractals",
]
