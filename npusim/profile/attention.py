"""Attention of a profile as calls: heads and layouts follow from shapes, keys stay open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.profile.kernels import Kernel
from npusim.profile.shapes import Reading, given
from npusim.validation.timed import NotModelledError

__all__ = ["attention"]


def attention(kernel: Kernel) -> Iterator[Reading]:
    """Query, keys and values; behind them a mask of int8 and a table of pages, if there are."""
    query, key, value, *rest = given(kernel)
    options: dict[str, Any] = {}
    pages = None
    for each in rest:
        if each.dtype == "int32" and len(each.shape) == 2:
            pages = options["block_table"] = each
        elif each.dtype in ("int8", "uint8") and len(each.shape) >= 2:
            options |= {"atten_mask": TensorSpec(each.shape, "int8"), "sparse_mode": 3}
        elif each.dtype != "int64":
            raise NotModelledError("of its inputs some are not read")
    if len(query.shape) == 4:
        options |= {"input_layout": "BNSD", "num_heads": query.shape[1]}
        options |= {"num_key_value_heads": key.shape[1]}
        yield Reading.of("npu_fused_infer_attention_score", query, key, value, **options)
        return
    if len(query.shape) != 3:
        raise NotModelledError("a query has three or four dimensions")
    tokens, heads, width = query.shape
    options |= {"input_layout": "TND", "num_heads": heads, "scale": width**-0.5}
    if pages is None:
        options |= {"num_key_value_heads": key.shape[1]}
        options |= {"actual_seq_lengths": [tokens], "actual_seq_lengths_kv": [key.shape[0]]}
        yield Reading.of("npu_fused_infer_attention_score", query, key, value, **options)
        return
    requests, blocks = pages.shape
    page = key.shape[1] if len(key.shape) == 3 else key.shape[-2]
    kv_heads = key.shape[-1] // width if len(key.shape) == 3 else key.shape[1]
    options |= {"num_key_value_heads": kv_heads, "block_size": page}
    share = ceil_div(tokens, requests)
    options["actual_seq_lengths"] = [
        min(share * number, tokens) for number in range(1, requests + 1)
    ]
    for keys in dict.fromkeys((share, blocks * page)):
        lengths = {"actual_seq_lengths_kv": [keys] * requests}
        yield Reading.of("npu_fused_infer_attention_score", query, key, value, **options, **lengths)
