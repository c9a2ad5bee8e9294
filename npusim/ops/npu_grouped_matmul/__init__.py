"""npu_grouped_matmul: groups of rows, each multiplied by the weight of its expert.

.. code-block:: text

    y[r] = x[r] @ weight[e] + bias[e]      for the rows r of group e

    float16, bfloat16    round(f32(bias) + the cube's sums, fp32, k ascending)     fixpipe
    float32              bias + the cube's sums, fp32, k ascending                 fixpipe
    int8 by int8         see `templates.plain` and `templates.dequantise`

* Products of float32 are added like those of 16 bits, 16 exactly at a time (assumed); this kernel
  never uses the shorter HF32 for them.
* 310P has one kernel, `templates.coupled`, for rows of float16 in groups.
* int4 weights with int8 rows: see `templates.half_sums`, `templates.a8w4_unpacked` for few columns
  and many rows, and `templates.a8w4_vector` for two particular shapes. The kernel that a second
  element of tuning_config selects is not simulated.
* For int8 weights with at most 64 float rows for each expert, k and n multiples of 128, the vendor
  splits x into two digits of int8: see `templates.msd`, whose last bits differ from all others.

`template` selects a kernel that the vendor would not choose, for types that have several.
"""

from __future__ import annotations

from npusim.ops._operands import words_of
from npusim.ops._protocol import Operator, Reads
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_grouped_matmul.check import check
from npusim.ops.npu_grouped_matmul.oracle import at_once, oracle
from npusim.ops.npu_grouped_matmul.shapes import torch_outputs_of
from npusim.ops.npu_grouped_matmul.support import ALONG_K, EACH, ROWS, SUPPORT, TEMPLATES
from npusim.ops.npu_grouped_matmul.templates import build, tile

__all__ = ["OPERATOR"]

LISTS = (
    "Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, "
    "Tensor[]? offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, "
    "Tensor[]? per_token_scale=None"
)
ACTIVATION = (
    "Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, "
    "Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None, "
    "int? group_list_type=0, int? act_type=0"
)
DEFAULTS = {"split_item": 0, "group_list_type": 0, "act_type": 0}


def _acl(given: TorchArguments) -> str:
    is_nz = given["weight"] and given["weight"][0].layout != "ND"
    return f"aclnnGroupedMatmul{'WeightNz' if is_nz else 'V5'}"


def _refused(given: TorchArguments) -> str | None:
    """The error without a valid group_type (op-plugin@517f2e7, GroupedMatmulKernelNpuOpApi.cpp)."""
    kind = given["group_type"]
    if kind is None:
        return "Requires manual passing group_type, current is None."
    if kind in (EACH, ROWS, ALONG_K):
        return None
    return (
        "Use Tensor input with current cann version, The group type must be -1, 0 or 2, but now is "
        f"[{kind}]"
    )


TORCH = (
    TorchFunction(
        schema=f"npu_grouped_matmul({LISTS}, Tensor? group_list=None, {ACTIVATION}, "
        f"int[]? tuning_config=None, int? output_dtype=None, int? x_dtype=None, "
        f"int? weight_dtype=None, int? scale_dtype=None, int? per_token_scale_dtype=None) "
        f"-> Tensor[]",
        aclnn=_acl,
        refused=_refused,
        outputs=torch_outputs_of,
        dtypes={"output_dtype": {}},
        defaults=DEFAULTS,
        absent=("x_dtype", "weight_dtype", "scale_dtype", "per_token_scale_dtype"),
    ),
    TorchFunction(
        schema=f"npu_grouped_matmul.List({LISTS}, int[]? group_list=None, {ACTIVATION}, "
        f"int? output_dtype=None) -> Tensor[]",
        aclnn=lambda _: "aclnnGroupedMatmul",
        outputs=torch_outputs_of,
        dtypes={"output_dtype": {}},
        defaults=DEFAULTS,
    ),
)

OPERATOR = Operator(
    kernel_type="GroupedMatmul",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=at_once,
    templates=TEMPLATES,
    flags_may_stay_up=True,
    value_dependent_inputs=("group_list",),
    contract_reads=(Reads(operands=("scale",), finds=words_of, converts=True),),
    torch=TORCH,
)
