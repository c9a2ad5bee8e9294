"""npu_fusion_attention of what its kernel does not take here: pse, dropout, float32 and the rest.

Products, softmax and masks are operations of their own, in float32, with the factors of the second
product rounded to the type of the query as the kernel rounds them; the output is rounded to
nearest, ties to even. A card does all in one kernel, in less time.

Sources: op-plugin@517f2e7, torch_npu-npu_fusion_attention.md; ops-transformer@3a280bc
attention/flash_attention_score/op_host, flash_attention_score_tiling_general.cpp (pse_type).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from npusim.torch.composed import dropout

__all__ = ["npu_fusion_attention", "npu_fusion_attention_v3"]

LOWEST = torch.finfo(torch.float32).min
ADD_THEN_MUL = 1
"""The pse_type whose bias is scaled with the scores."""
LAST_MODE = 6
"""Modes behind it are of parts of sequences."""
COPIES = 8
LAYOUTS = {"BSH": "bs", "SBH": "sb", "BSND": "bsn", "BNSD": "bns", "TND": "tn"}

Returned = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


def npu_fusion_attention_v3(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """npu_fusion_attention whose lengths, seed and offset are tensors of the host."""
    names = [each.name for each in torch.ops.npu.npu_fusion_attention_v3.default._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    for name in ("actual_seq_qlen", "actual_seq_kvlen"):
        if isinstance(given.get(name), torch.Tensor):
            given[name] = [int(x) for x in given[name].tolist()]
    *tensors, seed, offset, _ = torch.ops.npu.npu_fusion_attention(**given)
    return *tensors, torch.tensor(seed), torch.tensor(offset)


class _Heads(NamedTuple):
    """What a request has: `(heads, tokens, columns)` each."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *args: Any,
    **kwargs: Any,
) -> Returned:
    """The output, maxima, sums, an empty tensor, seed, offset and how many scores there are."""
    given = _bound(args, kwargs)
    layout = input_layout.upper()
    _check(query, given)
    parts = _requests(layout, (query, key, value), head_num, given)
    count = sum(head_num * q.shape[1] * k.shape[1] for q, k, _ in parts)
    seed, offset = given["seed"], given["offset"]
    keep = given["keep_prob"]
    bits = given["dropout_mask"]
    if keep < 1 and bits is None:
        if not seed:
            seed, offset = dropout.drawn()
        bits = dropout.npu_dropout_gen_mask(query, [count], 1 - keep, seed, offset)
    kept = None if bits is None or keep == 1 else _unpacked(bits, count)
    found, at = [], 0
    for number, heads in enumerate(parts):
        size = head_num * heads.query.shape[1] * heads.key.shape[1]
        own = None if kept is None else kept[at : at + size]
        at += size
        found.append(_attend(heads, number, own, given))
    output, largest, total = (_joined(layout, each, given) for each in zip(*found, strict=True))
    if layout[-1] == "H":
        output = output.flatten(2)
    return output, *_sums(largest, total), query.new_empty(0), seed, offset, count


def _check(query: torch.Tensor, given: dict[str, Any]) -> None:
    """Raise ValueError for what these parts do not do either, for the kernel's refusal to stand."""
    bias, kind = given["pse"], given["pse_type"]
    fits = bias is None or (bias.dim() == 4 and bias.dtype == query.dtype)
    if not fits or kind not in (0, ADD_THEN_MUL) or given["sparse_mode"] > LAST_MODE:
        raise ValueError("npu_fusion_attention: its parts must know pse and the mode, but do not")


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments behind the layout, by the names of npu_fusion_attention."""
    schema = torch.ops.npu.npu_fusion_attention.default._schema.arguments[5:]
    given = {each.name: each.default_value for each in schema}
    given |= dict(zip(given, args, strict=False))
    given |= {"query_rope": None, "key_rope": None, "pse_type": ADD_THEN_MUL}
    renamed = {"pre_tokens": "pre_tockens", "next_tokens": "next_tockens"}
    return given | {renamed.get(name, name): value for name, value in kwargs.items()}


# ---- layouts ----


def _requests(
    layout: str, tensors: tuple[torch.Tensor, ...], heads: int, given: dict[str, Any]
) -> list[_Heads]:
    """What each request has."""
    if given["query_rope"] is not None:
        joined = [torch.cat([x, given[y]], -1) for x, y in zip(tensors, ROPES, strict=False)]
        tensors = (*joined, tensors[2])
    if layout == "TND":
        sums = [given["actual_seq_qlen"], *[given["actual_seq_kvlen"]] * 2]
        each = [_cut(x.transpose(0, 1), upto) for x, upto in zip(tensors, sums, strict=True)]
        return [_Heads(*own) for own in zip(*each, strict=True)]
    if layout[-1] == "H":
        size = tensors[0].shape[-1] // heads
        kv_heads = tensors[1].shape[-1] // size
        counts = heads, kv_heads, kv_heads
        tensors = tuple(x.unflatten(-1, (n, -1)) for x, n in zip(tensors, counts, strict=True))
    names = LAYOUTS[layout] if len(LAYOUTS[layout]) == 3 else f"{LAYOUTS[layout]}n"
    order = [names.index(axis) for axis in "bns"]
    by_request = [x.permute(*order, 3) for x in tensors]
    return [_Heads(*own) for own in zip(*by_request, strict=True)]


ROPES = ("query_rope", "key_rope")


def _cut(x: torch.Tensor, sums: Sequence[int]) -> list[torch.Tensor]:
    """*x* `(heads, tokens, columns)` cut where *sums* say; zeros at the end are empty requests."""
    found, start = [], 0
    for end in sums:
        found.append(x[:, start : max(start, end)])
        start = max(start, end)
    return found


def _joined(layout: str, each: Sequence[torch.Tensor], given: dict[str, Any]) -> torch.Tensor:
    """What requests have, `(heads, tokens, columns)`, in *layout*; sums stay by request."""
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


def _sums(*each: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.expand(*x.shape[:-1], COPIES).contiguous() for x in each)


def _unpacked(bits: torch.Tensor, count: int) -> torch.Tensor:
    """The bits of a mask of dropout, as bool."""
    places = 2 ** torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.reshape(-1)[:, None] & places).ne(0).reshape(-1)[:count]


# ---- a request ----


def _attend(
    heads: _Heads, number: int, kept: torch.Tensor | None, given: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, maxima and sums of request *number*, `(heads, tokens, columns or 1)`."""
    query, key, value = heads
    group = query.shape[0] // max(1, key.shape[0])
    if group > 1:
        key, value = (x.repeat_interleave(group, 0) for x in (key, value))
    scores = query.float() @ key.float().transpose(1, 2)
    bias, scale = given["pse"], given["scale"]
    if bias is None:
        scores = scores * scale
    else:
        bias = bias[min(number, bias.shape[0] - 1)].float()[..., -query.shape[1] :, :]
        adds_first = given["pse_type"] == ADD_THEN_MUL
        scores = (scores + bias) * scale if adds_first else scores * scale + bias
    hidden = _hidden(query.shape[1], key.shape[1], number, given)
    if hidden is not None:
        scores = scores.masked_fill(hidden, LOWEST)
    if not key.shape[1]:
        shape = (*query.shape[:2], 1)
        largest, total = (scores.new_full(shape, x) for x in (LOWEST, -LOWEST))
        return query.new_zeros((*query.shape[:2], value.shape[-1])), largest, total
    largest, sink = scores.amax(-1, keepdim=True), given["sink"]
    if sink is not None:
        # One more score of each head, whose value is nothing.
        sink = sink.float().reshape(-1, 1, 1)
        largest = torch.maximum(largest, sink)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - largest).exp()
    if kept is not None:
        weights = weights * kept.reshape(weights.shape) / given["keep_prob"]
    product = weights.to(query.dtype).float() @ value.float()
    output = (product / total).to(query.dtype)
    if hidden is not None and (given["inner_precise"] == 2 or given["sparse_mode"] in (3, 4)):
        blind = hidden.all(-1, keepdim=True).expand(total.shape)
        output = output.masked_fill(blind, 0)
        total = total.masked_fill(blind, -LOWEST)
    return output, largest, total


def _hidden(tokens: int, keys: int, number: int, given: dict[str, Any]) -> torch.Tensor | None:
    """Which scores are hidden, `(heads or 1, tokens, keys)`."""
    mask, mode = given["atten_mask"], given["sparse_mode"]
    if mask is None:
        return None
    if mode in (0, 1, 5):
        mask = mask if mask.dim() > 2 else mask[None]
        own = mask[min(number, mask.shape[0] - 1)] if mask.dim() == 4 else mask
        return own[..., :tokens, :keys].bool()
    apart = (
        torch.arange(keys, device=mask.device) - torch.arange(tokens, device=mask.device)[:, None]
    )
    behind = 0 if mode in (2, 6) else keys - tokens
    if mode == 4:
        before = keys - tokens - given["pre_tockens"]
        behind += given["next_tockens"]
        return ((apart > behind) | (apart < before))[None]
    hidden = apart > behind
    if mode == 6:
        hidden = hidden & (torch.arange(keys, device=mask.device) >= given["prefix"][number])
    return hidden[None]
