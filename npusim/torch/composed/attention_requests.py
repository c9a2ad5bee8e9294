"""The tensors of each request of npu_fusion_attention, and the results of all in one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["Heads", "copies", "cut", "joined", "split"]

COPIES = 8
"""The number of equal columns in which a maximum or a sum is stored."""
LAYOUTS = {"BSH": "bs", "SBH": "sb", "BSND": "bsn", "BNSD": "bns", "TND": "tn"}
ROPES = ("query_rope", "key_rope")


class Heads(NamedTuple):
    """The tensors of one request, each `(heads, tokens, columns)`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def split(
    layout: str, tensors: tuple[torch.Tensor, ...], heads: int, given: dict[str, Any]
) -> list[Heads]:
    """Split *tensors* into those of each request."""
    if given["query_rope"] is not None:
        whole = [torch.cat([x, given[y]], -1) for x, y in zip(tensors, ROPES, strict=False)]
        tensors = (*whole, tensors[2])
    if layout == "TND":
        sums = [given["actual_seq_qlen"], *[given["actual_seq_kvlen"]] * 2]
        each = [cut(x.transpose(0, 1), upto) for x, upto in zip(tensors, sums, strict=True)]
        return [Heads(*own) for own in zip(*each, strict=True)]
    if layout[-1] == "H":
        size = tensors[0].shape[-1] // heads
        kv_heads = tensors[1].shape[-1] // size
        counts = heads, kv_heads, kv_heads
        tensors = tuple(x.unflatten(-1, (n, -1)) for x, n in zip(tensors, counts, strict=True))
    names = LAYOUTS[layout] if len(LAYOUTS[layout]) == 3 else f"{LAYOUTS[layout]}n"
    order = [names.index(axis) for axis in "bns"]
    by_request = [x.permute(*order, 3) for x in tensors]
    return [Heads(*own) for own in zip(*by_request, strict=True)]


def cut(x: torch.Tensor, sums: Sequence[int]) -> list[torch.Tensor]:
    """Split *x* `(heads, tokens, columns)` at *sums*; zeros at the end stand for empty requests."""
    found, start = [], 0
    for end in sums:
        found.append(x[:, start : max(start, end)])
        start = max(start, end)
    return found


def joined(layout: str, each: Sequence[torch.Tensor], given: dict[str, Any]) -> torch.Tensor:
    """Join tensors of requests, `(heads, tokens, columns)`, in *layout*; sums stay by request."""
    is_sum = each[0].shape[-1] == 1 and each[0].dtype == torch.float32
    if layout == "TND":
        if is_sum and not given["softmax_layout"]:
            # In memory head by head of each request.
            flat = torch.cat([x.reshape(-1) for x in each])
            return flat.reshape(-1, each[0].shape[0], 1)
        return torch.cat([x.transpose(0, 1) for x in each])
    stacked = torch.stack(list(each))
    if is_sum or layout == "BNSD":
        return stacked
    return stacked.permute(*((2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3)))


def copies(*each: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Maxima or sums `(..., 1)` in equal columns."""
    return tuple(x.expand(*x.shape[:-1], COPIES).contiguous() for x in each)
