"""npu_quant_matmul: int8 or int4 matrices multiplied, and the int32 sums rescaled.

.. code-block:: text

    acc = fit32(x1 @ x2 + an int32 bias)                                  exact

    int8      fit8(fit9(round(f32(acc) * f19(scale))) + offset)           fixpipe
    float16   f16(f32(acc) * f19(scale))                                  fixpipe
    int32     acc                                                         fixpipe
    bfloat16  bf16(f32(acc) * f32(scale) + f32(bias))                     vector cores
    with pertoken_scale, float16 or bfloat16:
              y(f32(acc) * f32(scale) * pertoken_scale[row] + f32(bias))  vector cores

    int8 times int4   x1 = 16 hi + lo + 8, both int4;  C of hi and of lo, a group g of k each
                      C = f16(C + f16(f32(sum of g) * f19(scale[g])))     fixpipe, g ascending
                      y((f32(C of lo) + f32(C of hi) * 16 + offset) * pertoken_scale[row])
    groups of int4    t = f32(sum of g) - f32(offset[g]) * (the sum of g of the row of x1)
                      D = scale[g] * t + D;  y(pertoken_scale[row] * D)   vector cores

Evaluated from left to right, each operation rounded to fp32, always to nearest, ties to even, with
any template. *fit* saturates. *f19* truncates an fp32 value to 19 bits; *fit9* saturates to [-256,
255] before the offset is added, so a large sum with offset -200 gives 55. NaN becomes 0 in int8.

Sources: ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel (order of operations) and its
tests/assets/qbmmv3_kernel_golden.py; asc-devkit, 随路量化.md (fixpipe) and Mmad.md (integers
saturate: in kernels after each micro-op, in the reference only the whole sum, which differs only if
an int32 bias moves a partial sum out of range and back). How the fixpipe rounds to float16 is not
documented: to nearest even is assumed, and beyond the range infinity on A2 and A3 and 65504 on 310P
(Ascend/pytorch, npu_sys_ctrl.cpp). On 310P the copy out of L0C is assumed to do what the fixpipe
does.

Accepted calls follow torch_npu-npu_quant_matmul.md and op-plugin@517f2e7,
QuantMatmulKernelNpuOpApi.cpp:

* A float32 scale for an int8 output, or for float16 without pertoken_scale, passes through
  npu_trans_quant_param with the offset, and so loses 13 bits: torch_npu launches that first, and
  its time is part of the call's. int64 and uint64 scales are taken as such words, in one launch.
  The kernel never reads the offset itself: with a packed scale it has no effect.
* Packed scales may also be (1, n), like the result in torch_npu-npu_trans_quant_param.md.
* Words without the sign bit (46) make an int8 output hold uint8, which a warning says.
* int32 matrices hold int4, eight an element, the lowest bits first: x1 (m, k/8); x2 (k, n/8), or
  the transposed view of (n, k/8). A2 and A3 only; the output is float16 or bfloat16.
* x2 in FRACTAL_NZ is int8. On 310P it must be the transposed view of (n, k); aclnn converts an ND
  one to that before the launch, which costs time that is not counted here.
* Matrices must not be empty, and x1 must be ND. 310P: int8 and float16 outputs, int32 bias, no
  pertoken_scale (the document; the open source has such a kernel for x1 in FRACTAL_NZ).
* `template` selects a kernel that the vendor would not choose, see `choice`.
* int8 times int4: x1 int8 `(m, k)`, x2 packed, with a pertoken_scale, an int64 or uint64 scale,
  whose low words are float32, and an offset `(n,)`, to which the caller adds 8 times the sums of
  the scaled columns of x2. One scale for each column, and pertoken_scale `(m,)`, or one for each
  256 of k, `(k / 256, n)`, with group_sizes [0, 0, 256], pertoken_scale `(m, 1)` and x2
  `(k, n / 8)` in ND.
* Groups of int4: both packed, x2 the transposed view of (n, k / 8), scale float32 and offset
  float16 `(k / 256, n)`, pertoken_scale `(m, 1)`, group_sizes [0, 0, 256].
* int8 with block scales, the other kernel of quant_batch_matmul_v4, is not simulated.
"""

from __future__ import annotations

from typing import get_args

from npusim.data.arguments import Arguments
from npusim.ops import _vocabulary as ops
from npusim.ops._protocol import EarlierCall
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction, TorchTensor, columns_of
from npusim.ops.npu_quant_matmul.check import SUPPORT, Problem, Template, check
from npusim.ops.npu_quant_matmul.kernel import build
from npusim.ops.npu_quant_matmul.oracle import at_once, oracle
from npusim.ops.npu_quant_matmul.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _torch_outputs(given: TorchArguments, sizes: Sizes) -> tuple[Result]:
    x1, x2 = given["x1"], given["x2"]
    batch = sizes.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    dtype = given["output_dtype"]
    return (((*batch, x1.shape[-2], columns_of(x2)), "int8" if dtype is None else dtype),)


def _is_nz(x2: TorchTensor | None) -> bool:
    return x2 is not None and x2.layout != "ND"


TORCH = TorchFunction(
    schema="npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, "
    "Tensor? pertoken_scale=None, Tensor? bias=None, int? output_dtype=None, "
    "int? x1_dtype=None, int? x2_dtype=None, int? pertoken_scale_dtype=None, "
    "int? scale_dtype=None, SymInt[]? group_sizes=None, Tensor? y_scale=None) -> Tensor",
    aclnn=lambda given: f"aclnnQuantMatmul{'WeightNz' if _is_nz(given['x2']) else 'V5'}",
    outputs=_torch_outputs,
    dtypes={"output_dtype": {}},
    absent=("x1_dtype", "x2_dtype", "pertoken_scale_dtype", "scale_dtype", "y_scale"),
)


def _prologue(p: Problem, arguments: Arguments) -> tuple[EarlierCall, ...]:
    if not p.packs_scale:
        return ()
    given = {"scale": arguments["scale"], "offset": arguments.get("offset")}
    return (("npu_trans_quant_param", given),)


OPERATOR = ops.Operator(
    kernel_type=lambda _, p, __: f"QuantBatchMatmulV{3 if p.form == 'plain' else 4}",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    oracle=oracle,
    at_once=at_once,
    prologue=_prologue,
    tile=tile,
    build=build,
    templates=get_args(Template),
    flags_may_stay_up=True,
    contract_reads=(ops.Reads(operands=("scale", "offset"), converts=True),),
    torch=(TORCH,),
)
