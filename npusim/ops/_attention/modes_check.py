"""The calls with prefixes, and with slices of long requests, that training accepts.

Sources: ops-transformer@c29bc10 docs/context (sparse_mode), and
attention/flash_attention_score/op_host, flash_attention_score_tiling_general.cpp
(CheckPretokenAndNexttoken).
"""

from __future__ import annotations

from npusim.data.errors import shown
from npusim.data.tensor import Operand
from npusim.ops._attention.problem import LARGEST_TOKENS, MASK_EXTENT, Attention
from npusim.ops._contract import Contract

PREFIX_MODES = WHOLE_MASK, STENCIL = (5, 6)
"""Values of sparse_mode with prefixes: the mask itself, or a stencil."""
LAST_OF_CAUSAL, FIRST_OF_CAUSAL = 7, 8
"""Values of sparse_mode with a band for one request."""
TRIANGLE = "numpy.triu(numpy.ones((2048, 2048)), 1)"


def require_stencil(contract: Contract, mask: Operand, mode: int) -> None:
    """Refuse *mask* unless it has the shape of the stencil of *mode*."""
    rows, more = MASK_EXTENT, ""
    if mode == STENCIL:
        rows += MASK_EXTENT // 2
        more = " above 1024 rows, zeros on the left and ones on the right"
    contract.require_shape(
        mask, (rows, MASK_EXTENT), when=f" with sparse_mode {mode}", remedy=f"pass {TRIANGLE}{more}"
    )


def prefixes_of(contract: Contract, a: Attention) -> tuple[int, ...]:
    """The keys of each request that all of its tokens see."""
    mode, given = a.sparse_mode, contract.value("prefix")
    if mode not in PREFIX_MODES:
        return ()
    contract.require(
        mode != WHOLE_MASK or not a.is_packed,
        f"input_layout must not be TND with sparse_mode {mode}; pass sparse_mode {STENCIL}",
    )
    contract.require(
        given is not None and len(given) == a.requests,
        f"prefix must have an entry for each of {a.requests} requests with sparse_mode {mode}, not "
        f"be {shown(given)}; pass the keys that all of its tokens see",
    )
    for found, tokens, keys in zip(given, a.query_lengths, a.kv_lengths, strict=True):
        least = max(0, keys - tokens)
        contract.require(
            least <= found <= keys,
            f"prefix must be {least} to {keys} for {tokens} tokens and {keys} keys, not {found}; "
            f"pass an entry of this range",
        )
    return tuple(given)


def check_slices(contract: Contract, a: Attention) -> None:
    """Refuse slices of requests in which a token sees no key."""
    mode, band = a.sparse_mode, a.band_request
    if mode not in (LAST_OF_CAUSAL, FIRST_OF_CAUSAL):
        return
    contract.require(
        a.is_packed, f"input_layout must be TND with sparse_mode {mode}, not {a.layout}; pass it so"
    )
    contract.require(
        contract.value("pse") is None, f"pse must be None with sparse_mode {mode}; leave it out"
    )
    if mode == LAST_OF_CAUSAL:
        for tokens, keys in zip(a.query_lengths, a.kv_lengths, strict=True):
            contract.require(
                tokens <= keys,
                f"requests must have at least as many keys as tokens with sparse_mode {mode}, not "
                f"{keys} and {tokens}; pass sparse_mode {FIRST_OF_CAUSAL}",
            )
    if band is None:
        return
    least = a.query_lengths[band] - a.kv_lengths[band]
    before, behind = (contract.integer(name) for name in ("pre_tockens", "next_tockens"))
    most = 0 if mode == LAST_OF_CAUSAL else LARGEST_TOKENS
    contract.require(
        least <= behind <= most,
        f"next_tockens must be {least} to {most} with sparse_mode {mode}, not {behind}; pass where "
        f"the diagonal of the sliced request begins",
    )
    contract.require(
        before >= a.kv_lengths[band],
        f"pre_tockens must be at least {a.kv_lengths[band]} with sparse_mode {mode}, not {before}; "
        f"leave it out",
    )
