"""A weight dequantised on vector cores: widened, plus offset, times scale, a tile at a time.

A *tile* is a rectangle of the weight as stored, `(rows, columns)`:

.. code-block:: text

    load    (rows, columns) int8 or int4, and the scales and offsets of its columns or rows
    cast    -> fp16, exactly
    add     the offset, in fp16 or fp32
    mul     the scale, in fp16 or fp32
    store   (rows, columns) fp16 or bf16, in the layout of the weight

Each step rounds to the type in which a kernel computes (see :class:`Precision`). ND stays ND, in
either orientation; FRACTAL_NZ becomes FRACTAL_NZ of 16-bit elements: its columns of fractals, 32
int8 or 64 int4 wide, are split into 16 by block strides. Vectors along the columns are read again
for each row; parameters of rows are first broadcast to a block of copies each (Brcb).

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/tool.h, *_common.h and *_custom*.h.
"""

from __future__ import annotations

from npusim.ops._dequantised_weight.dequantiser import Dequantiser, Precision, QuantisedWeight
from npusim.ops._dequantised_weight.layout import MatrixTile, tile_view

__all__ = ["Dequantiser", "MatrixTile", "Precision", "QuantisedWeight", "tile_view"]
