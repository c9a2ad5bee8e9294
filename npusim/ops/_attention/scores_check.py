"""The calls with pse and dropout_mask that training accepts.

Sources: ops-transformer@c29bc10 attention/flash_attention_score/op_host,
flash_attention_score_tiling_general.cpp (AnalyzeOptionalInput, SetPseAlibiParams);
op-plugin@517f2e7 FlashAttentionKernelNpuOpApi.cpp. Not simulated is pse of the last 1024 rows of
longer requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npusim.data.dtypes import FLOAT32
from npusim.data.errors import Code
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand
from npusim.ops._attention.problem import Attention
from npusim.ops._attention.scores import (
    ADD_THEN_MUL,
    BITS_OF_BYTE,
    INNER,
    INNER_ROOT,
    Bias,
    Dropout,
    Places,
)
from npusim.ops._contract import Contract


def bias_of(contract: Contract, a: Attention) -> tuple[Operand | None, Bias | None]:
    """pse and its layout for the requests of *a*."""
    kind = contract.integer("pse_type") if "pse_type" in contract.arguments else ADD_THEN_MUL
    contract.require(
        0 <= kind <= INNER_ROOT,
        f"pse_type must be 0 to {INNER_ROOT}, not {kind}; pass one of these",
    )
    pse = contract.optional("pse")
    contract.require(
        pse is not None or kind == ADD_THEN_MUL,
        f"pse must be given with pse_type {kind}, not None; pass it, or leave out pse_type",
    )
    if pse is None:
        return None, None
    dtype = FLOAT32 if kind >= INNER else a.element
    contract.require(
        pse.element is dtype,
        f"pse must be {dtype.name} with pse_type {kind}, not {pse.element.name}; cast it",
    )
    if kind >= INNER:
        return pse, _slopes(contract, a, pse, kind)
    return pse, _scores(contract, a, pse, kind)


def _scores(contract: Contract, a: Attention, pse: Operand, kind: int) -> Bias:
    """pse as it is given."""
    heads, tokens, keys = a.query_heads, a.query_lengths, a.kv_lengths
    shapes: list[tuple[int, ...]] = [
        (count, heads, rows, a.longest_kv)
        for rows in (a.longest_query, 1)
        for count in (a.requests, 1)
    ]
    if a.is_packed:
        shapes = [(a.score_count,), (heads * sum(keys),)]
    contract.require_shape(pse, *shapes, remedy="pass a row of keys for each token of each head")
    has_tokens = shapes.index(pse.shape) < len(shapes) // 2
    is_shared = not a.is_packed and pse.shape[0] == 1
    rows = tokens if has_tokens else (1,) * a.requests
    places = Places.of(heads, rows, keys, is_shared=is_shared)
    return Bias(a.element, places, "scores" if has_tokens else "keys", kind)


def _slopes(contract: Contract, a: Attention, pse: Operand, kind: int) -> Bias:
    """pse that the kernel makes from a slope for each head."""
    tokens, keys = a.query_lengths, a.kv_lengths
    when = f" with pse_type {kind}"
    contract.require(
        tokens == keys,
        f"requests must have as many keys as tokens{when}, not {list(keys)} and {list(tokens)}; "
        f"pass the bias itself with pse_type 0",
    )
    shapes = (a.query_heads,), (a.requests, a.query_heads)
    contract.require_shape(pse, *shapes, when=when, remedy="pass the slopes of heads")
    kv_start, q_start = (_first(contract.value(x)) for x in ("kv_start_idx", "q_start_idx"))
    ones = (1,) * a.requests
    places = Places.of(a.query_heads, ones, ones, is_shared=len(pse.shape) == 1)
    return Bias(FLOAT32, places, "slopes", kind, kv_start - q_start)


def _first(given: Sequence[int] | None) -> int:
    return given[0] if given else 0


def dropout_of(contract: Contract, a: Attention) -> tuple[Operand | None, Dropout | None]:
    """dropout_mask and its layout for the requests of *a*."""
    keep_prob = contract.value("keep_prob")
    contract.require(
        0 < keep_prob <= 1, f"keep_prob must lie in (0, 1], not be {keep_prob}; pass 1"
    )
    mask = contract.optional("dropout_mask")
    contract.require(
        mask is not None or keep_prob == 1,
        f"dropout_mask must be given with keep_prob {keep_prob}, not None: another kernel draws "
        f"it; pass what npu_dropout_gen_mask gives",
        Code.UNSUPPORTED,
    )
    if mask is None:
        return None, None
    least, given = ceil_div(a.score_count, BITS_OF_BYTE), prod(mask.shape)
    contract.require(
        given >= least,
        f"dropout_mask must have a bit for each score, {least} bytes, not {given}; pass what "
        f"npu_dropout_gen_mask gives",
    )
    places = Places.of(a.query_heads, a.query_lengths, a.kv_lengths, is_shared=False)
    in_bytes = places.splits_bytes or (a.is_packed and a.requests > 1)
    return mask, Dropout(keep_prob, places, in_bytes)
