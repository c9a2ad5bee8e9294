"""npu_grouped_matmul_swiglu_quant: groups of int8 rows times a weight each, SwiGLU, then int8.

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

All in fp32, rounded after each operation to nearest, ties to even; the last line rounds to float16
first and then again, so that 101.49 becomes 102. *fit8* saturates and turns NaN into 0: a row of
zeros has the scale 0 and stays zero. The precision of Exp is not public: the nearest value is
assumed. Row scales are applied before column scales, unlike in `npu_grouped_matmul`.

group_list holds the row after the last of each group. Cores read it at run time, so a run without
values assumes that all groups are equally large. Rows beyond the last group are not written, nor is
output_offset, which no kernel of these chips computes: both are zero here, where a card returns
what the memory held.

* A2 and A3. weight is int8 `(e, k, n)` in FRACTAL_NZ, as aclnn requires; torch_npu requires no
  layout. n is a multiple of 32 and at most 10240, k below 65536.
* weight may be packed int4, `(e, k, n / 8)` int32 in FRACTAL_NZ, k below 20000: with words as
  weight_scale, for each column, `(e, n)`, or for each group of k too, `(e, groups, n)`, and the
  bias `(e, n)`, in which the caller passes 8 times the sums of the scaled columns. Groups are
  multiples of 16, which is assumed. How its sums are tiled is assumed.
* bias is for int4 only, and offset must be omitted.

Sources: ops-transformer@c29bc10 gmm/grouped_matmul_swiglu_quant, op_kernel and op_host;
op-plugin@517f2e7 for the function.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops._int4_matmul import digit_sums, unpacked
from npusim.ops._matmul_oracle import exact_int
from npusim.ops._operands import words_of
from npusim.ops._swish import exp_plus_1_of
from npusim.ops.npu_grouped_matmul_swiglu_quant.check import SUPPORT, check
from npusim.ops.npu_grouped_matmul_swiglu_quant.kernel import build, tile

__all__ = ["OPERATOR"]

F32 = np.float32


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """int8 `(m, n / 2)`, scales `(m,)` and an offset that no kernel computes, `()`.

    weight `(e, k, n)` may have any layout; int32 holds eight int4. Rows without a group, and the
    offset, are zero.
    """
    x, bias, weight_scale = given.x, given.bias, given.weight_scale
    whole = np.asarray(given.weight)
    if whole.dtype == np.int32:
        whole = unpacked(whole)
    y = np.zeros((x.shape[0], whole.shape[2] // 2), np.int8)
    scales, start = np.zeros(x.shape[0], F32), 0
    for expert, end in enumerate(given.group_list.tolist()):
        rows = slice(start, end)
        if end > start:
            tokens = given.x_scale[rows, None]
            with np.errstate(all="ignore"):
                if bias is None:
                    acc = exact_int(x[rows], whole[expert]).astype(F32)
                    values = (acc * tokens) * weight_scale[expert].astype(F32)
                else:
                    words = np.atleast_2d(weight_scale[expert])
                    sums = digit_sums(x[rows], whole[expert], words)
                    values = (sums + bias[expert]) * tokens
                y[rows], scales[rows] = _quantised(values)
        start = end
    return y, scales, np.zeros((), F32)


def _quantised(values: Array) -> tuple[Array, Array]:
    """Quantise rows of fp32 to int8 with half as many columns; also returns the scales."""
    with np.errstate(all="ignore"):
        a, b = np.split(values, 2, axis=1)
        s = b * (a / exp_plus_1_of(a))
        scale = np.abs(s).max(axis=1) / F32(127)
        half = (s * (F32(1) / scale)[:, None]).astype(np.float16)
        whole = np.rint(np.where(np.isnan(half), 0, half).astype(F32))
        return np.clip(whole, -128, 127).astype(np.int8), scale


TORCH = ops.TorchFunction(
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


OPERATOR = ops.Operator(
    kernel_type="GroupedMatmulSwigluQuant",
    document=__doc__,
    support=SUPPORT,
    elsewhere="multiply each group with npu_quant_matmul",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("group_list",),
    contract_reads=(ops.Reads(operands=("weight_scale",), finds=words_of, converts=True),),
    torch=(TORCH,),
)
