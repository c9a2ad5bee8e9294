"""npu_moe_gating_top_k_softmax: the best experts of each token by softmax, and their weights.

.. code-block:: text

    p          = e / sum(e), e = exp(x - max(x))
    y          = the k largest numbers of p, of equal ones the first
    expert_idx = where they are in the row; the number of columns where the row is finished
    row_idx    = j * rows + row for choice j

float16 is calculated in float16, bfloat16 and float32 in float32, each step rounded by itself. y of
bfloat16 is rounded to nearest, halves away from zero. Sums go a repeat of 256 bytes at a time,
neighbours onto neighbours, and these sums one after the other. NaN counts as larger than all, see
:mod:`npusim.isa.sorting`.

Sources: ops-transformer@c29bc10 moe/moe_gating_top_k_softmax, op_kernel and op_host; asc-devkit,
TopK.md, of rows that are finished. Assumed: the order of the sum, which is that of ReduceSum, and
what :mod:`npusim.ops.npu_moe_gating_top_k_softmax.kernel` says of the schedule.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_moe_gating_top_k_softmax.contract import SUPPORT, Problem, check
from npusim.ops.npu_moe_gating_top_k_softmax.kernel import build
from npusim.ops.npu_moe_gating_top_k_softmax.reference import oracle
from npusim.ops.npu_moe_gating_top_k_softmax.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _outputs(given: TorchArguments, _: Sizes) -> tuple[Result, ...]:
    x = given["x"]
    shape = (*x.shape[:-1], given["k"])
    return (shape, x.dtype), (shape, "int32"), (shape, "int32")


TORCH = TorchFunction(
    schema="npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> "
    "(Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeGatingTopKSoftmax",
    outputs=_outputs,
)

OPERATOR = Operator(
    kernel_type="MoeGatingTopKSoftmax",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
