"""npu_group_quant: rows of floats become int8 or packed int4, each group of rows with own scales.

.. code-block:: text

    y[r] = fit(round(f32(x[r]) * f32(scale[e]) + f32(offset)))
    where group_index[e - 1] <= r < group_index[e]

All in fp32, one rounding an operation; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0 (ops-nn@e5c3fa9 quant/group_quant/op_kernel/group_quant_base.h). group_index holds
the row after the last one of each group, so equal neighbours mean an empty group.

What is accepted is what the operator's document says (torch_npu-npu_group_quant.md). Beyond it:

* group_index is looked at by the kernel, on every core, and a bad one stops the kernel: the error
  comes while running, with the code of a device exception, not with that of a wrong argument;
* a scale without groups is refused beforehand, as the document says, though the kernel would trap;
* x without rows or columns gives an empty result, and no kernel runs (aclnn_group_quant.cpp; the
  document is silent);
* 'qint8' is accepted beside 'int8', since the document's examples pass it.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction, quantised
from npusim.ops.npu_group_quant.contract import SUPPORT, Problem, check
from npusim.ops.npu_group_quant.kernel import build
from npusim.ops.npu_group_quant.reference import oracle
from npusim.ops.npu_group_quant.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]

TORCH = TorchFunction(
    schema="npu_group_quant(Tensor x, Tensor scale, Tensor group_index, *, Tensor? offset=None, "
    "int? dst_dtype=None) -> Tensor",
    aclnn=lambda _: "aclnnGroupQuant",
    outputs=lambda given, _: (quantised(given["x"], given["dst_dtype"]),),
    dtypes={"dst_dtype": {}},
)


OPERATOR = Operator(
    kernel_type="GroupQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_quantize with div_mode=False for each group",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    seen_by_kernel=("group_index",),
    torch=(TORCH,),
)
