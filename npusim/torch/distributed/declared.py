"""Operators of torch_npu whose kernels communicate with other cards, declared without torch."""

from __future__ import annotations

from typing import Any

from npusim.ops import TorchFunction
from npusim.published import schemas

__all__ = ["FUSED", "local_experts", "most_rows"]

Given = Any
Results = tuple[tuple[tuple[Any, ...], str], ...]
TRIPLE_ROOM = 128
"""Numbers for each row in the output by which combine finds the source of the row."""


def _of_all_reduce(given: Given, _: object) -> Results:
    x1, x2, scale = given["x1"], given["x2"], given["dequant_scale"]
    dtype = x1.dtype
    if scale is not None:
        dtype = "bfloat16" if scale.dtype == "bfloat16" else "float16"
    return (((*x1.shape[:-1], x2.shape[-1]), dtype),)


def _of_all_gather(given: Given, _: object) -> Results:
    x, x2, size = given["input"], given["x2"], given["world_size"]
    rows = x.shape[0] * size
    return ((rows, x2.shape[1]), x.dtype), ((rows, x.shape[1]), x.dtype)


def _of_reduce_scatter(given: Given, _: object) -> Results:
    x, x2 = given["input"], given["x2"]
    return (((x.shape[0] // given["world_size"], x2.shape[1]), x.dtype),)


def local_experts(given: Given) -> int:
    """The number of experts of each card."""
    found: int = given["moe_expert_num"] // given["ep_world_size"]
    return found


def most_rows(given: Given, tokens: int, chosen: int) -> int:
    """The most rows that a card can receive if each card has *tokens* of *chosen* experts each."""
    found: int = given["global_bs"] or tokens * given["ep_world_size"]
    return found * min(local_experts(given), chosen)


def _of_dispatch(given: Given, _: object) -> Results:
    x, ids = given["x"], given["expert_ids"]
    (tokens, chosen), local = ids.shape, local_experts(given)
    rows = most_rows(given, tokens, chosen)
    is_v2 = "comm_alg" in given
    is_int8 = given["quant_mode"] != 0
    return (
        ((rows, x.shape[1]), "int8" if is_int8 else x.dtype),
        ((rows,), "float32"),
        ((rows * TRIPLE_ROOM if is_v2 else tokens * chosen,), "int32"),
        ((local,), "int64"),
        ((local * given["ep_world_size"],), "int32"),
        ((given["tp_world_size"],), "int32"),
        ((0,), "float32"),
    )


def _of_combine(given: Given, _: object) -> Results:
    rows, ids = given["expand_x"], given["expert_ids"]
    return (((ids.shape[0], rows.shape[1]), rows.dtype),)


_OUTPUTS = {
    "npu_mm_all_reduce_base": ("aclnnMatmulAllReduce", _of_all_reduce),
    "npu_all_gather_base_mm": ("aclnnAllGatherMatmul", _of_all_gather),
    "npu_mm_reduce_scatter_base": ("aclnnMatmulReduceScatter", _of_reduce_scatter),
    "npu_moe_distribute_dispatch": ("aclnnMoeDistributeDispatch", _of_dispatch),
    "npu_moe_distribute_dispatch_v2": ("aclnnMoeDistributeDispatchV2", _of_dispatch),
    "npu_moe_distribute_combine": ("aclnnMoeDistributeCombine", _of_combine),
    "npu_moe_distribute_combine_v2": ("aclnnMoeDistributeCombineV2", _of_combine),
}


def _declared() -> dict[str, TorchFunction]:
    found = {}
    for schema in schemas():
        name = schema.partition("(")[0]
        if name in _OUTPUTS:
            acl, outputs = _OUTPUTS[name]
            aclnn = lambda _, acl=acl: acl  # noqa: E731
            found[name] = TorchFunction(schema=schema, aclnn=aclnn, outputs=outputs)
    return found


FUSED = _declared()
"""Name in torch_npu -> its function."""
