"""Where the elements of a matrix lie: ND, and the fractal layouts of the cube.

The cube works on *fractals*: blocks of 512 bytes that it eats whole. A layout says in which order
the fractals of a matrix follow each other (the capital letter: Z row by row, N column by column)
and in which order the elements inside one do (the small letter). asc-devkit, docs/zh, the guide's
page on matrix fractals (关键分形格式详解.md):

========  =======  ==================================================  ==========================
layout    where    fractal (rows x columns)                            as an array
========  =======  ==================================================  ==========================
Nz        L1, GM   16 x C0                                             `(n1, m1, 16, C0)`
zZ        L0A      16 x C0                                             `(m1, k1, 16, C0)`
nZ        L0B      C0 x 16, column by column inside                    `(k1, n1, 16, C0)`
Nz        L0C      16 x 16                                             `(n1, m1, 16, 16)`
========  =======  ==================================================  ==========================

C0 is how many elements 32 bytes hold: 16 of fp16, 32 of int8, 64 of int4. In global memory Nz is
called FRACTAL_NZ. Edges are filled up with zeros to whole fractals. Only the case of a letter
counts, not its place: what the guide calls Nz and ZN, catlass calls zN and nZ.

    >>> NZ.array_shape(20, 40, (16, 32))
    (2, 2, 16, 32)
    >>> NZ.offset(17, 33, (20, 40), (16, 32))
    1569
"""

from __future__ import annotations

from npusim.data.layout.orders import (
    FRACTAL_ROWS,
    NZ,
    ZN,
    ZZ,
    Layout,
    c0,
    from_fractals,
    to_fractals,
)
from npusim.data.layout.placement import NAMES, Placement, Spot

__all__ = [
    "FRACTAL_ROWS",
    "NAMES",
    "NZ",
    "ZN",
    "ZZ",
    "Layout",
    "Placement",
    "Spot",
    "c0",
    "from_fractals",
    "to_fractals",
]
