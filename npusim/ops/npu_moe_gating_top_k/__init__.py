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

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops._gates import descending, row_sums
from npusim.ops.npu_moe_gating_top_k.check import SUPPORT, check, tile
from npusim.ops.npu_moe_gating_top_k.kernel import build


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """Weights `(rows, k)`, the experts that they are of, and what all experts got."""
    x, bias, is_sigmoid = given.x, given.bias, given.norm_type == 1
    groups = given.k_group, given.group_count, given.group_select_mode
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        scores = _sigmoid(wide) if is_sigmoid else _softmax(wide)
        keys = scores if bias is None else scores + bias.astype(np.float32)
        ranks = _kept(_in_order(keys), keys, *groups)
        chosen = descending(ranks)[:, : given.k]
        weights = np.take_along_axis(scores, chosen, axis=1)
        if is_sigmoid:
            weights = weights / (row_sums(weights) + np.float32(given.eps))[:, None]
        weights = weights * np.float32(given.routed_scaling_factor)
        every = scores if given.out_flag else np.zeros_like(scores)
        return weights.astype(x.dtype), chosen.astype(np.int32), every


def _sigmoid(x: Array) -> Array:
    exponential = np.exp((x * np.float32(-1)).astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(1) / (exponential + np.float32(1)))


def _softmax(x: Array) -> Array:
    apart = x + np.max(x, axis=1, keepdims=True) * np.float32(-1)
    exponential = np.exp(apart.astype(np.float64)).astype(np.float32)
    return np.asarray(exponential * (np.float32(1) / row_sums(exponential))[:, None])


def _in_order(keys: Array) -> Array:
    """An integer for each of *keys* in their order: -0 is 0, and NaN above infinity."""
    bits = keys.astype(np.float32).view(np.int32).astype(np.int64)
    ranks = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return np.where(np.isnan(keys), 2**31, ranks)


def _kept(ranks: Array, keys: Array, kept: int, groups: int, mode: int) -> Array:
    """*ranks*, with the smallest number of all in groups that are left out."""
    rows, experts = ranks.shape
    if groups in (1, experts) or kept == groups:
        return ranks
    by_group = (rows, groups, experts // groups)
    leading = np.take_along_axis(
        keys.reshape(by_group), descending(ranks.reshape(by_group))[..., :2], axis=-1
    )
    scores = leading[..., 0] + leading[..., 1] if mode == 1 else leading[..., 0]
    best = descending(_in_order(scores))[:, :kept]
    is_kept = np.zeros((rows, groups), bool)
    np.put_along_axis(is_kept, best, True, axis=1)
    return np.where(np.repeat(is_kept, experts // groups, axis=1), ranks, -(2**40))


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x = given["x"]
    rows, chosen = x.shape[0], (x.shape[0], given["k"])
    return (chosen, x.dtype), (chosen, "int32"), ((rows, x.shape[1]), "float32")


TORCH = ops.TorchFunction(
    schema="npu_moe_gating_top_k(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None, "
    "Tensor? tid2eid=None, int k_group=1, int group_count=1, int group_select_mode=0, "
    "int renorm=0, int norm_type=0, bool out_flag=False, float routed_scaling_factor=1.0, "
    "float eps=1e-20) -> (Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeGatingTopK",
    outputs=_outputs,
    absent=("input_ids", "tid2eid"),
)

OPERATOR = ops.Operator(
    kernel_type="MoeGatingTopK",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
