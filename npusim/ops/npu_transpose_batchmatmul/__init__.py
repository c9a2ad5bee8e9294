"""npu_transpose_batchmatmul: a product for each head, read and written in its place.

.. code-block:: text

    acc[b, m, n] = round32(acc + the sum of 16 products of input[b, m, :] and weight[b, :, n])
    y[m, b, n]   = round(acc) to the type of input
    with scale   fit8(fit9(round(acc * f19(scale[b * N + n]))) + offset)          int8

perm_x1 and perm_x2 assign the axes of input and weight to b, m, k and n: input is `(B, M, K)`, or
`(M, B, K)` with perm_x1 (1, 0, 2); weight is `(B, K, N)`, or `(B, N, K)` with perm_x2 (0, 2, 1).
The result is `(M, B, N)`; with a batch_split_factor f it is `(f, M, B / f * N)`, one slice of the
heads after the other, and with a scale `(M, 1, B * N)`. No data is moved for that: rows are loaded
and stored with their strides.

The order in which the cube adds and its rounding are our model, see `matmul`. The sum starts at
k = 0; with a weight in FRACTAL_NZ it starts at the piece of k in L1 with the index of the core,
modulo the pieces, and wraps around, so that cores read different pieces at a time: its last bits
depend on the core, and are those of our tiling.

* A2 and A3. float16, bfloat16 and float32, whose products are added like those of 16 bits, and
  which torch_npu multiplies in full unless set otherwise (HF32, not simulated). A scale requires
  float16 (assumed), and its words are those of npu_trans_quant_param.
* There is no bias: the kernel refuses one.
* N and B are below 65536, and so are B * N with a scale and a row of input, B * K, with perm_x1
  (1, 0, 2): beyond it, and for a perm_x2 (0, 2, 1) or float32 with that perm_x1, the vendor uses a
  kernel that is not simulated (PpMatmulEinSum), unless there is a scale or a split.
* The document requires K and N to be multiples of 16; the kernel accepts others, with a warning
  here.
* With a scale op-plugin allocates the output in the type of input, which the document and the
  kernel contradict: int8 is used, as in those.

Heads that are large matrices of 16 bits use the tiles of MatMulV3's base kernel; others have sides
that are powers of two. How these are weighed against ones of half as many rows, and how idle cores
share the columns of a head, is assumed in detail, as are the tiles of large heads of float32. No
vector core starts.

Sources: ops-nn@e5c3fa9 matmul/transpose_batch_mat_mul, op_host and op_kernel; op-plugin@517f2e7,
TransposeBatchMatMulKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from npusim.ops import _vocabulary as ops
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_transpose_batchmatmul.check import SUPPORT, Problem, check
from npusim.ops.npu_transpose_batchmatmul.kernel import Plan, build, tile
from npusim.ops.npu_transpose_batchmatmul.oracle import oracle

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _torch_outputs(given: TorchArguments, _: Sizes) -> tuple[Result]:
    x, weight, split = given["input"], given["weight"], given["batch_split_factor"]
    is_turned, is_swapped = (
        given[name] is not None and list(given[name]) == wanted
        for name, wanted in (("perm_x1", [1, 0, 2]), ("perm_x2", [0, 2, 1]))
    )
    m, b = (x.shape[0], x.shape[1]) if is_turned else (x.shape[1], x.shape[0])
    n = weight.shape[1 if is_swapped else 2]
    if given["scale"] is not None:
        return (((m, 1, b * n), "int8"),)
    return (((m, b, n) if split == 1 else (split, m, b * n // split), x.dtype),)


TORCH = TorchFunction(
    schema="npu_transpose_batchmatmul(Tensor input, Tensor weight, *, Tensor? bias=None, "
    "Tensor? scale=None, int[]? perm_x1=None, int[]? perm_x2=None, int[]? perm_y=None, "
    "int batch_split_factor=1) -> Tensor",
    aclnn=lambda _: "aclnnTransposeBatchMatMul",
    outputs=_torch_outputs,
)


OPERATOR = ops.Operator(
    kernel_type="TransposeBatchMatMul",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use matmul",
    contract=check,
    oracle=oracle,
    tile=tile,
    build=build,
    contract_reads=(ops.Reads(operands=("scale",), converts=True),),
    torch=(TORCH,),
)
