"""npu_weight_quant_batchmatmul: floats times a weight of int8 or int4, which is scaled back.

.. code-block:: text

    y = x @ ((weight + antiquant_offset) * antiquant_scale) + bias        then int8 if quantised
"""

from __future__ import annotations

from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem, check
from npusim.ops.npu_weight_quant_batchmatmul.kernel import build
from npusim.ops.npu_weight_quant_batchmatmul.reference import reference
from npusim.ops.npu_weight_quant_batchmatmul.tiling import Plan, tile

__all__ = ["Plan", "Problem", "build", "check", "reference", "tile"]
