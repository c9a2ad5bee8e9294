"""Attention for inference by the kernels of npu_fused_infer_attention_score, under other names.

* `.out` of both versions: the same kernel writes to tensors of the caller. `get_max_workspace`
  returns the workspace of the kernel for these shapes plus that of the system.
* npu_prompt_flash_attention: its own kernel, PromptFlashAttention, computes in float16 if the query
  is float16 and sparse_mode is below 10. Here everything is fp32 and takes the time of
  FusedInferAttentionScore (assumed).
* ATB's functions: its kernels differ from those of CANN. Assumed: they take the same time and round
  in the same way, and a mask hides the same keys as a causal one.

Sources: op-plugin@517f2e7, op_plugin_functions.yaml, FlashAttentionKernelNpuOpApi.cpp (the modes of
npu_prompt_flash_attention) and ops/atb.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npusim import ops
from npusim.torch import card, kernels, shapes
from npusim.torch.relabel import overwrite, to_npu

__all__ = [
    "first_infer_output",
    "first_out",
    "first_workspace",
    "flash_attention",
    "flash_attention_qlens",
    "flash_attention_unpad",
    "into",
    "paged_attention",
    "paged_attention_splitfuse",
    "prompt_flash_attention",
    "second_infer_output",
    "second_out",
    "second_workspace",
    "workspace",
]

FIRST, SECOND = "npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"
SYSTEM_BYTES = 16 * 1024 * 1024
"""The part of a workspace that the Ascend C library uses (asc-devkit, GetLibApiWorkSpaceSize.md).
"""
HIGH_PRECISION = 10
"""The smallest sparse_mode of npu_prompt_flash_attention that asks for fp32."""
STENCIL = 2048
MOST_PACKED = 256
"""Most columns of a head that TND accepts."""
RIGHT_DOWN = 3
"""The sparse_mode of a diagonal that ends at the last token and the last key."""


def into(out: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Copy *found* into *out* in zero time, since the kernel writes there directly."""
    if type(out) is torch.Tensor and out.is_npu:
        overwrite(out, found)
    else:
        out.copy_(found)
    return out


# ---- both versions ----


def _out(name: str, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    given.pop("workspace", None)
    out = given.pop("out")
    found = getattr(torch.ops.npu, name)(*args, **given)
    return tuple(into(*each) for each in zip(out, found, strict=True))


def first_out(*args: Any, **given: Any) -> tuple[torch.Tensor, ...]:
    """npu_fused_infer_attention_score.out"""
    return _out(FIRST, args, given)


def second_out(*args: Any, **given: Any) -> tuple[torch.Tensor, ...]:
    """npu_fused_infer_attention_score_v2.out"""
    return _out(SECOND, args, given)


def _workspace(name: str, args: tuple[Any, ...], given: dict[str, Any]) -> torch.Tensor:
    """A tensor of the size of the kernel's workspace for these shapes."""
    operator = ops.load(name)
    bound = dict(zip(("query", "key", "value"), args, strict=False)) | given
    known = {each.name for each in operator.parameters}
    arguments = {
        key: value
        for key, value in kernels.arguments(name, bound).items()
        if key in known and value is not None
    }
    problem = operator.check(card.spec(), **arguments)
    plan = operator.plan(card.spec(), problem)
    nbytes = SYSTEM_BYTES + (sum(plan.workspaces.values()) if plan is not None else 0)
    return torch.empty(nbytes, dtype=torch.uint8, device=bound["query"].device)


def first_workspace(*args: Any, **given: Any) -> torch.Tensor:
    """_npu_fused_infer_attention_score_get_max_workspace"""
    return _workspace(FIRST, args, given)


def second_workspace(*args: Any, **given: Any) -> torch.Tensor:
    """_npu_fused_infer_attention_score_v2_get_max_workspace"""
    return _workspace(SECOND, args, given)


def first_infer_output(
    query: torch.Tensor, value: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, ...]:
    """_npu_fused_infer_attention_score_infer_output"""
    (function,) = ops.load(FIRST).torch
    known = {
        "query": query,
        "value": value,
        "num_heads": given.get("num_heads", 1),
        "num_key_value_heads": given.get("num_key_value_heads", 0),
        "input_layout": given.get("input_layout", "BSH"),
        "block_table": given.get("block_table"),
        "softmax_lse_flag": given.get("softmax_lse_flag", False),
    }
    (output, _), (lse, _) = function.outputs(known, torch)
    return query.new_empty(output), query.new_empty(lse, dtype=torch.float32)


def second_infer_output(
    query: torch.Tensor, value: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, ...]:
    """_npu_fused_infer_attention_score_v2_infer_output"""
    heads = given.pop("num_query_heads", 1)
    lse = given.pop("return_softmax_lse", False)
    return first_infer_output(query, value, num_heads=heads, softmax_lse_flag=lse, **given)


# ---- npu_prompt_flash_attention ----


def prompt_flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **given: Any
) -> torch.Tensor:
    """The first output of npu_fused_infer_attention_score."""
    names = {"scale_value": "scale", "deq_scale1": "dequant_scale1", "deq_scale2": "dequant_scale2"}
    own = {names.get(name, name): x for name, x in given.items() if name != "padding_mask"}
    own["next_tokens"] = own.get("next_tokens", 0)
    mode = own.get("sparse_mode", 0)
    own["sparse_mode"] = mode - HIGH_PRECISION if mode >= HIGH_PRECISION else mode
    output: torch.Tensor = getattr(torch.ops.npu, FIRST)(query, key, value, **own)[0]
    return output


# ---- ATB ----


def _numbers(lengths: torch.Tensor | Sequence[int]) -> list[int]:
    if isinstance(lengths, torch.Tensor):
        return [int(x) for x in lengths.tolist()]
    return list(lengths)


def _sums(lengths: Sequence[int]) -> list[int]:
    found, total = [], 0
    for length in lengths:
        total += length
        found.append(total)
    return found


def _paged(
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    block_table: torch.Tensor,
    lengths: tuple[Sequence[int], Sequence[int]],
    heads: tuple[int, int],
    scale: float,
    *,
    is_causal: bool = False,
) -> torch.Tensor:
    """Attention of tokens `(tokens, heads, columns)` of requests of *lengths* to keys in pages."""
    tokens, keys = lengths
    is_single = query.shape[-1] > MOST_PACKED and set(tokens) == {1}
    size, columns = caches[0].shape[1], caches[1].shape[-1]
    flat = (cache.reshape(*cache.shape[:2], -1) for cache in _alike(*caches))
    causal = {"atten_mask": _stencil(query), "sparse_mode": RIGHT_DOWN} if is_causal else {}
    rows = query.reshape(query.shape[0], heads[0], -1)
    output: torch.Tensor = getattr(torch.ops.npu, FIRST)(
        rows[:, None] if is_single else rows,
        *flat,
        block_table=block_table,
        actual_seq_lengths=None if is_single else _sums(tokens),
        actual_seq_lengths_kv=list(keys),
        num_heads=heads[0],
        num_key_value_heads=heads[1],
        scale=scale,
        input_layout="BSND" if is_single else "TND",
        block_size=size,
        **causal,
    )[0]
    return output.reshape(*rows.shape[:2], -1)[..., :columns]


def _alike(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """*key* and *value* `(..., columns)`, with the values padded to the columns of the keys."""
    missing = key.shape[-1] - value.shape[-1]
    return key, torch.nn.functional.pad(value, (0, missing)) if missing > 0 else value


def _stencil(query: torch.Tensor) -> torch.Tensor:
    """The mask of all causal calls."""
    if not card.computes_values():
        meta = torch.empty((STENCIL, STENCIL), dtype=torch.bool, device="meta")
        return shapes.like(meta)
    ones = torch.ones((STENCIL, STENCIL), dtype=torch.bool).triu(1)
    return to_npu(ones) if query.is_npu else ones


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,  # noqa: ARG001
) -> None:
    """Attention of one token of each request."""
    keys = _numbers(context_lens)
    found = _paged(
        query,
        (key_cache, value_cache),
        block_table,
        ([1] * len(keys), keys),
        (num_heads, num_kv_heads),
        scale_value,
    )
    into(out, found.reshape(out.shape))


def workspace(query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """A tensor for the attention of ATB, which here does not use it."""
    return torch.empty(SYSTEM_BYTES, dtype=torch.uint8, device=query.device)


def paged_attention_splitfuse(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mask: torch.Tensor,  # noqa: ARG001
    seq_len: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """Attention of *seq_len* tokens of each request to *context_lens* keys.

    The mask is taken to be causal, as vllm-ascend passes it (assumed).
    """
    lengths = _numbers(seq_len), _numbers(context_lens)
    heads, caches = (num_heads, num_kv_heads), (key_cache, value_cache)
    found = _paged(query, caches, block_table, lengths, heads, scale_value, is_causal=True)
    into(out, found.reshape(out.shape))


def flash_attention_qlens(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    context_lens: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """:func:`paged_attention_splitfuse` with its arguments in another order."""
    paged_attention_splitfuse(
        query, key_cache, value_cache, block_table, context_lens, mask, seq_len, num_kv_heads,
        num_heads, scale_value, out,
    )  # fmt: skip


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """Attention of the concatenated tokens of all requests to the keys of the same tokens."""
    sums = _sums(_numbers(seq_len))
    causal = {} if mask is None else {"atten_mask": _stencil(query), "sparse_mode": RIGHT_DOWN}
    heads = num_heads, num_kv_heads, num_kv_heads
    q, k, v = (
        x.reshape(x.shape[0], n, -1) for x, n in zip((query, key, value), heads, strict=True)
    )
    columns, tensors = v.shape[-1], (q, *_alike(k, v))
    found = getattr(torch.ops.npu, FIRST)(
        *tensors,
        actual_seq_lengths=sums,
        actual_seq_lengths_kv=sums,
        num_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        scale=scale_value,
        input_layout="TND",
        **causal,
    )[0]
    into(out, found[..., :columns].reshape(out.shape))


def flash_attention_unpad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """:func:`flash_attention` without a mask."""
    flash_attention(query, key, value, None, seq_len, scale_value, num_heads, num_kv_heads, out)
