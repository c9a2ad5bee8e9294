"""What attention refuses and warns of, rule by rule, and which kernel takes what it accepts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from attention_calls import OP, STENCIL, attention_call, specs_of
from attention_layouts import layout_call
from op_calls import assert_all_same

from npusim import Code, DocumentWarning, OpError, TensorSpec, devices, ops, run
from npusim.ops import Contract
from npusim.ops._attention import check
from npusim.ops._attention.call import ATTRIBUTES, Call
from npusim.ops._attention.problem import choose
from npusim.ops._attention.rule import Rule
from npusim.ops._attention.rules import LACKS as NOT_SIMULATED
from npusim.ops._attention.rules import RULES
from npusim.ops._attention.sides import sides_of
from npusim.ops._torch import TorchTensor
from npusim.ops.npu_fused_infer_attention_score_v2 import NAMES

A2, V2 = "ascend910b2", f"{OP}_v2"
RNG = np.random.default_rng(0)


def ones(*shape: int, dtype: Any = np.float16) -> Any:
    return np.ones(shape, dtype)


def both(*shape: int) -> dict[str, Any]:
    """Keys and values of *shape*."""
    return dict.fromkeys(("key", "value"), ones(*shape))


def bytes_of(*shape: int) -> Any:
    return np.zeros(shape, np.uint8)


def table(*shape: int) -> Any:
    return np.zeros(shape, np.int32)


def large(tokens: int, keys: int, requests: int = 1) -> dict[str, Any]:
    """Requests of so many keys, without values."""
    key = TensorSpec((requests, keys, 16), "float16")
    return {"query": TensorSpec((requests, tokens, 16), "float16"), "key": key, "value": key}


def single(requests: int) -> dict[str, Any]:
    """Requests of a token and a key in TND, without values."""
    every = TensorSpec((requests, 1, 16), "float16")
    ends = [*range(1, requests + 1)]
    own = {"actual_seq_lengths": ends, "actual_seq_lengths_kv": ends, "input_layout": "TND"}
    return own | {"query": every, "key": every, "value": every}


BASE = attention_call(RNG, (2, 3), (4, 5), (4, 2), 32, np.float16)
PAGED = attention_call(RNG, (1, 1), (20, 5), (4, 2), 32, np.float16, 16)
BSND, _ = layout_call(RNG, "BSND", ((6, 6), (20, 9)), (4, 2), 64, np.float16)
ONE, _ = layout_call(RNG, "BSND", ((1, 1), (20, 9)), (4, 2), 64, np.float16)
BSH, _ = layout_call(RNG, "BSH", ((6, 6), (200, 9)), (4, 2), 64, np.float16, block_size=128)
TALL = PAGED | {"template": "FIA", "query": ones(2, 4, 64)} | both(5, 16, 128)
EACH = BASE | both(9, 4, 64) | {"query": ones(5, 4, 64), "num_key_value_heads": 4}
EACH |= {"sparse_mode": 0, "atten_mask": bytes_of(2, 3, 5)}
HEADS = {"num_heads": 4, "input_layout": "BSND"}
MLA = HEADS | {"query": ones(2, 1, 4, 512), "num_key_value_heads": 1} | both(2, 9, 1, 512)
MLA |= {"query_rope": ones(2, 1, 4, 64), "key_rope": ones(2, 9, 1, 64)}
ROPE = HEADS | {"query": ones(2, 3, 4, 128), "num_key_value_heads": 2} | both(2, 9, 2, 128)
ROPE |= {"query_rope": ones(2, 3, 4, 64), "key_rope": ones(2, 9, 2, 64)}
DECODE = {"query": ones(2, 8, 1, 512), "query_rope": ones(2, 8, 1, 64), "input_layout": "BNSD_NBSD"}
DECODE |= both(4, 1, 128, 512) | {"key_rope": ones(4, 1, 128, 64), "num_heads": 8}
DECODE |= {"num_key_value_heads": 1, "block_table": table(2, 2), "block_size": 128}
DECODE |= {"actual_seq_lengths_kv": [200, 9]}
FRACTALS = DECODE | both(4, 1, 32, 128, 16) | {"key_rope": ones(4, 1, 4, 128, 16)}
FRACTALS |= {"query": ones(2, 1, 8, 512), "query_rope": ones(2, 1, 8, 64)}
FRACTALS |= {"input_layout": "BSND_NBSD"}
SEVERAL = DECODE | {"query": ones(4, 8, 512), "query_rope": ones(4, 8, 64), "sparse_mode": 3}
SEVERAL |= {"input_layout": "TND_NTD", "atten_mask": STENCIL, "actual_seq_lengths": [2, 4]}
TOGETHER = both(9, 1, 512) | {"key_rope": ones(9, 1, 64), "block_table": None, "block_size": 0}
TOGETHER |= {"actual_seq_lengths_kv": [4, 9]}
WIDE = BSND | {"query": ones(2, 6, 4, 192), "key": ones(2, 20, 2, 192)}
WIDE |= {"value": ones(2, 20, 2, 128)}
TREE = {"sparse_mode": 9, "atten_mask": bytes_of(1, 3, 9)}
HALF = BASE["query"]
NAMED, NAMED_BSND = ({NAMES.get(x, x): value for x, value in each.items()} for each in (BASE, BSND))


def eight(*shape: int) -> dict[str, Any]:
    """Keys and values of int8."""
    return {name: RNG.integers(-128, 128, shape).astype(np.int8) for name in ("key", "value")}


NO_SCALES = {"key_antiquant_scale": None, "value_antiquant_scale": None}
EIGHT = ONE | {"query": ONE["query"][..., :32].copy()} | eight(2, 20, 2, 32)
EIGHT |= dict.fromkeys(NO_SCALES, np.full(1, 0.01, np.float16))
INCRE = HEADS | {"num_key_value_heads": 2, "antiquant_scale": ones(2)}
INCRE |= {name: EIGHT[name] for name in ("query", "key", "value")}
SCALES = [f"{x}_antiquant_{what}" for x in ("key", "value") for what in ("scale", "offset")]
OFFSETS = attention_call(RNG, (1, 1), (20, 5), (4, 2), 32, np.float16, 32)
OFFSETS |= eight(*OFFSETS["key"].shape) | {x: np.full((2, 32), 0.01, np.float32) for x in SCALES}
INVALID, TILING, LACKS = Code.INVALID_PARAMETER, Code.TILING_ERROR, Code.UNSUPPORTED


class Case(NamedTuple):
    """What breaks a rule and what is said of it, and the nearest call that fulfils it.

    Calls are changes to *base*.
    """

    base: dict[str, Any]
    wrong: dict[str, Any]
    message: str
    code: Code | None = None
    """None: the call is taken with a warning."""
    right: Mapping[str, Any] = MappingProxyType({})
    """Of a call that is not simulated: what its message says to do."""
    op: str = OP


CASES = [
    Case(BASE, {"input_layout": "SBH"},
         "input_layout must be BSH, BSND, BNSD, TND, NTD, BSH_NBSD, BSND_NBSD, BNSD_NBSD, "
         "TND_NTD, NTD_TND, BSH_BNSD, BSND_BNSD or BNSD_BSND, not 'SBH'; choose one of these",
         INVALID),
    Case(BSND, {"input_layout": "NSD"},
         "input_layout must be BSH, BSND, BNSD, TND, NTD, BSH_NBSD, BSND_NBSD, BNSD_NBSD, "
         "TND_NTD, NTD_TND, BSH_BNSD, BSND_BNSD or BNSD_BSND, not 'NSD': the older kernel "
         "that takes it is not simulated; pass BNSD with one request", LACKS,
         {"input_layout": "BNSD", "query": ones(1, 4, 6, 64)} | both(1, 2, 20, 64)),
    Case(BASE, {"num_heads": 0},
         "num_heads must be at least 1, not 0; pass the heads of query", INVALID),
    Case(BASE, {"num_key_value_heads": 3},
         "num_key_value_heads must divide num_heads, not 3 with 4; pass the heads of key", TILING),
    Case(BASE, {"query": ones(5, 128)},
         "query must have the dimensions of input_layout, not (5, 128) where TND is (tokens, "
         "heads, columns); reshape it", INVALID),
    Case(BASE, {"query": ones(5, 2, 32)},
         "query must have num_heads heads, not (5, 2, 32) with 4 in TND; pass the heads of "
         "query", TILING),
    Case(BASE, both(9, 64),
         "key and value must have as many dimensions as query, not (9, 64) and (9, 64) with "
         "(5, 4, 32); reshape them", INVALID),
    Case(BASE, both(9, 2, 64),
         "key must have the requests of query, num_key_value_heads heads and as many columns, "
         "not (9, 2, 64) with query (5, 4, 32) and 2 heads in TND; pass it so",
         TILING, {"query": ones(5, 4, 64)} | both(9, 2, 64)),
    Case(BSND, both(3, 20, 2, 64),
         "key must have the requests of query, num_key_value_heads heads and as many columns, "
         "not (3, 20, 2, 64) with query (2, 6, 4, 64) and 2 heads in BSND; pass it so", TILING),
    Case(PAGED, both(5, 32),
         "key and value must have 3, 4 or 5 dimensions with a block_table, not (5, 32) and "
         "(5, 32); reshape the cache", INVALID),
    Case(PAGED, both(5, 16, 2, 32),
         "key must have shape (blocks, block_size, heads x columns), (blocks, heads, "
         "block_size, columns) or (blocks, heads, columns / 16, block_size, 16) with a "
         "block_table, not (5, 16, 2, 32) for 2 heads of 32 columns; reshape the cache",
         TILING, both(5, 2, 16, 32) | {"query": ones(2, 4, 64)} | both(5, 2, 16, 64)),
    Case(PAGED, {"value": ones(5, 32, 64)},
         "value must have the shape of key, but for columns, not (5, 32, 64) with (5, 16, "
         "64); pass as many tokens", TILING),
    Case(BASE, {"value": ones(8, 2, 32)},
         "value must have the shape of key, but for columns, not (8, 2, 32) with (9, 2, 32); "
         "pass as many tokens", TILING),
    Case(ROPE, {"key_rope": None},
         "query_rope and key_rope must be given together, not one of them alone; pass both",
         TILING),
    Case(BASE, {"value": ones(9, 2, 48)},
         "a head of value must have at most as many columns as one of query, not 48 with 32; "
         "pad query and key", TILING, {"query": ones(5, 4, 48)} | both(9, 2, 48)),
    Case(ROPE, {"value": ones(2, 9, 2, 64)},
         "a head of value must have as many columns as one of query with query_rope, not 64 "
         "with 128; pass rotated parts apart, and nothing else", TILING),
    Case(BSND, {"value": ones(2, 20, 2, 32)},
         "heads of query and of value must have as many columns, or 192 and 128, not 64 and "
         "32; pad value", TILING),
    Case(BSND, {"query": ones(2, 6, 4, 528)} | both(2, 20, 2, 528),
         "a head must have up to 512 columns, not 528; split the heads",
         TILING, {"query": ones(2, 6, 4, 512)} | both(2, 20, 2, 512)),
    Case(BSND, {"query": ones(2, 6, 4, 40)} | both(2, 20, 2, 40),
         "a head must have a multiple of 16 columns, not 40; pad it",
         TILING, {"query": ones(2, 6, 4, 48)} | both(2, 20, 2, 48)),
    Case(ONE, {"query": ones(2, 1, 4, 40)} | both(2, 20, 2, 40),
         "a head must have a multiple of 16 columns, not 40: what a kernel makes of others is "
         "not known; pad it", LACKS, {"query": ones(2, 1, 4, 48)} | both(2, 20, 2, 48)),
    Case(BSND, {"input_layout": "BSND_NBSD"},
         "input_layout must be none of BSH_NBSD, BSND_NBSD, BNSD_NBSD and TND_NTD without "
         "query_rope, not BSND_NBSD; pass BSND, and turn the output round",
         TILING, {"input_layout": "BSND_BNSD"}),
    Case(BSND, {"input_layout": "BSND_BNSD", "query": ones(2, 6, 4, 32)} | both(2, 20, 2, 32),
         "a head must have 64 or 128 columns in NTD, NTD_TND, BSH_BNSD or BSND_BNSD, not 32; "
         "pad it, or pass BSND", TILING, {"query": ones(2, 6, 4, 32)} | both(2, 20, 2, 32)),
    Case(ROPE, {"query_rope": ones(2, 3, 4, 32)},
         "query_rope and key_rope must have the shapes of query and key with 64 columns a "
         "head, not (2, 3, 4, 32) and (2, 9, 2, 64) with (2, 3, 4, 128) and (2, 9, 2, 128); "
         "pass them so", TILING),
    Case(ROPE, {"query": ones(2, 3, 4, 256)} | both(2, 9, 2, 256),
         "a head must have 128 or 512 columns with query_rope, not 256; pad it", TILING),
    Case(MLA, {"num_heads": 3, "query": ones(2, 1, 3, 512), "query_rope": ones(2, 1, 3, 64)},
         "1, 2, 4 and so on to 128 query heads must share one head of keys of 512 columns, "
         "not 3 and 1; pad the heads of query", TILING),
    Case(MLA, {"input_layout": "BSND_BNSD"},
         "input_layout must be BSH, BSND, BNSD, TND, BSH_NBSD, BSND_NBSD, BNSD_NBSD or "
         "TND_NTD with heads of 512 columns and query_rope, not BSND_BNSD; choose one of these",
         TILING),
    Case(MLA, {"sparse_mode": 1, "atten_mask": bytes_of(1, 1, 9)},
         "sparse_mode must be 0, 3, 4 or 9 with heads of 512 columns and query_rope, not 1; "
         "choose one of these", TILING),
    Case(ROPE, {"input_layout": "BSND_NBSD"},
         "input_layout must be none of BSH_NBSD, BSND_NBSD, BNSD_NBSD and TND_NTD with heads "
         "of 128 columns, not BSND_NBSD; pass BSND", TILING),
    Case(BASE, {"actual_seq_lengths": None},
         "actual_seq_lengths must be given in TND and NTD, not None; pass a list", TILING),
    Case(BASE, {"actual_seq_lengths_kv": None},
         "actual_seq_lengths_kv must be given in TND and NTD, not None; pass a list", TILING),
    Case(BSH, {"actual_seq_lengths_kv": None},
         "actual_seq_lengths_kv must be given with a block_table, not None; pass the keys of "
         "each request", TILING),
    Case(BSND, {"actual_seq_lengths_kv": [-1, 9]},
         "lengths must be at least 0, not [6, 6] and [-1, 9]; pass the tokens of each request",
         TILING, {"actual_seq_lengths_kv": [0, 9]}),
    Case(BSND, {"actual_seq_lengths_kv": [1] * 65537},
         "actual_seq_lengths and actual_seq_lengths_kv must have up to 65536 entries, not "
         "more; split the call", TILING, {"actual_seq_lengths_kv": [1] * 65536}),
    Case(BASE, {"actual_seq_lengths": [6, 5]},
         "lengths must not fall in TND and NTD, where each is the sum of those so far, not [6, "
         "5] and [4, 9]: a card would read elsewhere; pass the sums",
         INVALID, {"actual_seq_lengths": [5, 5]}),
    Case(TALL, {"actual_seq_lengths": [3, 2]},
         "lengths must not fall in TND and NTD, where each is the sum of those so far, not [3, "
         "2] and [20, 5]; pass the sums", TILING, {"actual_seq_lengths": [2, 2]}),
    Case(BASE, {"actual_seq_lengths_kv": [9]},
         "actual_seq_lengths_kv must have an entry for each request, not [2, 5] and [9]: a "
         "card would read elsewhere; pass one for each request",
         INVALID, {"actual_seq_lengths_kv": [4, 8, 9]}),
    Case(EACH, {"actual_seq_lengths_kv": [4, 8, 9]},
         "actual_seq_lengths_kv must have as many entries as actual_seq_lengths, not [2, 5] "
         "and [4, 8, 9]; pass one for each request", TILING),
    Case(PAGED, {"num_key_value_heads": 0} | both(5, 16, 128),
         "num_key_value_heads must be given with pages (blocks, block_size, heads x columns) "
         "where FAI takes the call, not 0: a card divides by it; pass 4",
         INVALID, {"num_key_value_heads": 4} | both(5, 16, 128)),
    Case(PAGED, {"actual_seq_lengths_kv": [20]},
         "actual_seq_lengths_kv must have an entry for each request, not [1, 2] and [20]: a "
         "card would read elsewhere; pass one for each request",
         INVALID, {"actual_seq_lengths_kv": [20, 5, 7]}),
    Case(BASE, {"actual_seq_lengths": [2, 4]},
         "the last entry of actual_seq_lengths must be the tokens of query, not [2, 4] and "
         "[4, 9] for 5; pass the sums of the lengths", TILING),
    Case(BASE, {"input_layout": "NTD", "query": ones(4, 5, 64), "actual_seq_lengths": [2, 4]}
         | both(2, 9, 64),
         "the last entry of actual_seq_lengths must be the tokens of query, not [2, 4] and "
         "[4, 9] for 5: what is left of the output is not known; pass the sums of the lengths",
         LACKS, {"input_layout": "NTD", "query": ones(4, 5, 64)} | both(2, 9, 64)),
    Case(BASE, {"actual_seq_lengths_kv": [4, 5]},
         "the last entry of actual_seq_lengths_kv must be the tokens of key, not [2, 5] and "
         "[4, 5] for 9; pass the sums of the lengths", TILING),
    Case(BSND, {"query": ones(3, 6, 4, 64)} | both(3, 20, 2, 64),
         "lengths must have one entry, or one for each request, not [6, 6] and [20, 9] for 3; "
         "pass as many", TILING, {"actual_seq_lengths": [6], "actual_seq_lengths_kv": [20, 9, 7]}),
    Case(BSND, {"actual_seq_lengths": [6, 7]},
         "actual_seq_lengths must be at most the tokens of query, not [6, 7] and [20, 9] for "
         "6; pass lengths that fit", TILING),
    Case(BSND, {"actual_seq_lengths_kv": [21, 7]},
         "actual_seq_lengths_kv must be at most the tokens of key, not [6, 6] and [21, 7] for "
         "20; pass lengths that fit", TILING),
    Case(PAGED, {"block_size": 128},
         "block_size must be that of the cache, not 128 of 16; pass 16", TILING),
    Case(PAGED, both(5, 24, 64) | {"block_size": 24},
         "block_size must be a multiple of 16 up to 1024, not 24; make the cache so", TILING),
    Case(BSH, {"query": ones(2, 6, 128)} | both(4, 2, 2, 128, 16),
         "a head must have 64 or 128 columns in a cache of 5 dimensions where FIA takes the "
         "call, not 32; make it (blocks, block_size, heads x columns)",
         TILING, {"query": ones(2, 6, 128)} | both(4, 128, 64)),
    Case(PAGED, {"block_table": table(2)},
         "block_table must have two dimensions and entries, not (2,); pass a row for each "
         "request", TILING),
    Case(PAGED, {"block_table": table(2, 1)},
         "block_table must have a row for each request, as long as the blocks of the longest, "
         "not (2, 1) for 2 of up to 20 keys: a card would read elsewhere; pass them all", INVALID),
    Case(TALL, {"block_table": table(3, 2)},
         "block_table must have as many rows as there are requests in TND and NTD, not 3 for "
         "2; leave the others out", TILING),
    Case(PAGED, {"block_table": table(2, 2) + 5},
         "block_table must name blocks of the cache, not 5 of 5: a card would read elsewhere; "
         "correct it", INVALID),
    Case(BASE, {"sparse_mode": 5},
         "sparse_mode must be 0, 1, 2, 3 or 4, or 9 with query_rope, not 5; choose one of "
         "these", TILING),
    Case(BASE, {"sparse_mode": 9},
         "sparse_mode must be 0, 1, 2, 3 or 4 without query_rope, not 9; choose one of these",
         TILING),
    Case(BASE, {"inner_precise": 4},
         "inner_precise must lie in [0, 3], not 4; choose one of these", TILING),
    Case(BASE, {"atten_mask": None},
         "atten_mask must be given with a sparse_mode other than 0, not None; pass one of the "
         "tokens and keys, with 2 to 4 numpy.triu(..., 1) of 2048 x 2048",
         TILING),
    Case(BSND, {"sparse_mode": 1},
         "atten_mask must be given with a sparse_mode other than 0, not None; pass one of the "
         "tokens and keys, with 2 to 4 numpy.triu(..., 1) of 2048 x 2048",
         TILING, {"sparse_mode": 1, "atten_mask": bytes_of(6, 20)}),
    Case(BASE, {"sparse_mode": 0},
         "sparse_mode must be 3 or 4 with a mask in TND where query heads share keys, not 0; "
         "pass 3 with the stencil, or no mask", TILING, {"sparse_mode": 0, "atten_mask": None}),
    Case(EACH, {"atten_mask": bytes_of(3, 5)},
         "atten_mask must have 3 or 4 dimensions but in BSH, BSND, BNSD or BNSD_BSND without "
         "query_rope, not (3, 5); reshape it", TILING),
    Case(BSND, {"atten_mask": bytes_of(6, 19)},
         "atten_mask must have shape (tokens, keys), (1 or requests, tokens, keys) or (1 or "
         "requests, 1, tokens, keys), of one token a request (requests, keys), or more of the "
         "last two, with sparse_mode 0 or 1, not (6, 19) for 2 requests of 6 and 20; pass a "
         "number for each token and key", TILING, {"atten_mask": bytes_of(2, 6, 20)}),
    Case(BSND, {"atten_mask": bytes_of(2, 2, 6, 20)},
         "atten_mask must have shape (tokens, keys), (1 or requests, tokens, keys) or (1 or "
         "requests, 1, tokens, keys), of one token a request (requests, keys), or more of the "
         "last two, with sparse_mode 0 or 1, not (2, 2, 6, 20) for 2 requests of 6 and 20; "
         "pass a number for each token and key", TILING, {"atten_mask": bytes_of(2, 1, 6, 20)}),
    Case(ONE, {"atten_mask": bytes_of(1, 20)},
         "atten_mask must have shape (tokens, keys), (1 or requests, tokens, keys) or (1 or "
         "requests, 1, tokens, keys), of one token a request (requests, keys), or more of the "
         "last two, with sparse_mode 0 or 1, not (1, 20) for 2 requests of 1 and 20; pass a "
         "number for each token and key", TILING, {"atten_mask": bytes_of(2, 20)}),
    Case(ONE, {"atten_mask": STENCIL, "sparse_mode": 3},
         "atten_mask must have shape (tokens, keys), (1 or requests, tokens, keys) or (1 or "
         "requests, 1, tokens, keys), of one token a request (requests, keys), or more of the "
         "last two, with sparse_mode 0 or 1, not (2048, 2048) for 2 requests of 1 and 20; "
         "pass a number for each token and key", TILING, {"sparse_mode": 3}),
    Case(BSH, {"atten_mask": bytes_of(6, 255)},
         "atten_mask must have shape (tokens, keys), (1 or requests, tokens, keys) or (1 or "
         "requests, 1, tokens, keys), of one token a request (requests, keys), or more of the "
         "last two, with sparse_mode 0 or 1, not (6, 255) for 2 requests of 6 and 256; pass a "
         "number for each token and key", TILING, {"atten_mask": bytes_of(6, 384)}),
    Case(BASE, {"atten_mask": STENCIL[:5, :9].copy()},
         "atten_mask must be 2048 x 2048 with sparse_mode 2, 3 or 4, not (5, 9); pass "
         "numpy.triu(..., 1), whatever the lengths are",
         TILING, {"atten_mask": STENCIL[None].copy()}),
    Case(BASE, {"atten_mask": STENCIL.T.copy()},
         "atten_mask must have ones above its diagonal alone with sparse_mode 2, 3 or 4, not "
         "others: a card would hide other keys; pass numpy.triu(..., 1)", INVALID),
    Case(BSND, {"atten_mask": bytes_of(6, 20), "pre_tokens": -1, "next_tokens": -1},
         "pre_tokens and next_tokens must not both be negative with a mask, nor leave no "
         "band, not -1 and -1; pass 0 or more for both",
         TILING, {"atten_mask": bytes_of(6, 20), "pre_tokens": -1, "next_tokens": 1}),
    Case(BSND, {"atten_mask": STENCIL, "sparse_mode": 4, "pre_tokens": 0, "next_tokens": -4},
         "pre_tokens and next_tokens must not both be negative with a mask, nor leave no "
         "band, not 0 and -4; pass 0 or more for both",
         TILING, {"atten_mask": STENCIL, "sparse_mode": 4, "pre_tokens": 4}),
    Case(PAGED, {"template": "FIA"},
         "a head must have 64, 128 or 192 columns in TND where FIA takes the call, not 32; "
         "pad it", TILING, TALL),
    Case(ROPE, {"actual_seq_lengths_kv": [2, 9]} | TREE,
         "a request must have at least as many keys as tokens with sparse_mode 9, not [3, 3] "
         "and [2, 9]; pass the keys that came before, too",
         TILING, {"actual_seq_lengths_kv": [3, 9]} | TREE),
    Case(BSH, {"kv_padding_size": table(1)},
         "paddings must be None with a block_table or a prefix, not given; leave them out", TILING),
    Case(BSND, {"query_padding_size": table(1), "key_shared_prefix": ones(1, 5, 2, 64)},
         "paddings must be None with a block_table or a prefix, not given; leave them out", TILING),
    Case(BSH, {"key_shared_prefix": ones(1, 5, 2, 64)},
         "prefixes must be None with a block_table, not given; leave them out", TILING),
    Case(BASE, {"pse_shift": ones(5, 4, 32)},
         "pse_shift, paddings, prefixes and scales of the output must be None but in BSH, "
         "BSND, BNSD or BNSD_BSND without query_rope, not given; leave them out", TILING),
    Case(BSND, {"pse_shift": ones(5, 4, 32)},
         "parameters that are not simulated must be None, and modes 0, not pse_shift=an array "
         "of float16 (5, 4, 32); leave it out", LACKS),
    Case(MLA, {"sparse_mode": 9, "atten_mask": STENCIL},
         "sparse_mode must be 0, 3 or 4 with heads of 512 columns and query_rope, not 9: what a "
         "tree of tokens hides is not simulated; pass 3",
         LACKS, {"sparse_mode": 3, "atten_mask": STENCIL}),
    Case(MLA, {"value": 2 * MLA["value"]},
         "value must be key with heads of 512 columns and query_rope, not another one: that its "
         "kernel reads values from key is assumed; pass key for both", LACKS),
    Case(ROPE, {"sparse_mode": 9, "atten_mask": STENCIL},
         "sparse_mode must be 0, 1, 2, 3 or 4, not 9: what a tree of tokens hides is not "
         "simulated; pass 3", LACKS, {"sparse_mode": 3, "atten_mask": STENCIL}),
    Case(BASE, {"num_key_value_heads": 4, "inner_precise": 2} | both(9, 4, 32),
         "inner_precise must be 0 or 1 in TND where no query heads share keys, not 2: what it "
         "corrects there is not known; pass 0",
         LACKS, {"num_key_value_heads": 4} | both(9, 4, 32)),
    Case(ONE, {"query": ones(2, 1, 2, 256), "num_heads": 2} | both(2, 20, 2, 256),
         "heads must have other than 256 columns where each request has one token and "
         "num_heads heads of keys without a block_table, not 256: the older kernel that takes "
         "these is not simulated; put the keys in pages", LACKS,
         {"query": ones(2, 1, 2, 256), "num_heads": 2, "block_table": table(2, 1)}
         | {"block_size": 128} | both(2, 128, 512)),
    Case(BSND, {"query": ones(2, 6, 257, 16), "num_heads": 257, "num_key_value_heads": 257}
         | both(2, 20, 257, 16),
         "num_heads must be at most 256, not 257; split the call"),
    Case(BSND, {"query": ones(2, 6, 65, 64), "num_heads": 65, "num_key_value_heads": 1}
         | both(2, 20, 1, 64),
         "at most 64 query heads must share a head of keys, not 65; repeat "
         "the keys"),
    Case(single(4096), single(4097),
         "actual_seq_lengths must have at most 4096 entries in TND and NTD, "
         "not 4097; split the call"),
    Case(large(1, 1, 65536), large(1, 1, 65537),
         "query must have at most 65536 requests, not 65537; split the call"),
    Case(large(2, 20_971_520), large(2, 20_971_521),
         "a request must have at most 20971520 keys, not 20971521; split it"),
    Case(large(1, 262_144), large(1, 262_145),
         "a request of one token must have at most 262144 keys, not 262145; "
         "split it"),
    Case(ONE, {"block_table": table(2, 1), "block_size": 1024, "actual_seq_lengths_kv": [9, 9]}
         | both(2, 1024, 128),
         "block_size must be at most 512 with one token a request, not 1024; "
         "make the cache so"),
    Case(BSH, both(14, 16, 128) | {"block_size": 16, "block_table": table(2, 13)},
         "block_size must be 128, 256, 384 or 512 with several tokens a "
         "request, not 16; make the cache so"),
    Case(BSH, both(4, 2, 128, 64),
         "a cache (blocks, heads, block_size, columns) must go with BNSD or "
         "TND, not BSH; make it (blocks, block_size, heads x columns)"),
    Case(ONE, {"inner_precise": 2},
         "inner_precise must be 0 or 1 with one token a request, not 2; pass 0"),
    Case(ONE, {"input_layout": "BNSD_BSND", "query": ones(2, 4, 1, 64)} | both(2, 2, 20, 64),
         "input_layout must be another one with one token a request, not "
         "BNSD_BSND; pass BNSD"),
    Case(BSH, {"atten_mask": bytes_of(6, 256)},
         "atten_mask must have a column for each token of all blocks of "
         "block_table, not (6, 256); pad it with ones"),
    Case(BSND, {"atten_mask": bytes_of(2, 7, 24)},
         "atten_mask must have a row for each token and a column for each key, and no more, "
         "not (2, 7, 24) for 6 and 20; cut it", right={"atten_mask": bytes_of(2, 6, 20)}),
    Case(ONE, {"atten_mask": bytes_of(2, 21)},
         "atten_mask must have a row for each token and a column for each key, and no more, "
         "not (2, 21) for 1 and 20; cut it", right={"atten_mask": bytes_of(2, 20)}),
    Case(BSH, both(4, 2, 4, 128, 16),
         "a cache must have 3 or 4 dimensions without query_rope, not (4, 2, 4, 128, 16); make "
         "it (blocks, block_size, heads x columns)"),
    Case(SEVERAL, TOGETHER,
         "key and value must lie in pages with heads of 512 columns and query_rope in TND, not "
         "(9, 1, 512); pass a block_table"),
    Case(SEVERAL, {"softmax_lse_flag": True},
         "softmax_lse_flag must be False with heads of 512 columns and query_rope in TND, not "
         "True; leave it out"),
    # ---- the second version ----
    Case(NAMED, {"key_quant_mode": 1},
         "dequant_scale_query must be None, and the modes of its like 0, with key of fp16 or "
         "bf16, not given; leave them out", TILING, op=V2),
    Case(NAMED_BSND, {"learnable_sink": ones(4)},
         "learnable_sink must be bfloat16 of shape (num_query_heads,) where FIA takes the "
         "call, not float16 (4,); pass one for each head, and query of bfloat16",
         TILING, op=V2),
    Case(NAMED, {"learnable_sink": ones(4), "num_key_value_heads": 4, "inner_precise": 1}
         | both(9, 4, 32),
         "inner_precise must be 0 with learnable_sink where FAI takes the call, not 1; pass 0",
         TILING, op=V2),
    Case(NAMED, {"learnable_sink": ones(4)},
         "learnable_sink must be None, not given: how its kernel adds it is not simulated; "
         "leave it out, and multiply output by 1 / (1 + exp(learnable_sink - softmax_lse))",
         LACKS, {"return_softmax_lse": True}, op=V2),
    # ---- keys of int8 ----
    Case(EIGHT, {"query": ones(2, 1, 4, 16)} | eight(2, 20, 2, 16),
         "a head must have a multiple of 32 columns with key of int8, not 16; pad it", TILING),
    Case(EIGHT, {"block_size": 16, "block_table": table(2, 2)} | eight(4, 16, 64),
         "block_size must be a multiple of 32 with key of int8, not 16; make the cache so",
         TILING, {"block_size": 32, "block_table": table(2, 1)} | eight(4, 32, 64)),
    Case(EIGHT, {"query": ones(2, 1, 4, 64), "block_size": 32, "block_table": table(2, 1)}
         | eight(4, 2, 2, 32, 32),
         "a cache of int8 must have 3 or 4 dimensions, not (4, 2, 2, 32, 32): fractals are not "
         "simulated; make it (blocks, block_size, heads x columns)",
         LACKS, {"block_size": 32, "block_table": table(2, 1)} | eight(4, 32, 64)),
    Case(EIGHT, {"key_antiquant_scale": ones(3)},
         "scales must be one, or have the columns of heads, or with mode 1 the tokens of "
         "requests, not key_antiquant_scale (3,) in place of (1,), (1, 2, 32) or (2, 32); "
         "reshape it", TILING, {"key_antiquant_scale": ones(2, 32)}),
    Case(EIGHT, {"input_layout": "TND", "query": ones(2, 4, 32)} | eight(29, 2, 32)
         | {"actual_seq_lengths": [1, 2], "actual_seq_lengths_kv": [20, 29]},
         "input_layout must be BSH, BSND or BNSD with key of int8, not TND: the kernels that "
         "take others are not simulated; transpose query", LACKS),
    Case(EIGHT, {"query": ones(2, 3, 4, 32), "actual_seq_lengths": [3, 3]},
         "query must have one token a request with key of int8, not 3: the kernel that takes "
         "more is not simulated; pass key and value of float16, and no scales, to "
         f"{OP}", LACKS,
         {"query": ones(2, 3, 4, 32), "actual_seq_lengths": [3, 3]}
         | both(2, 20, 2, 32) | NO_SCALES),
    Case(EIGHT, {"atten_mask": bytes_of(2, 20)},
         "atten_mask must be None with key of int8, not given: how it hides scores there is "
         "not known; pass actual_seq_lengths_kv", LACKS, {"actual_seq_lengths_kv": [5, 4]}),
    Case(EIGHT, {"softmax_lse_flag": True},
         "softmax_lse_flag must be False with key of int8, not True: what its kernel returns "
         "is not known; leave it out", LACKS),
    Case(EIGHT, dict.fromkeys(("key_antiquant_offset", "value_antiquant_offset"), ones(1)),
         "offsets must be float32, query in TND, and key in pages (blocks, block_size, heads x "
         "columns), not float16, BSND and (2, 20, 2, 32): the kernels that take others are not "
         "simulated; pass them so, or leave offsets out", LACKS),
    Case(OFFSETS, dict.fromkeys(SCALES, ones(1, dtype=np.float32)),
         "scales and offsets must be those of columns, not one: what its kernel makes of that "
         "is not known; repeat it for each column", LACKS),
    Case(OFFSETS, {"sparse_mode": 0, "atten_mask": bytes_of(1, 1, 32)},
         "atten_mask must be a stencil with offsets, not one with sparse_mode 0: how it hides "
         "scores there is not known; pass sparse_mode 3, or no mask",
         LACKS, {"sparse_mode": 0, "atten_mask": None}),
    Case(INCRE, {"inner_precise": 2},
         "inner_precise must be 0 or 1, not 2; pass 0", TILING, op="npu_incre_flash_attention"),
]  # fmt: skip


def is_run(call: dict[str, Any]) -> bool:
    """Whether *call* has values, and is simulated."""
    has_values = not any(isinstance(value, TensorSpec) for value in call.values())
    return has_values and call.get("query_rope") is None and np.ndim(call["key"]) < 5


def taken(call: dict[str, Any], op: str = OP) -> None:
    """*call* gives what the reference gives, or fulfils the contract at least.

    Whatever a test does not expect to be said is an error.
    """
    if not is_run(call):
        ops.load(op).check(devices.load(A2), **call)
        return
    found = run(op, device=A2, timing=False, **call).output
    assert_all_same(found, ops.load(op).reference(**call))


def refused(call: dict[str, Any], op: str = OP) -> OpError:
    with pytest.raises(OpError) as caught:
        ops.load(op).check(devices.load(A2), **call)
    return caught.value


@pytest.fixture
def lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not simulated is taken, too."""
    monkeypatch.setattr(check, "RULES", tuple(rule for rule in RULES if rule not in NOT_SIMULATED))


REFUSED = [case for case in CASES if case.code is not None]
WARNED = [case for case in CASES if case.code is None]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.message[:60])
def test_what_breaks_a_rule_is_refused(case: Case) -> None:
    error = refused(case.base | case.wrong, case.op)
    assert str(error) == f"{case.op}: {case.message} [{case.code}]"
    assert error.code is case.code


@pytest.mark.usefixtures("lacks_nothing")
@pytest.mark.parametrize("case", WARNED, ids=lambda case: case.message[:60])
def test_what_the_document_alone_excludes_is_taken_with_a_warning(case: Case) -> None:
    call = case.base | case.wrong
    message = re.escape(f"{case.op}: by the document {case.message}")
    with pytest.warns(DocumentWarning, match=f"^{message}$") as warned:
        taken(call, case.op)
    assert len(warned) == 1


RIGHT = {
    (case.op, id(case.right or case.base)): (case.op, {**case.base, **case.right}) for case in CASES
}


@pytest.mark.parametrize(("op", "call"), RIGHT.values())
def test_the_nearest_call_that_fulfils_a_rule_is_taken(
    op: str, call: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if not is_run(call):
        request.getfixturevalue("lacks_nothing")
    taken(call, op)


def test_nothing_is_warned_of_in_a_call_that_is_refused() -> None:
    refused(WARNED[0].base | WARNED[0].wrong | {"inner_precise": 4})


def broken_by(case: Case, monkeypatch: pytest.MonkeyPatch) -> Rule:
    """The first rule that *case* breaks, for which there is a case."""
    found: list[Rule] = []

    class Noted(NamedTuple):
        rule: Rule

        def warning(self, call: Call) -> str | None:
            if self.rule.scope.has(call) and not self.rule.holds(call):
                found.append(self.rule)
            return self.rule.warning(call)

    monkeypatch.setattr(check, "RULES", tuple(map(Noted, RULES)))
    with warnings.catch_warnings(), suppress(OpError):
        warnings.simplefilter("ignore", DocumentWarning)
        ops.load(case.op).check(devices.load(A2), **case.base | case.wrong)
    return next(rule for rule in found if rule.checked.code is case.code)


def test_every_rule_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {id(broken_by(case, monkeypatch)) for case in CASES}
    assert [rule.must for rule in RULES if id(rule) not in broken] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (BASE | {"scale": np.nan}, "scale must be a finite number of fp32, not nan; pass 1 / "
         "sqrt(columns of a head), say"),
        (BASE | {"actual_seq_lengths": [2.5, 5]}, "actual_seq_lengths[0] must be an integer, not "
         "2.5; pass one without quotes or a point"),
        (BASE | {"actual_seq_lengths": []}, "actual_seq_lengths must have an entry for each "
         "request, not be empty; pass the lengths"),
        (BASE | {"antiquant_mode": 1}, "antiquant_mode must be 0 with no antiquant_scale on Atlas "
         "A2, not 1; pass 0"),
        (BASE | {"template": "PFA"}, "template must be FAI, FAI-FD, FAI-DEC, FIA, FIA-MLA, IFA or "
         "IFA-ATB, not 'PFA'; leave it out to get the vendor's choice"),
        (BASE | {"template": "IFA"}, "template 'IFA' can run only if key and value are int8 "
         "without offsets; leave it out to get the vendor's choice"),
        (BASE | {"template": "FAI-FD"}, "template 'FAI-FD' can run only if the cache is in pages; "
         "leave it out to get the vendor's choice"),
    ],
)  # fmt: skip
def test_what_is_no_value_at_all_is_refused(wrong: dict[str, Any], message: str) -> None:
    assert str(refused(wrong)) == f"{OP}: {message} [161002]"


def test_requests_in_a_list_are_refused_and_taken_stacked() -> None:
    """As the kernels take them where requests have tokens of other numbers."""
    apart = {name: [BSND[name][:1], BSND[name][1:, :9]] for name in ("key", "value")}
    error = refused(BSND | apart)
    assert str(error) == (
        f"{OP}: key must be one tensor, not a list: requests apart are not simulated; pad them to "
        f"one length, stack them, and pass actual_seq_lengths_kv [361001]"
    )
    taken(BSND)


def test_what_is_not_simulated_may_be_left_out() -> None:
    operator = ops.load(OP)
    known = {*ATTRIBUTES, *(name for row in operator.support for name in row.entries)}
    others = [each for each in operator.parameters if each.name not in known]
    assert len(others) == 12
    assert {(each.default, each.by_name) for each in others} == {(None, True)}


# ---- rotated parts and latent keys, as vllm-ascend passes them ----

PREFILL = BASE | both(9, 4, 128) | {"query": ones(5, 4, 128), "num_key_value_heads": 4}
PREFILL |= {"query_rope": ones(5, 4, 64), "key_rope": ones(9, 4, 64), "softmax_lse_flag": True}


@pytest.mark.parametrize(
    ("call", "sizes", "is_nz"),
    [
        (DECODE, (512, 512, 64), False),
        (FRACTALS, (512, 512, 64), True),
        (SEVERAL, (512, 512, 64), False),
        (PREFILL, (128, 128, 64), False),
    ],
)
def test_rotated_parts_are_taken_as_vllm_ascend_passes_them(
    call: dict[str, Any], sizes: tuple[int, int, int], is_nz: bool
) -> None:
    taken(call)
    operator, spec = ops.load(OP), devices.load(A2)
    every = {each.name: call.get(each.name, each.default) for each in operator.parameters}
    a = check.call_of(Contract(OP, spec, arguments=every, support=operator.support)).attention
    assert (a.head_size, a.value_size, a.rope_size) == sizes
    assert (a.paging is not None and a.paging.is_nz) == is_nz


def test_the_output_may_have_heads_before_requests() -> None:
    operator, spec = ops.load(OP), devices.load(A2)
    every = {each.name: DECODE.get(each.name, each.default) for each in operator.parameters}
    a = check.call_of(Contract(OP, spec, arguments=every, support=operator.support)).attention
    place = np.arange(8 * 2 * 1 * 512).reshape(8, 2, 1, 512)[3, 1, 0, 0]
    assert sides_of(a)["output"].at(request=1, head=3, token=0) == place


def test_rotated_parts_may_be_put_behind_the_columns() -> None:
    parts = {
        name: np.concatenate([PREFILL[name], PREFILL[f"{name}_rope"]], axis=2)
        for name in ("query", "key")
    }
    behind = PREFILL | parts | {"query_rope": None, "key_rope": None}
    taken(behind)
    found = [run(OP, device=A2, timing=False, **call).output for call in (PREFILL, behind)]
    assert_all_same(*found)


@pytest.mark.parametrize("call", [BASE, DECODE])
def test_queries_of_int8_are_known_and_not_simulated(call: dict[str, Any]) -> None:
    narrow = {name: call[name].astype(np.int8) for name in ("query", "key", "value")}
    error = refused(call | narrow)
    assert error.code is LACKS
    assert str(error) == (
        f"{OP}: query must be float16 or bfloat16, not int8: the kernels that take it, and latent "
        f"keys of int8 with it, are not simulated; dequantise query and key, and leave their "
        f"scales out [361001]"
    )


# ---- choice ----


def chosen(call: dict[str, Any], device: str = A2) -> tuple[str, str]:
    found = ops.load(OP).check(devices.load(device), **specs_of(call)).choice
    return found.template, found.reason


@pytest.mark.parametrize(
    ("requests", "keys", "heads", "template"),
    [
        (1, 1023, (8, 1), "FAI"),
        (1, 1024, (8, 1), "FAI-FD"),
        (9, 1024, (8, 1), "FAI-FD"),
        (10, 1024, (8, 1), "FAI"),
        (10, 12288, (8, 1), "FAI-FD"),
        (20, 12288, (8, 1), "FAI"),
        (2, 1024, (32, 8), "FAI"),
        (1, 1024, (32, 32), "FAI"),
    ],
)
def test_keys_are_split_for_few_tasks(
    requests: int, keys: int, heads: tuple[int, int], template: str
) -> None:
    lengths = (keys,) * requests
    call = attention_call(RNG, (1,) * requests, lengths, heads, 16, np.float16, 128)
    assert chosen(call)[0] == template


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input_layout": "NTD"}, "the layout is TND"),
        ({"sparse_mode": 2}, "sparse_mode is 0, 3 or 4"),
        ({"inner_precise": 1}, "inner_precise is 0 where query heads share keys"),
    ],
)
def test_what_fai_does_not_take_goes_to_fia(changed: dict[str, Any], reason: str) -> None:
    a = ops.load(OP).check(devices.load(A2), **specs_of(BASE)).attention
    fields = {"layout" if name == "input_layout" else name: x for name, x in changed.items()}
    found = choose(replace(a, **fields), 24)
    assert (found.template, found.reason) == ("FIA", f"FAI takes calls only if {reason}")


def test_the_plan_names_the_kernel_and_why() -> None:
    found = run(OP, **specs_of(BASE), device=A2)
    assert found.plan is not None
    assert (found.template, found.plan.reason) == ("FAI", "layout TND with sparse_mode 3")


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (BASE | {"query": HALF[:0], "actual_seq_lengths": [0, 0]}, ((0, 4, 32), (0, 4, 1))),
        (BASE | {"query": HALF[:0], "actual_seq_lengths": None}, ((0, 4, 32), (0, 4, 1))),
        (BSND | {"query": ones(0, 6, 4, 64)}, ((0, 6, 4, 64), (0, 4, 6, 1))),
        (BSND | {"query": ones(2, 0, 4, 64)}, ((2, 0, 4, 64), (2, 4, 0, 1))),
    ],
)
def test_empty_queries_run_nothing(call: dict[str, Any], shapes: Any) -> None:
    call = call | {"softmax_lse_flag": True}
    found = run(OP, **call, device=A2)
    assert found.plan is None
    assert tuple(np.asarray(x).shape for x in found.output) == shapes
    assert_all_same(found.output, ops.load(OP).reference(**call))


def test_a_spec_of_the_mask_is_believed() -> None:
    call = specs_of(BASE) | {"atten_mask": TensorSpec((2048, 2048), "uint8")}
    assert chosen(call)[0] == "FAI"


# ---- the second version ----


def test_the_second_version_is_the_first_by_other_names() -> None:
    call = BASE | {"softmax_lse_flag": True}
    other = {NAMES.get(name, name): value for name, value in call.items()}
    found, known = run(V2, **other, device=A2), run(OP, **call, device=A2)
    assert_all_same(found.output, known.output)
    assert_all_same(found.output, ops.load(V2).reference(**other))
    assert (found.time_us, found.template) == (known.time_us, known.template)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_query_heads": 0}, "num_query_heads must be at least 1, not 0; pass the heads of "
         "query"),
        ({"actual_seq_kvlen": [4, 8]}, "the last entry of actual_seq_kvlen must be the tokens of "
         "key, not [2, 5] and [4, 8] for 9; pass the sums of the lengths"),
    ],
)  # fmt: skip
def test_the_second_version_refuses_by_its_own_names(wrong: dict[str, Any], message: str) -> None:
    call = {NAMES.get(name, name): value for name, value in BASE.items()} | wrong
    with pytest.raises(OpError, match=rf"^{V2}: {re.escape(message)} \[\d+\]$"):
        run(V2, **call, device=A2)


def test_what_learnable_sink_adds_may_be_found_from_softmax_lse() -> None:
    """It is one more score of each token, whose value is 0."""
    sink = np.float32([0.5, -1, 2, 0])
    output, lse = run(V2, **NAMED | {"return_softmax_lse": True}, device=A2, timing=False).output
    found = output / (1 + np.exp(sink[:, None] - lse))
    key, value = (np.repeat(BASE[name][:4], 2, axis=1) for name in ("key", "value"))
    scores = np.exp(np.einsum("hd,khd->hk", BASE["query"][0], key[:3]) * BASE["scale"])
    weights = scores / (scores.sum(axis=1) + np.exp(sink))[:, None]
    np.testing.assert_allclose(found[0], np.einsum("hk,khd->hd", weights, value[:3]), atol=3e-3)


def test_the_second_version_warns_by_its_own_names() -> None:
    call = {NAMES.get(name, name): value for name, value in BSND.items()}
    call |= {"query": ones(2, 6, 65, 64), "num_query_heads": 257, "num_key_value_heads": 257}
    call |= {"query": ones(2, 6, 257, 64)} | both(2, 20, 257, 64)
    message = f"{V2}: by the document num_query_heads must be at most 256, not 257; split the call"
    with pytest.warns(DocumentWarning, match=f"^{message}$"):
        ops.load(V2).check(devices.load(A2), **call)


def test_the_rules_are_a_table_of_the_document() -> None:
    header, *lines = ops.load(V2).rules
    assert header == ("calls", "what must hold", "who checks it", "code", "source")
    assert len(lines) == len(RULES)
    heads = ("all", "num_query_heads must be at most 256", "document", "warns", "document")
    assert heads in lines


def test_a_table_says_nothing_of_parameters_that_an_operator_does_not_have() -> None:
    _, *lines = ops.load("npu_incre_flash_attention").rules
    words = {word for line in lines for word in re.findall(r"\w+", line[1])}
    assert "block_size" in words
    assert not {"sparse_mode", "softmax_lse_flag", "actual_seq_lengths_kv"} & words


# ---- shapes alone ----


@pytest.mark.usefixtures("lacks_nothing")
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (WIDE, (2, 6, 4, 128)),
        (WIDE | {"input_layout": "BSND_BNSD"}, (2, 4, 6, 128)),
        (WIDE | {"input_layout": "BSH", "query": ones(2, 6, 768), "key": ones(2, 20, 384)}
         | {"value": ones(2, 20, 256)}, (2, 6, 512)),
        (BSH | {"query": ones(2, 6, 768), "key": ones(4, 128, 384), "value": ones(4, 128, 256)},
         (2, 6, 512)),
        (SEVERAL, (8, 4, 512)),
        (FRACTALS, (8, 2, 1, 512)),
    ],
)  # fmt: skip
def test_torch_has_the_shapes_of_values_before_it_runs(
    call: dict[str, Any], shape: tuple[int, ...]
) -> None:
    operator = ops.load(OP)
    every = {each.name: call.get(each.name, each.default) for each in operator.parameters}
    traced = {
        name: TorchTensor(x.shape, (), x.dtype.name, "ND") if isinstance(x, np.ndarray) else x
        for name, x in every.items()
    }
    found = operator.torch[0].outputs(traced, None)
    outputs = operator.check(devices.load(A2), **call).outputs.values()
    assert found == tuple((x.shape, x.dtype) for x in outputs)
    assert found[0][0] == shape
