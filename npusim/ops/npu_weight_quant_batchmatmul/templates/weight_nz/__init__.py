"""The template weight_nz: coupled cores dequantise the weight in their unified buffer.

Of one block (m, n) of the output, one k tile after the other (ops-nn@e5c3fa9
matmul/weight_quant_batch_matmul_v2/op_kernel/*_weight_nz_performance{,_base}.h):

.. code-block:: text

    weight   (n, k) int8 by parts of at most 128 x 128: load, cast, + offset, x scale, copy to L1
    x        (m, k) fp16 by parts: load rows, turn them into Nz, copy to L1
    bias     loaded and cast to fp32; the first k tile writes it into L0C
    cube     sums += x @ weight, base_k after base_k

L1 holds one piece of each operand, and nearly every flag is awaited where it is set: the next part
of the weight is loaded when the cast of this one has ended and mte1 has issued all its loads, the
next k tile when this one lies in L1. What is stored lies in the buffers of the weight, so that
blocks do not overlap either.
"""

from __future__ import annotations

from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.kernel import build
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.tiling import WeightNzPlan, tile

__all__ = ["WeightNzPlan", "build", "tile"]
