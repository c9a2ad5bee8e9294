"""Template msd_group: x in digits a group of k, times the weight; cores share n and k."""

from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_group.kernel import (
    MsdGroupPlan,
    build,
    tile,
)

__all__ = ["MsdGroupPlan", "build", "tile"]
