"""npu_dequant_swiglu_quant: int32 sums become floats, swiglu halves them, and rows become int8.

.. code-block:: text

    v = f32(x) * weight_scale * activation_scale + bias     x of int32; a bias of int32 comes first
    a, b = the halves of v, the second one activated unless activate_left
    z = (a / (exp(-a) + 1)) * b
    quant_mode 1    z = z * quant_scale,  M = max|z| of a row
                    scale = M / 127,  y = fit(round(z * (1 / scale)))
        groups      scale = M * f32(1 / 127),  y = fit(round(z / scale))
    quant_mode 0    y = fit(round(z / quant_scale + quant_offset)),  one number: z * (1 / it)

All in fp32, one rounding an operation to nearest, ties to even; *fit* saturates and turns NaN into
0. What precision Exp has is not public: the nearest number is assumed. With a group_index, the
number of rows of each group, groups have scales and bias of their own, and swiglu_mode 1 and 2

.. code-block:: text

    mode 1          a, b = the even and the odd elements of v
    mode 1, 2       b = max(min(b, clamp_limit), -clamp_limit) + glu_bias,  a = min(a, clamp_limit)
                    z = b * (a / (exp(a * -glu_alpha) + 1))

* With quant_mode 0 no kernel writes the scale, and rows that no group counts are written by nobody:
  both are zero here, where a card has what lay in memory.
* A row with an infinity becomes zeros and its scale infinite, one with a NaN zeros and NaN.
* Without a group_index the kernels do not read swiglu_mode: what is given is warned of, as are
  dst_type, round_mode and activate_dim, which only later chips read.
* Half rows with a group_index are multiples of 64: beyond it the kernel's step from row to row
  would leave out half a repeat (assumed). One scale of 0 divides as 1 there.

Sources: ops-nn@e5c3fa9 quant/dequant_swiglu_quant, op_kernel and op_host; op-plugin@517f2e7 for the
function. Atlas inference has no such kernel.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_dequant_swiglu_quant.contract import SUPPORT, Problem, check
from npusim.ops.npu_dequant_swiglu_quant.kernel import build
from npusim.ops.npu_dequant_swiglu_quant.reference import oracle
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _halved(given: TorchArguments) -> tuple[object, ...]:
    *outer, columns = given["x"].shape
    return (*outer, columns // 2)


TORCH = TorchFunction(
    schema="npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, "
    "Tensor? activation_scale=None, Tensor? bias=None, Tensor? quant_scale=None, "
    "Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=False, "
    "int quant_mode=0, int? dst_type=None, int? round_mode=None, int? activate_dim=None, "
    "int swiglu_mode=0, float clamp_limit=7.0, float glu_alpha=1.702, float glu_bias=1.0) -> "
    "(Tensor, Tensor)",
    # Assumed: that a swiglu_mode makes torch_npu call the second version.
    aclnn=lambda given: f"aclnnDequantSwigluQuant{'V2' if given['swiglu_mode'] else ''}",
    outputs=lambda given, _: (
        (_halved(given), "int8"),
        (given["x"].shape[:-1], "float32"),
    ),
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = Operator(
    kernel_type="DequantSwigluQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_swiglu and npu_dynamic_quant",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("group_index",),
    torch=(TORCH,),
)
