"""The template weight_nz: coupled cores dequantise the weight in their unified buffer.

The weight is loaded as `(k / 32, n, 32)` int8, and copied to L1 as `(k / 16, n, 16)` fp16:

.. code-block:: text

    cast            (k / 32, n, 32) int8 -> fp16
    add the offset  half of each row of 32, which gives (k / 16, n, 16)
    times the scale

Only then may the next weight be loaded (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/
op_kernel/*_weight_nz_performance.h). x and the output are ND, and sums start from the bias.
"""

from __future__ import annotations

from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.kernel import build
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.tiling import WeightNzPlan, tile

__all__ = ["WeightNzPlan", "build", "tile"]
