"""npu_swiglu_quant: swiglu of the halves of each row, then int8 or int4, smoothed by group.

.. code-block:: text

    a, b = the halves of f32(x), the second one activated unless activate_left
    z = (a / (exp(-a) + 1)) * b
    quant_mode 1    z = z * smooth_scales[group],  scale = 127 / max|z| of the row;  int4: 7
                    y = fit(round(z * scale))
    quant_mode 0    y = fit(round(z * smooth_scales[group] + offsets[group])),  scale = 0

All in fp32, one rounding an operation to nearest, ties to even; *fit* saturates and turns NaN into
0. What precision Exp has is not public: the nearest number is assumed. The scale is what numbers
were multiplied by: the inverse of what npu_dynamic_quant gives.

* A row takes the first group whose end lies behind it: group_index holds ends, or with
  group_list_type 1 counts. Rows behind the last end are neither smoothed nor, with quant_mode 0,
  scaled; without a group_index all rows are one group (assumed).
* A row of zeros gives zeros, and an infinite scale; one with an infinity zeros and scale 0.
* dst_type=quint4x2 puts two numbers into a byte, and the result is int8 of half as many columns.
* smooth_scales must be given: without them the kernel reads an address that is not there. One
  number a group is for quant_mode 0 alone, since the kernel of the other reads whole rows.

Sources: ops-nn@e5c3fa9 quant/swi_glu_quant, op_kernel and op_host; op-plugin@517f2e7 for the
function. Atlas inference has no such kernel.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_swiglu_quant.contract import SUPPORT, Problem, check
from npusim.ops.npu_swiglu_quant.kernel import build
from npusim.ops.npu_swiglu_quant.reference import oracle
from npusim.ops.npu_swiglu_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _shape(given: TorchArguments) -> tuple[object, ...]:
    *outer, columns = given["x"].shape
    return (*outer, columns // (4 if given["dst_type"] == "quint4x2" else 2))


TORCH = TorchFunction(
    schema="npu_swiglu_quant(Tensor x, *, Tensor? smooth_scales=None, Tensor? offsets=None, "
    "Tensor? group_index=None, bool activate_left=False, int quant_mode=0, "
    "int group_list_type=0, int? dst_type=None) -> (Tensor, Tensor)",
    aclnn=lambda _: "aclnnSwiGluQuantV2",
    outputs=lambda given, _: (
        (_shape(given), "int8"),
        (given["x"].shape[:-1], "float32"),
    ),
    dtypes={"dst_type": {"qint8": "int8"}},
)


OPERATOR = Operator(
    kernel_type="SwiGluQuant",
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
