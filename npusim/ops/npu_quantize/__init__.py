"""npu_quantize: a tensor of floats becomes int8, uint8, int32 or packed int4.

.. code-block:: text

    div_mode=True    y = fit(round(f32(x) / f32(scale) + f32(zero_point)))
    div_mode=False   y = fit(round(f32(x) * f32(scale) + f32(zero_point)))

Both are fp32, one rounding an operation; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0.

What is accepted is what the operator's document says (torch_npu-npu_quantize.md). Beyond it:

* div_mode=False: every axis >= -1 means the last one (op-plugin, QuantizeKernelNpuOpApi.cpp). The
  document lets axis go up to the number of dimensions of the input, and so do we.
* div_mode=False: float32 inputs take scales of any float type, float16 inputs float16 scales,
  bfloat16 inputs bfloat16 scales (ops-nn, aclnn_ascend_quant_v3.cpp; the document is silent).
* div_mode=True: float16 scales are refused as in the document, though aclnn would cast them.
* div_mode=True: scales and zero_points are one-dimensional; if one of them is bfloat16, the input,
  the scales and the zero_points must all be (ops-nn, aclnn_quantize.cpp; the document is silent).
* div_mode=True: the zero point is added before rounding, as an fp32 number (CANN, impl/dynamic/
  quantize.py); torch.quantize_per_channel adds it afterwards. The two differ only near ties.
* Atlas A3, which the document does not name, does what Atlas A2 does: both are built from one
  kernel source (ops-nn, NpuArch 2201).
* 'qint32' is accepted beside 'int32' (op-plugin).
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction, quantised
from npusim.ops.npu_quantize.contract import Problem, check
from npusim.ops.npu_quantize.kernel import build
from npusim.ops.npu_quantize.reference import reference
from npusim.ops.npu_quantize.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "reference", "tile"]

TORCH = TorchFunction(
    schema="npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1, "
    "bool div_mode=True) -> Tensor",
    aclnn=lambda given: "aclnnQuantize" if given["div_mode"] else "aclnnAscendQuantV3",
    outputs=lambda given, _: (quantised(given["input"], given["dtype"]),),
    names={"self": "input"},
    # op-plugin, QuantizeKernelNpuOpApi.cpp: plain integers are taken like the quantised ones.
    dtypes={"dtype": {"int8": "qint8", "uint8": "quint8"}},
)


OPERATOR = Operator(
    name="npu_quantize",
    kernel_type=lambda _, p, __: "Quantize" if p.divide else "AscendQuantV2",
    document=__doc__,
    contract=check,
    tile=tile,
    build=build,
    oracle=reference,
    torch=(TORCH,),
)
