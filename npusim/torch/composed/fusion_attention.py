"""npu_fusion_attention for calls that its simulated kernels do not accept, forward and backward.

Dropout without a mask is drawn here, and given to the kernel. Calls of float32, with a sink, with a
mask for each head, and the like run by parts: products, softmax and masks are separate operations
in float32. The factors of the second product are rounded to the type of the query, as in the
kernel; the output is rounded to nearest, ties to even. A card runs all this in one kernel, in less
time.

.. code-block:: text

    p  = exp(scores - softmax_max) / softmax_sum
    dv = p.T @ dy
    ds = p * (dy @ value.T - sum(dy * output))
    dq, dk = ds @ key * scale, ds.T @ query * scale

Assumed for backward: p and ds are rounded to the type of the query before a product; the sum of
dy * output is over all keys, so that dropout affects both terms in the same way. With dropout the
mask is drawn again from the seed, even if forward was given one, as in op-plugin.

Sources: op-plugin@517f2e7, torch_npu-npu_fusion_attention.md; ops-transformer@3a280bc
attention/flash_attention_score/op_host, flash_attention_score_tiling_general.cpp (pse_type).
"""

from __future__ import annotations

from typing import Any

import torch

from npusim.data.errors import Code, OpError
from npusim.ops import npu_fusion_attention as forward
from npusim.torch.composed import dropout
from npusim.torch.composed.attention_requests import Heads, copies, cut, joined, split
from npusim.torch.graphs import as_one_step
from npusim.torch.kernels import launch_all
from npusim.torch.relabel import unwritten

__all__ = [
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "npu_fusion_attention_grad_v2",
    "npu_fusion_attention_grad_v3",
    "npu_fusion_attention_v2",
    "npu_fusion_attention_v3",
]

LOWEST = torch.finfo(torch.float32).min
ADD_THEN_MUL = 1
"""The pse_type whose bias is scaled together with the scores."""
LAST_MODE = 6
"""Higher modes are for parts of sequences."""

Gradients = tuple[torch.Tensor, ...]
Returned = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


def npu_fusion_attention_v3(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """npu_fusion_attention with lengths, seed and offset as tensors on the host.

    In a captured graph each replay drops other weights, and renews the last two.
    """
    names = [each.name for each in torch.ops.npu.npu_fusion_attention_v3.default._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    for name in ("actual_seq_qlen", "actual_seq_kvlen"):
        if isinstance(given.get(name), torch.Tensor):
            given[name] = [int(x) for x in given[name].tolist()]
    seed, offset = torch.tensor(0), torch.tensor(0)

    def attend() -> tuple[torch.Tensor, ...]:
        *tensors, own_seed, own_offset, _ = torch.ops.npu.npu_fusion_attention(**given)
        seed.fill_(own_seed)
        offset.fill_(own_offset)
        return tuple(tensors)

    return *as_one_step("npu_fusion_attention_v3", attend), seed, offset


def npu_fusion_attention_grad(*args: Any, **kwargs: Any) -> Gradients:
    """The gradients of query, key, value, pse and sink; empty tensors if pse or sink is absent."""
    return _gradients_of("npu_fusion_attention_grad", args, kwargs)[:5]


def npu_fusion_attention_grad_v2(*args: Any, **kwargs: Any) -> Gradients:
    """The gradients of query, key, value, pse, query_rope, key_rope and sink."""
    found = _gradients_of("npu_fusion_attention_grad_v2", args, kwargs)
    query, key, value, pse, sink, query_rope, key_rope = found
    return query, key, value, pse, query_rope, key_rope, sink


def npu_fusion_attention_grad_v3(*args: Any, **kwargs: Any) -> Gradients:
    """npu_fusion_attention_grad with lengths, seed and offset as tensors on the host."""
    given = _named("npu_fusion_attention_grad_v3", args, kwargs)
    for name in ("actual_seq_qlen", "actual_seq_kvlen"):
        if isinstance(given[name], torch.Tensor):
            given[name] = [int(x) for x in given[name].tolist()]
    place = {name: given[name] for name in ("seed", "offset")}

    def back() -> Gradients:
        for name, tensor in place.items():
            given[name] = 0 if tensor is None else int(tensor.cpu().numpy())
        found: Gradients = torch.ops.npu.npu_fusion_attention_grad(**given)
        return found

    return as_one_step("npu_fusion_attention_grad_v3", back)


def npu_fusion_attention(*args: Any, **kwargs: Any) -> Returned:
    """The output, maxima, sums, an empty tensor, seed, offset and the number of scores."""
    return _forward("npu_fusion_attention", args, kwargs)


def npu_fusion_attention_v2(*args: Any, **kwargs: Any) -> Returned:
    """The same by the parameter names of the second version."""
    return _forward("npu_fusion_attention_v2", args, kwargs)


def _forward(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Returned:
    """The results of *function*, whose kernel has refused the call."""
    asked = _named(function, args, kwargs)
    count = forward.score_count(asked)
    if asked["keep_prob"] < 1 and asked["dropout_mask"] is None:
        seed, offset = asked["seed"], asked["offset"]
        if not seed:
            seed, offset = dropout.drawn()
        asked |= {"seed": seed, "offset": offset}
        found: Returned = getattr(torch.ops.npu, function)(
            **asked | {"dropout_mask": _mask_of(asked, count)}
        )
        return found
    given = _renamed(asked)
    query, layout, head_num = given["query"], given["input_layout"].upper(), given["head_num"]
    _check(query, given)
    parts = split(layout, (query, given["key"], given["value"]), head_num, given)
    bits = given["dropout_mask"]
    kept = None if bits is None else dropout.unpacked(bits, count)
    each, at = [], 0
    for number, heads in enumerate(parts):
        size = head_num * heads.query.shape[1] * heads.key.shape[1]
        own = None if kept is None else kept[at : at + size]
        at += size
        each.append(_attend(heads, number, own, given))
    output, largest, total = (joined(layout, x, given) for x in zip(*each, strict=True))
    if layout[-1] == "H":
        output = output.flatten(2)
    none, place = query.new_empty(0), (given["seed"], given["offset"])
    return output, *copies(largest, total), none, *place, count


def _mask_of(given: dict[str, Any], count: int) -> torch.Tensor:
    """The dropout mask of *count* scores that seed and offset determine."""
    dropout.require_renewed()
    drop = 1 - given["keep_prob"]
    return dropout.npu_dropout_gen_mask(
        given["query"], [count], drop, given["seed"], given["offset"]
    )


def _check(query: torch.Tensor, given: dict[str, Any]) -> None:
    """Raise ValueError for calls that the parts do not support either; the caller then gets the
    kernel's error."""
    bias, kind = given["pse"], given["pse_type"]
    fits = bias is None or (bias.dim() == 4 and bias.dtype == query.dtype)
    if not fits or kind not in (0, ADD_THEN_MUL) or given["sparse_mode"] > LAST_MODE:
        raise ValueError("npu_fusion_attention: its parts must know pse and the mode, but do not")
    _check_sink("npu_fusion_attention", given["sink"])


def _check_sink(function: str, sink: torch.Tensor | None) -> None:
    if sink is not None and sink.is_complex():
        raise ValueError(f"{function}: sink must be real, but is complex; pass its real part")


def _named(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of *function*, by name."""
    schema = getattr(torch.ops.npu, function).default._schema.arguments
    given = {each.name: each.default_value for each in schema}
    return given | dict(zip(given, args, strict=False)) | kwargs


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments *given* to any version, or its gradient, by their names in the first one."""
    rest = {"query_rope": None, "key_rope": None, "pse_type": ADD_THEN_MUL}
    renamed = {
        "pre_tokens": "pre_tockens", "next_tokens": "next_tockens", "scale_value": "scale",
    }  # fmt: skip
    return rest | {renamed.get(name, name): value for name, value in given.items()}


# ---- a request ----


def _attend(
    heads: Heads, number: int, kept: torch.Tensor | None, given: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, maxima and sums of request *number*, `(heads, tokens, columns or 1)`."""
    query, key, value = heads
    group = query.shape[0] // max(1, key.shape[0])
    if group > 1:
        value = value.repeat_interleave(group, 0)
    scores, hidden = _scores(query, key, number, given)
    if not key.shape[1]:
        shape = (*query.shape[:2], 1)
        largest, total = (scores.new_full(shape, x) for x in (LOWEST, -LOWEST))
        return query.new_zeros((*query.shape[:2], value.shape[-1])), largest, total
    largest, sink = scores.amax(-1, keepdim=True), given["sink"]
    if sink is not None:
        # The sink is an extra score of each head with a value of zero.
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


def _scores(
    query: torch.Tensor, key: torch.Tensor, number: int, given: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The scores of request *number*, `(heads, tokens, keys)`, and which of them are hidden."""
    group = query.shape[0] // max(1, key.shape[0])
    if group > 1:
        key = key.repeat_interleave(group, 0)
    scores = query.float() @ key.float().transpose(1, 2)
    bias, scale = given["pse"], given["scale"]
    if bias is None:
        scores = scores * scale
    else:
        bias = _bias_of(bias, number, query.shape[1]).float()
        adds_first = given["pse_type"] == ADD_THEN_MUL
        scores = (scores + bias) * scale if adds_first else scores * scale + bias
    hidden = _hidden(query.shape[1], key.shape[1], number, given)
    return scores if hidden is None else scores.masked_fill(hidden, LOWEST), hidden


def _bias_of(bias: torch.Tensor, number: int, tokens: int) -> torch.Tensor:
    """The part of pse, or of its gradient, that belongs to request *number*."""
    return bias[min(number, bias.shape[0] - 1)][..., -tokens:, :]


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
    behind = 0 if mode == 2 else keys - tokens
    if mode == 4:
        before = keys - tokens - given["pre_tockens"]
        behind += given["next_tockens"]
        return ((apart > behind) | (apart < before))[None]
    hidden = apart > behind
    if mode == 6:
        hidden = hidden & (torch.arange(keys, device=mask.device) >= given["prefix"][number])
    return hidden[None]


# ---- backward ----


def _gradients_of(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Gradients:
    """Gradients of query, key, value, pse, sink, query_rope and key_rope.

    With dropout the kernel takes the mask that seed and offset determine.
    """
    asked = _named(function, args, kwargs)
    if asked["keep_prob"] < 1:
        asked |= {x: y.contiguous() for x, y in asked.items() if isinstance(y, torch.Tensor)}
        asked["dropout_mask"] = _mask_of(asked, forward.score_count(asked))
        try:
            found = launch_all(function, asked)
        except OpError as error:
            if error.code is not Code.UNSUPPORTED:
                raise
        else:
            query, pse = asked["query"], asked["pse"]
            none = query.new_empty(0)
            of_pse = none if pse is None else unwritten(torch.empty_like(pse))
            return *found, of_pse, query.new_empty(0, dtype=torch.float32), none, none
    return tuple(_backward(_renamed(asked)))


def _backward(given: dict[str, Any]) -> list[torch.Tensor]:
    """Gradients of query, key, value, pse, sink, query_rope and key_rope."""
    _check_sink("npu_fusion_attention_grad", given["sink"])
    layout, heads = given["input_layout"].upper(), given["head_num"]
    query, *_ = tensors = given["query"], given["key"], given["value"]
    parts = split(layout, tensors, heads, given)
    others = given | {"query_rope": None, "key_rope": None}
    others["actual_seq_kvlen"] = given["actual_seq_qlen"]
    back, output = given["dy"], given["attention_in"]
    both = split(layout, (back, output, output), heads, others)
    kept = None
    if given["keep_prob"] < 1:
        count = sum(heads * q.shape[1] * k.shape[1] for q, k, _ in parts)
        kept = dropout.unpacked(given["dropout_mask"], count)
    sums = zip(*(_by_request(given[x], layout, parts, given) for x in SUMS), strict=True)
    bias = given["pse"]
    of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    of_sink, found, at = [], [], 0
    for number, (own, (dy, _, y), (largest, total)) in enumerate(
        zip(parts, both, sums, strict=True)
    ):
        size = heads * own.query.shape[1] * own.key.shape[1]
        drawn = None if kept is None else kept[at : at + size]
        at += size
        weight = (dy.float() * y.float()).sum(-1, keepdim=True)
        if given["sink"] is not None:
            place = given["sink"].float().reshape(-1, 1, 1)
            of_sink.append(-((place - largest).exp() / total * weight).sum((1, 2)))
        *each, slope = _gradients(own, dy, weight, (largest, total), number, drawn, given)
        found.append(each)
        if of_bias is not None:
            share = _bias_of(of_bias, number, own.query.shape[1])
            share += slope.sum_to_size(share.shape)
    each_of_all = [joined(layout, each, given) for each in zip(*found, strict=True)]
    dq, dk, dv = (x.flatten(2) if layout[-1] == "H" else x for x in each_of_all)
    ropes = [query.new_empty(0)] * 2
    if given["query_rope"] is not None:
        size = query.shape[-1]
        ropes = [x[..., size:].contiguous() for x in (dq, dk)]
        dq, dk = (x[..., :size].contiguous() for x in (dq, dk))
    none = query.new_empty(0)
    of_all = torch.stack(of_sink).sum(0) if of_sink else none.float()
    return [dq, dk, dv, none if of_bias is None else of_bias.to(bias.dtype), of_all, *ropes]


SUMS = ("softmax_max", "softmax_sum")


def _by_request(
    sums: torch.Tensor, layout: str, parts: list[Heads], given: dict[str, Any]
) -> list[torch.Tensor]:
    """The *sums* of each request, `(heads, tokens, 1)`: one of their identical copies."""
    once = sums[..., :1]
    if layout != "TND":
        return list(once)
    if given["softmax_layout"]:
        return cut(once.transpose(0, 1), given["actual_seq_qlen"])
    # In memory head by head of each request.
    shapes = [part.query.shape[:2] for part in parts]
    each = once.reshape(-1).split([heads * tokens for heads, tokens in shapes])
    return [x.reshape(*shape, 1) for x, shape in zip(each, shapes, strict=True)]


def _gradients(
    heads: Heads,
    dy: torch.Tensor,
    weight: torch.Tensor,
    sums: tuple[torch.Tensor, torch.Tensor],
    number: int,
    kept: torch.Tensor | None,
    given: dict[str, Any],
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value of request *number*, and of pse in float32."""
    query, key, value = heads
    kind, groups = query.dtype, (key.shape[0], -1)
    group = query.shape[0] // max(1, key.shape[0])
    scores, _ = _scores(query, key, number, given)
    if group > 1:
        key, value = (x.repeat_interleave(group, 0) for x in (key, value))
    largest, total = sums
    share = (scores - largest).exp() / total
    slope = dy.float() @ value.float().transpose(1, 2)
    drawn = share
    if kept is not None:
        factor = kept.reshape(share.shape) / given["keep_prob"]
        drawn, slope = share * factor, slope * factor
    of_value = drawn.to(kind).float().transpose(1, 2) @ dy.float()
    slope = share * (slope - weight)
    rounded, scale = slope.to(kind).float(), given["scale"]
    of_query = rounded @ key.float() * scale
    of_key = rounded.transpose(1, 2) @ query.float() * scale
    if group > 1:
        of_key, of_value = (x.unflatten(0, groups).sum(1) for x in (of_key, of_value))
    if given["pse_type"] == ADD_THEN_MUL:
        slope = slope * scale
    return of_query.to(kind), of_key.to(kind), of_value.to(kind), slope
