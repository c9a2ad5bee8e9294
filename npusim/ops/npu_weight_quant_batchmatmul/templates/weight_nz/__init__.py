from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.kernel import build
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.tiling import WeightNzPlan, tile

__all__ = ["WeightNzPlan", "build", "tile"]
