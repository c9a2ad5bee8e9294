"""npu_grouped_matmul: groups of rows, each multiplied by a weight of its own.

.. code-block:: text

    y[r] = x[r] @ weight[e] + bias[e]      for the rows r of group e

    float16, bfloat16    round(f32(bias) + the sums of the cube, fp32, k ascending)     fixpipe
    int8 by int8         see `templates.fixpipe` and `templates.dequantise`

<<<<<<< HEAD
    int8 by int8         acc = fit32(x @ weight + an int32 bias)                        exact
      int8               fit8(fit9(round(f32(acc) * f19(scale))) + offset)              fixpipe
      int32              acc                                                            fixpipe
      float16, bfloat16  round(f32(acc) * f32(scale))                                   vector cores
                         with per_token_scale, an activation or a bfloat16 bias:
                         round(act((f32(acc) * f32(scale) + 0) * per_token_scale[r] + f32(bias)))

From left to right, one fp32 rounding an operation, all to nearest, ties to even; *fit* saturates,
*f19* cuts an fp32 number off after 19 bits, and `+ 0` takes the sign off a zero (ops-transformer
@c29bc10 gmm/grouped_matmul/op_kernel, grouped_matmul_quant_mixcore.h; asc-devkit@82b89a1,
impl/adv_api/detail/quantization/dequant). Sums of floats are the cube's, see `matmul`; beyond the
range floats become infinite. For int4 see `references.int4`, for activations `activations`.
=======
    float16 by int8,     weight = f16(f16(f16(weight) + offset) * scale), then the same
    or int4              bfloat16: weight = bf16((f32(weight) + f32(offset)) * f32(scale))

    int4 by int4         C = f16(C + f16(f32(sum of a group of k) * f19(scale)))         fixpipe
                         y = round(f32(C) * per_token_scale[row])                  vector cores
    int8 by int4         x = 16 hi + lo + 8, both int4; C of hi and of lo the same
                         y = round((f32(C of lo) + f32(C of hi) * 16 + bias) * per_token_scale)

The antiquant_scale and antiquant_offset are those of the columns, or of groups of k and columns
with int4; so is the scale of int4, 64-bit words whose low half is a float32. The bias of int8 by
int4 is 8 times the sums of the scaled columns of the weight, which the caller adds up.
Sums of floats are the cube's, see `matmul`; results are rounded to nearest even, beyond the range
they become infinite.
>>>>>>> main

x, weight, bias and the like are lists of tensors; one tensor stands for a list of one. group_type
says how they go together, split_item whether each group has an output of its own (0, 1) or all
share one (2, 3):

===========  =====================  =============  ==========================================
group_type   x / weight / output    split_item     what is grouped
===========  =====================  =============  ==========================================
-1           n/n/n                  0, 1           nothing: each x, of up to six dimensions,
                                                   is multiplied by its weight
0            1/1/1, 1/n/1, n/n/1    2, 3           rows of x; one weight is `(e, k, n)`
2            1/1/1, 1/n/n           2, 3 or 0, 1   k: x is the transposed view of a `(k, m)`
                                                   matrix, outputs are `(e, m, n)` or several
===========  =====================  =============  ==========================================

group_list is an int64 tensor: where each group ends (group_list_type 0), how many rows it has (1),
or pairs of an expert and its rows (2), of which the first without rows ends the list. Cores read it
while they run, so a run without values, for its time alone, assumes that all groups are equally
large, and says so in its reason. A list of integers in its place is the other overload of
torch_npu, which has no group_type and takes n/n/n, 1/n/1, 1/n/n and n/n/1.

What is accepted is what torch_npu-npu_grouped_matmul.md and the checks of ops-transformer@c29bc10
(gmm/grouped_matmul, op_host/op_api/aclnn_grouped_matmul.cpp) say. Beyond it:

* group_list may list fewer rows than x has: those that are left are not written, and stay zero here
  as the allocator gives them. A list that goes beyond x, or that names an expert that is not there,
  is refused, where a card would read on.
* float32 by float32, and 310P's kernel for float16, are not simulated. Nor are two kernels of
  int8 by int4 for few calls: one scales groups in float32, one unpacks the weight for many rows.
* Of int8 weights by at most 64 float rows an expert, k and n multiples of 128, the vendor writes x
  in two digits of int8: see `templates.antiquant.msd`, whose last bits are its own.

`template` names the kernel that the vendor would not take itself, where types have several.
Atlas A2 and A3 run one kernel; see `templates.plan` for its tiles and the order of blocks.

To add a combination of types: a row of `cases.CASES`, which names the types, what must be given
beside them, a module of `templates` and one of `references`. The template has `tile(spec, p)`,
which returns a `templates.plan.Plan` or one derived from it, and `build(spec, p, plan)`; the
reference has `rows(x, numbers, call)` for the rows of one group. What the types and lists of the
row do not say of shapes, a function in its field `limits` holds against the contract.
`operands.Operands` tells where a block finds what it needs, and `templates.blocks.GroupedCube`
writes the products.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import Given, TorchFunction
from npusim.ops.npu_grouped_matmul.contract import Problem, check
from npusim.ops.npu_grouped_matmul.reference import reference
from npusim.ops.npu_grouped_matmul.tiling import Plan, build, tile
from npusim.ops.npu_grouped_matmul.torch_outputs import outputs_of

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]

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


def _acl(given: Given) -> str:
    is_nz = given["weight"] and given["weight"][0].layout != "ND"
    return f"aclnnGroupedMatmul{'WeightNz' if is_nz else 'V5'}"


TORCH = (
    TorchFunction(
        schema=f"npu_grouped_matmul({LISTS}, Tensor? group_list=None, {ACTIVATION}, "
        f"int[]? tuning_config=None, int? output_dtype=None, int? x_dtype=None, "
        f"int? weight_dtype=None, int? scale_dtype=None, int? per_token_scale_dtype=None) "
        f"-> Tensor[]",
        aclnn=_acl,
        outputs=outputs_of,
        dtypes={"output_dtype": {}},
        defaults=DEFAULTS,
        absent=("x_dtype", "weight_dtype", "scale_dtype", "per_token_scale_dtype"),
    ),
    TorchFunction(
        schema=f"npu_grouped_matmul.List({LISTS}, int[]? group_list=None, {ACTIVATION}, "
        f"int? output_dtype=None) -> Tensor[]",
        aclnn=lambda _: "aclnnGroupedMatmul",
        outputs=outputs_of,
        dtypes={"output_dtype": {}},
        defaults=DEFAULTS,
    ),
)

OPERATOR = Operator(
    name="npu_grouped_matmul",
    document=__doc__,
    check=check,
    tile=tile,
    build=build,
    reference=reference,
    flags_may_stay_up=True,
    seen_by_kernel=("group_list",),
    torch=TORCH,
)
