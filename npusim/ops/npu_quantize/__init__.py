"""npu_quantize: floats to int8, uint8, int32 or packed int4, by given scales.

.. code-block:: text

    div_mode=True    y = fit(round(f32(x) / f32(scale) + f32(zero_point)))
    div_mode=False   y = fit(round(f32(x) * f32(scale) + f32(zero_point)))

Both are fp32, each operation rounded once; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0.

Accepted calls follow the operator's document (torch_npu-npu_quantize.md). In addition:

* div_mode=False: every axis >= -1 means the last one (op-plugin, QuantizeKernelNpuOpApi.cpp). Like
  the document, npusim accepts an axis up to the number of dimensions of the input.
* div_mode=False: float32 inputs take scales of any float type, float16 inputs float16 scales,
  bfloat16 inputs bfloat16 scales (ops-nn, aclnn_ascend_quant_v3.cpp; the document is silent).
* div_mode=True: float16 scales are refused as in the document, though aclnn would cast them.
* div_mode=True: scales and zero_points are one-dimensional; if one of them is bfloat16, the input,
  the scales and the zero_points must all be (ops-nn, aclnn_quantize.cpp; the document is silent).
* div_mode=True: the zero point is added before rounding, as an fp32 number (CANN, impl/dynamic/
  quantize.py); torch.quantize_per_channel adds it afterwards. The two differ only near ties.
* Atlas A3, which the document does not list, behaves like Atlas A2: both are built from one kernel
  source (ops-nn, NpuArch 2201).
* 'qint32' is accepted as well as 'int32' (op-plugin).
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT4, INT8, Array
from npusim.ops import _vocabulary as ops
from npusim.ops._row_quant import clamped, packed
from npusim.ops._torch import quantised
from npusim.ops.npu_quantize.check import SUPPORT, check
from npusim.ops.npu_quantize.kernel import build
from npusim.ops.npu_quantize.tiling import tile


def oracle(given: ops.Given) -> Array:
    """Quantise input on whole arrays.

    input has any shape, scales one element or as many as the scaled dimension; the result has the
    shape of input, with 'quint4x2' one int32 for eight elements of the last dimension.
    """
    tensor, scales, zero_points = given.input, given.scales, given.zero_points
    axis, div_mode, dtype = given.axis, given.div_mode, given.dtype
    if div_mode:
        position = axis % tensor.ndim if scales.size > 1 else 0
    else:
        position = tensor.ndim - 2 if axis == -2 else tensor.ndim - 1
    along = [1] * tensor.ndim
    along[position] = -1
    x, s = tensor.astype(np.float32), scales.astype(np.float32).reshape(along)
    with np.errstate(all="ignore"):
        values = x / s if div_mode else x * s
        if zero_points is not None:
            values = values + zero_points.astype(np.float32).reshape(along)
    if dtype == "quint4x2":
        return packed(clamped(values, INT4))
    if dtype == "qint8":
        return clamped(values, INT8)
    # The limits of int32 are not fp32 numbers, so they are applied in float64.
    low, high, kind = (0, 255, np.uint8) if dtype == "quint8" else (-(2**31), 2**31 - 1, np.int32)
    exact = np.rint(values).astype(np.float64)
    return np.clip(np.where(np.isnan(exact), 0, exact), low, high).astype(kind)


TORCH = ops.TorchFunction(
    schema="npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1, "
    "bool div_mode=True) -> Tensor",
    aclnn=lambda given: "aclnnQuantize" if given["div_mode"] else "aclnnAscendQuantV3",
    outputs=lambda given, _: (quantised(given["input"], given["dtype"]),),
    names={"self": "input"},
    # op-plugin, QuantizeKernelNpuOpApi.cpp: plain integers are accepted like the quantised ones.
    dtypes={"dtype": {"int8": "qint8", "uint8": "quint8"}},
)


OPERATOR = ops.Operator(
    kernel_type=lambda _, p, __: "Quantize" if p.divide else "AscendQuantV2",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    torch=(TORCH,),
)
