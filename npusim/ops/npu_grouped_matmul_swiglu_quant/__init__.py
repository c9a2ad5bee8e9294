"""npu_grouped_matmul_swiglu_quant: groups of int8 rows by a weight each, halved, int8 again.

.. code-block:: text

    acc = x @ weight[e]                                                   exact, for rows of group e
    v = (f32(acc) * x_scale[row]) * f32(weight_scale[e])
    a, b = the left and the right half of v
    s = b * (a / (exp(a * -1) + 1))
    output_scale = max|s| / 127
    output = fit8(round(f16(s * (1 / output_scale))))

    int4 weight     x = 16 hi + lo + 8, both int4;  C of hi and of lo, group after group of k:
                    C = f16(C + f16(f32(sum of the group) * f19(weight_scale)))
                    v = (f32(C of lo) + f32(C of hi) * 16 + bias[e]) * x_scale[row], then the same

All in fp32, one rounding an operation to nearest, ties to even; the last line rounds to float16
first and then once more, so that 101.49 becomes 102. *fit8* saturates and turns NaN into 0: a row
of zeros has the scale 0 and stays zero. What precision Exp has is not public: the nearest number is
assumed. The scales of rows come first, those of columns then, unlike in `npu_grouped_matmul`.

group_list holds the row after the last of each group. Cores read it while they run, so a run
without values assumes that all groups are equally large. Rows beyond the last group are not
written, nor is output_offset, which no kernel of these chips makes: both are zero here, where a
card has what lay in memory.

* A2 and A3. weight is int8 `(e, k, n)` in FRACTAL_NZ, as aclnn asks, where torch_npu asks for no
  layout. n is a multiple of 32 and at most 10240, k below 65536.
* weight may be packed int4, `(e, k, n / 8)` int32 in FRACTAL_NZ: with words as weight_scale, one
  for each 256 of k, `(e, k / 256, n)`, or `(e, 1, n)`, and the bias `(e, n)`, to which the caller
  adds up 8 times the sums of the scaled columns. How its sums are tiled is assumed.
* bias is for int4 alone, and offset must be left out.

Sources: ops-transformer@c29bc10 gmm/grouped_matmul_swiglu_quant, op_kernel and op_host;
op-plugin@517f2e7 for the function.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction
from npusim.ops.npu_grouped_matmul_swiglu_quant.contract import SUPPORT, Problem, check
from npusim.ops.npu_grouped_matmul_swiglu_quant.kernel import build
from npusim.ops.npu_grouped_matmul_swiglu_quant.reference import oracle
from npusim.ops.npu_grouped_matmul_swiglu_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]

TORCH = TorchFunction(
    schema="npu_grouped_matmul_swiglu_quant(Tensor x, Tensor weight, Tensor group_list, "
    "Tensor weight_scale, Tensor x_scale, *, Tensor? bias=None, Tensor? offset=None) -> "
    "(Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnGroupedMatmulSwigluQuantWeightNZ",
    outputs=lambda given, _: (
        ((given["x"].shape[0], given["weight_scale"].shape[-1] // 2), "int8"),
        ((given["x"].shape[0],), "float32"),
        ((), "float32"),
    ),
)


OPERATOR = Operator(
    kernel_type="GroupedMatmulSwigluQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="multiply each group with npu_quant_matmul",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("group_list",),
    torch=(TORCH,),
)
