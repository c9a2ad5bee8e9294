"""npu_moe_gating_top_k: the best experts of each token, and what each of them weighs.

.. code-block:: text

    p      = 1 / (exp(x * -1) + 1)                             norm_type 1, sigmoid
    p      = e * (1 / sum(e)), e = exp(x + -max(x))            norm_type 0, softmax
    key    = p + bias
    chosen = the k largest keys, of equal ones the first, in the k_group best of group_count groups
    y      = p[chosen] * routed_scaling_factor                 norm_type 0
    y      = p[chosen] / (sum(p[chosen]) + eps) * routed_scaling_factor       norm_type 1

A group counts by its largest key, or in group_select_mode 1 by the sum of its two largest ones. All
is float32, each operation rounded by itself, and y is rounded to the type of x, to nearest, ties to
even. Sums go 64 columns at a time, neighbours onto neighbours, and these sums one after the other.
NaN counts as larger than all, see :mod:`npusim.isa.sorting`.

*out* holds p with out_flag. Without it a card leaves *out* as it finds it; here it is full of 0.

Sources: ops-transformer@c29bc10 moe/moe_gating_top_k, op_kernel and op_host; asc-devkit, Sort.md
and ReduceSum.md. Assumed: what :mod:`npusim.ops.npu_moe_gating_top_k.kernel` says of the schedule,
and that groups of any size do as groups of 32 do.
"""

from __future__ import annotations

from npusim.ops._protocol import Operator
from npusim.ops._torch import Result, Sizes, TorchArguments, TorchFunction
from npusim.ops.npu_moe_gating_top_k.contract import SUPPORT, Problem, check
from npusim.ops.npu_moe_gating_top_k.kernel import build
from npusim.ops.npu_moe_gating_top_k.reference import oracle
from npusim.ops.npu_moe_gating_top_k.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _outputs(given: TorchArguments, _: Sizes) -> tuple[Result, ...]:
    x = given["x"]
    rows, chosen = x.shape[0], (x.shape[0], given["k"])
    return (chosen, x.dtype), (chosen, "int32"), ((rows, x.shape[1]), "float32")


TORCH = TorchFunction(
    schema="npu_moe_gating_top_k(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None, "
    "Tensor? tid2eid=None, int k_group=1, int group_count=1, int group_select_mode=0, "
    "int renorm=0, int norm_type=0, bool out_flag=False, float routed_scaling_factor=1.0, "
    "float eps=1e-20) -> (Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeGatingTopK",
    outputs=_outputs,
    absent=("input_ids", "tid2eid"),
)

OPERATOR = Operator(
    kernel_type="MoeGatingTopK",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
