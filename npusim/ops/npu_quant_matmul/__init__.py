"""npu_quant_matmul: int8 or int4 matrices multiplied, and the sums rescaled."""

from __future__ import annotations

from npusim.ops.npu_quant_matmul.contract import Problem, check
from npusim.ops.npu_quant_matmul.kernel import build
from npusim.ops.npu_quant_matmul.reference import reference
from npusim.ops.npu_quant_matmul.tiling import Plan, tile

__all__ = ["Plan", "Problem", "build", "check", "reference", "tile"]
