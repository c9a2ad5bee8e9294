"""Where the elements of a matrix lie: ND, and the fractal layouts of the cube.

The cube works on *fractals*: blocks of 512 bytes that it eats whole. The name of a layout has two
letters. The first one, a capital, says how the fractals of a matrix follow each other; the second
one, a small letter, how the elements inside a fractal do. Z is row by row, N column by column, as
the strokes of the letters run. asc-devkit, docs/zh, the guide's page on matrix fractals
(关键分形格式详解.md):

========  =======  ==================================================  ==========================
layout    where    fractal (rows x columns)                            as an array
========  =======  ==================================================  ==========================
Nz        L1, GM   16 x C0                                             `(n1, m1, 16, C0)`
Zz        L0A      16 x C0                                             `(m1, k1, 16, C0)`
Zn        L0B      C0 x 16, column by column inside                    `(k1, n1, 16, C0)`
Nz        L0C      16 x 16                                             `(n1, m1, 16, 16)`
NC1HWC0   GM, L1   all pixels x C0                                     `(c1, h * w, C0)`
========  =======  ==================================================  ==========================

C0 is how many elements 32 bytes hold: 16 of fp16, 32 of int8, 64 of int4. In global memory Nz is
called FRACTAL_NZ. Edges are filled up with zeros to whole fractals. Two layouts of convolutions are
matrices, too: NC1HWC0 (also 5HD) of an image, whose rows are pixels and whose columns are channels,
has C0 channels of all pixels after each other; FRACTAL_Z of filters `(n, c, h, w)` is Zn of the
matrix that has a column for each of the n filters, and c rows for each of the h * w places, C0 of
them from each place after each other (its array is `(c1 * h * w, n1, 16, C0)`).

The guide writes both letters large (NZ, ZZ, ZN), catlass the small one first (zN, zZ, nZ): the same
layouts, since the capital is for the fractals wherever it stands.

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
