"""The template custom: vector cores dequantise the weight, cube cores multiply by it.

.. code-block:: text

    vector cores   weight tiles (rows, columns) int8 or int4 -> 16-bit, in its own layout
                   | a slot of the ring in global memory: all of k, the columns of a round
    cube cores     x (m, k) @ slot (k, columns) + bias -> output (m, columns)

All vector cores finish a round together: each stores its tiles, all wait for each other, then each
sets the flag of its cube core. They do so when they have made the first tile of the next round, and
its store waits for it. Cube cores say in the same way what they have read: vector cores are ahead
by two rounds at most (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom.h,
*_common.h, *_custom_weight_nz.h).
"""

from __future__ import annotations

from npusim.ops.npu_weight_quant_batchmatmul.templates.custom.kernel import build
from npusim.ops.npu_weight_quant_batchmatmul.templates.custom.tiling import CustomPlan, tile

__all__ = ["CustomPlan", "build", "tile"]
