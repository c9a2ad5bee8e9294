"""The rules of attention: conditions of a call, who checks them, and the message on failure.

A rule follows those it depends on; calls that a card accepts but npusim does not simulate come
last.

Sources: op-plugin@517f2e7, FusedInferAttentionScoreKernelNpuOpApi.cpp (opapi) and
torch_npu-npu_fused_infer_attention_score.md (document); ops-transformer@3a280bc attention/
fused_infer_attention_score/op_host, fused_infer_attention_score_tiling.cpp (T) and, in arch22,
fused_infer_attention_score_tiling_info_parser.cpp (par) and
fused_infer_attention_score_tiling_check_*.cpp (single, exist, feat, cons), with lines; attention/
incre_flash_attention/op_host (I). That all refusals of a tiling have one code is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from npusim.ops._attention.problem import LAYOUTS, MASK_EXTENT
from npusim.ops._attention.rule import (
    ALL,
    DIGITS,
    DOCUMENT,
    FAI,
    FAI_PAGES,
    FIA,
    HALVES,
    HEADS_ALIKE,
    INCRE,
    INT8,
    MASK,
    MLA,
    MLA_PACKED,
    NO_PAGES,
    NO_ROPE,
    NOBODY,
    NPUSIM,
    OFFSET,
    OWN_MASK,
    PACKED,
    PACKED_ELSE,
    PACKED_KEYS,
    PADDED,
    PAGES,
    ROPE,
    SINGLE,
    SINK,
    SINK_OF_FAI,
    SINK_OF_FIA,
    STENCIL,
    TILING,
    WRAPPER,
    Rule,
)
from npusim.ops._attention.shapes import ROPE_COLUMNS, columns_of
from npusim.ops._contract import listed

MOST_HEADS, MOST_OF_GROUP, MOST_REQUESTS, MOST_OF_TND, MOST_ENTRIES = 256, 64, 65536, 4096, 65536
MOST_KEYS, MOST_KEYS_OF_TOKEN = 20_971_520, 262_144
PAGE_UNIT, MOST_PAGE = 16, 1024
HEAD_UNIT, DIGIT_UNIT, MOST_COLUMNS = 16, 32, 512
NZ_COLUMNS = OUTPUT_COLUMNS = (64, 128)
"""Columns of heads in fractals, and if the output has a different order."""
MLA_OUTPUTS = ("BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD")
MLA_LAYOUTS = ("BSH", "BSND", "BNSD", "TND", *MLA_OUTPUTS)
TURNED = ("NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD")
IN_ORDER = ("BSH", "BSND", "BNSD", "BNSD_BSND")
PADDINGS = ("query_padding_size", "kv_padding_size")
PREFIXES = ("key_shared_prefix", "value_shared_prefix", "actual_shared_prefix_len")
OF_OUTPUT = ("quant_scale2", "quant_offset2", "quant_scale_out", "quant_offset_out")
IN_ORDER_ALONE = ("pse_shift", *PADDINGS, *PREFIXES, *OF_OUTPUT)
QUANTISED = ("dequant_scale_query", "query_quant_mode", "key_quant_mode", "value_quant_mode")
OLDER_COLUMNS = 256
"""Width of heads for which an older kernel runs, with one token per request and separate keys."""
SHAPES_OF_CACHE = (
    "(blocks, block_size, heads x columns), (blocks, heads, block_size, columns) or "
    "(blocks, heads, columns / 16, block_size, 16)"
)
SHAPES_OF_MASK = (
    "(tokens, keys), (1 or requests, tokens, keys) or (1 or requests, 1, tokens, keys), of one "
    "token a request (requests, keys), or more of the last two"
)

QUERY_RULES = (
    Rule(WRAPPER, "opapi", ALL, lambda c: c.layout in (*LAYOUTS, "NSD"),
         f"input_layout must be {listed(LAYOUTS)}", "{c.shown_layout}", "choose one of these"),
    Rule(NPUSIM, "T", ALL, lambda c: c.layout != "NSD",
         f"input_layout must be {listed(LAYOUTS)}",
         "'NSD': the older kernel that takes it is not simulated", "pass BNSD with one request"),
    Rule(WRAPPER, "opapi", ALL, lambda c: c.heads > 0,
         "num_heads must be at least 1", "{c.heads}", "pass the heads of query"),
    Rule(TILING, "par:997", ALL, lambda c: c.kv_heads > 0 and c.heads % c.kv_heads == 0,
         "num_key_value_heads must divide num_heads", "{c.kv_heads} with {c.heads}",
         "pass the heads of key"),
    Rule(WRAPPER, "opapi", ALL, lambda c: len(c.query.shape) == c.order.count(",") + 1,
         "query must have the dimensions of input_layout", "{c.query.shape} where {c.inner} is "
         "{c.order}", "reshape it"),
    Rule(TILING, "par", ALL, lambda c: c.has_heads(c.query.shape, c.heads),
         "query must have num_heads heads", "{c.query.shape} with {c.heads} in {c.inner}",
         "pass the heads of query"),
)  # fmt: skip
"""Rules that also apply to an empty query, which returns an empty output."""
HEAD_RULES = (
    Rule(DOCUMENT, "document", ALL, lambda c: c.heads <= MOST_HEADS,
         f"num_heads must be at most {MOST_HEADS}", "{c.heads}", "split the call"),
    Rule(DOCUMENT, "document", ALL, lambda c: c.is_mla or c.group <= MOST_OF_GROUP,
         f"at most {MOST_OF_GROUP} query heads must share a head of keys", "{c.group}",
         "repeat the keys"),
    Rule(WRAPPER, "opapi", NO_PAGES, lambda c: c.rank == len(c.value.shape) == len(c.query.shape),
         "key and value must have as many dimensions as query", "{c.key.shape} and "
         "{c.value.shape} with {c.query.shape}", "reshape them"),
    Rule(TILING, "cons", NO_PAGES, lambda c: (
            c.fits_query(c.key.shape) and columns_of(c.key.shape, c.kv_heads, c.layout) == c.size),
         "key must have the requests of query, num_key_value_heads heads and as many columns",
         "{c.key.shape} with query {c.query.shape} and {c.kv_heads} heads in {c.inner}",
         "pass it so"),
    Rule(WRAPPER, "opapi", PAGES, lambda c: c.rank in (3, 4, 5) and c.rank == len(c.value.shape),
         "key and value must have 3, 4 or 5 dimensions with a block_table",
         "{c.key.shape} and {c.value.shape}", "reshape the cache"),
    Rule(TILING, "cons:251", PAGES, lambda c: c.key.shape == c.cache_shape(c.size),
         f"key must have shape {SHAPES_OF_CACHE} with a block_table",
         "{c.key.shape} for {c.kv_heads} heads of {c.size} columns", "reshape the cache"),
    Rule(TILING, "cons", ALL, lambda c: c.value_fits,
         "value must have the shape of key, but for columns", "{c.value.shape} with "
         "{c.key.shape}", "pass as many tokens"),
    Rule(TILING, "exist:32", ROPE, lambda c: None not in c.ropes,
         "query_rope and key_rope must be given together", "one of them alone", "pass both"),
    Rule(TILING, "par:889", ALL, lambda c: c.value_size <= c.size,
         "a head of value must have at most as many columns as one of query",
         "{c.value_size} with {c.size}", "pad query and key"),
    Rule(TILING, "par:906", ROPE, lambda c: c.value_size == c.size,
         "a head of value must have as many columns as one of query with query_rope",
         "{c.value_size} with {c.size}", "pass rotated parts apart, and nothing else"),
    Rule(TILING, "feat:641", NO_ROPE, lambda c: (
            c.value_size == c.size or (c.size, c.value_size) == (192, 128)),
         "heads of query and of value must have as many columns, or 192 and 128",
         "{c.size} and {c.value_size}", "pad value"),
    Rule(TILING, "feat:587", ALL, lambda c: 0 < c.size <= MOST_COLUMNS,
         f"a head must have up to {MOST_COLUMNS} columns", "{c.size}", "split the heads"),
    Rule(TILING, "feat:751", ALL, lambda c: c.size % HEAD_UNIT == 0 or c.is_single,
         f"a head must have a multiple of {HEAD_UNIT} columns", "{c.size}", "pad it"),
    Rule(NPUSIM, "feat:751", ALL, lambda c: c.size % HEAD_UNIT == 0,
         f"a head must have a multiple of {HEAD_UNIT} columns", "{c.size}: what a kernel makes of "
         "others is not known", "pad it"),
    Rule(TILING, "feat:587", NO_ROPE, lambda c: c.layout not in MLA_OUTPUTS,
         f"input_layout must be none of {listed(MLA_OUTPUTS, 'and')} without query_rope",
         "{c.layout}", "pass {c.inner}, and turn the output round"),
    Rule(TILING, "feat:587", NO_ROPE, lambda c: c.layout not in TURNED or (
            c.size in OUTPUT_COLUMNS or c.size != c.value_size),
         f"a head must have 64 or 128 columns in {listed(TURNED)}", "{c.size}",
         "pad it, or pass BSND"),
)  # fmt: skip
ROPE_RULES = (
    Rule(TILING, "feat:765", ROPE, lambda c: c.rope_fits,
         f"query_rope and key_rope must have the shapes of query and key with {ROPE_COLUMNS} "
         "columns a head", "{c.shown_ropes} with {c.query.shape} and {c.key.shape}",
         "pass them so"),
    Rule(TILING, "feat:788", ROPE, lambda c: c.size in (128, 512),
         "a head must have 128 or 512 columns with query_rope", "{c.size}", "pad it"),
    Rule(TILING, "feat:230", MLA, lambda c: (
            c.kv_heads == 1 and c.group in (1, 2, 4, 8, 16, 32, 64, 128)),
         "1, 2, 4 and so on to 128 query heads must share one head of keys of 512 columns",
         "{c.heads} and {c.kv_heads}", "pad the heads of query"),
    Rule(TILING, "feat:523", MLA, lambda c: c.layout in MLA_LAYOUTS,
         f"input_layout must be {listed(MLA_LAYOUTS)} with heads of 512 columns and query_rope",
         "{c.layout}", "choose one of these"),
    Rule(TILING, "feat:278", MLA, lambda c: c.sparse_mode in (0, 3, 4, 9),
         "sparse_mode must be 0, 3, 4 or 9 with heads of 512 columns and query_rope",
         "{c.sparse_mode}", "choose one of these"),
    Rule(DOCUMENT, "document", MLA_PACKED, lambda c: c.is_paged,
         "key and value must lie in pages with heads of 512 columns and query_rope in TND",
         "{c.key.shape}", "pass a block_table"),
    Rule(DOCUMENT, "document", MLA_PACKED, lambda c: not c.returns_lse,
         "softmax_lse_flag must be False with heads of 512 columns and query_rope in TND",
         "True", "leave it out"),
    Rule(TILING, "feat:600", HEADS_ALIKE, lambda c: c.layout not in MLA_OUTPUTS,
         f"input_layout must be none of {listed(MLA_OUTPUTS, 'and')} with heads of 128 columns",
         "{c.layout}", "pass {c.inner}"),
)  # fmt: skip
LIST_RULES = (
    Rule(TILING, "feat:864", PACKED, lambda c: c.query_list is not None,
         "actual_seq_lengths must be given in TND and NTD", "None", "pass a list"),
    Rule(TILING, "feat:864", PACKED, lambda c: c.kv_list is not None,
         "actual_seq_lengths_kv must be given in TND and NTD", "None", "pass a list"),
    Rule(TILING, "feat:884", PAGES, lambda c: c.kv_list is not None,
         "actual_seq_lengths_kv must be given with a block_table", "None",
         "pass the keys of each request"),
)  # fmt: skip
"""If one of the previous rules fails, no kernel can be chosen."""
PAGE_RULES = (
    Rule(TILING, "cons:251", PAGES, lambda c: c.block_size == c.page_tokens,
         "block_size must be that of the cache", "{c.block_size} of {c.page_tokens}",
         "pass {c.page_tokens}"),
    Rule(TILING, "par:810", PAGES, lambda c: (
            0 < c.page_tokens <= MOST_PAGE and c.page_tokens % PAGE_UNIT == 0),
         f"block_size must be a multiple of {PAGE_UNIT} up to {MOST_PAGE}", "{c.page_tokens}",
         "make the cache so"),
    Rule(DOCUMENT, "document", PAGES, lambda c: c.is_packed or c.longest_query > 1
         or c.page_tokens <= 512,
         "block_size must be at most 512 with one token a request", "{c.page_tokens}",
         "make the cache so"),
    Rule(DOCUMENT, "document", PAGES, lambda c: c.is_packed or c.longest_query == 1
         or c.page_tokens in (128, 256, 384, 512),
         "block_size must be 128, 256, 384 or 512 with several tokens a request",
         "{c.page_tokens}", "make the cache so"),
    Rule(DOCUMENT, "document", PAGES, lambda c: c.rank != 4 or c.inner in ("BNSD", "TND"),
         "a cache (blocks, heads, block_size, columns) must go with BNSD or TND", "{c.layout}",
         "make it (blocks, block_size, heads x columns)"),
    Rule(DOCUMENT, "document", PAGES, lambda c: not c.is_nz or c.has_rope or c.is_int8,
         "a cache must have 3 or 4 dimensions without query_rope", "{c.key.shape}",
         "make it (blocks, block_size, heads x columns)"),
    Rule(TILING, "par:824", PAGES, lambda c: len(c.table_shape) == 2 and 0 not in c.table_shape,
         "block_table must have two dimensions and entries", "{c.table_shape}",
         "pass a row for each request"),
)  # fmt: skip
LENGTH_RULES = (
    Rule(NOBODY, "T:935", FAI_PAGES, lambda c: c.given_kv_heads > 0,
         "num_key_value_heads must be given with pages (blocks, block_size, heads x columns) where "
         "FAI takes the call", "0: a card divides by it", "pass {c.kv_heads}"),
    Rule(TILING, "feat:944", ALL, lambda c: min(map(min, c.lists), default=0) >= 0,
         "lengths must be at least 0", "{c.shown_lists}", "pass the tokens of each request"),
    Rule(TILING, "feat:663", ALL, lambda c: max(map(len, c.lists), default=0) <= MOST_ENTRIES,
         f"actual_seq_lengths and actual_seq_lengths_kv must have up to {MOST_ENTRIES} entries",
         "more", "split the call"),
    Rule(DOCUMENT, "document", PACKED, lambda c: c.requests <= MOST_OF_TND,
         f"actual_seq_lengths must have at most {MOST_OF_TND} entries in TND and NTD",
         "{c.requests}", "split the call"),
    Rule(DOCUMENT, "document", PADDED, lambda c: c.requests <= MOST_REQUESTS,
         f"query must have at most {MOST_REQUESTS} requests", "{c.requests}", "split the call"),
    Rule(TILING, "feat:864", PACKED_ELSE, lambda c: c.is_rising,
         "lengths must not fall in TND and NTD, where each is the sum of those so far",
         "{c.shown_lists}", "pass the sums"),
    Rule(NOBODY, "T:935", FAI, lambda c: c.is_rising,
         "lengths must not fall in TND and NTD, where each is the sum of those so far",
         "{c.shown_lists}: a card would read elsewhere", "pass the sums"),
    Rule(TILING, "feat:1030", PACKED_ELSE, lambda c: (
            c.is_paged or len(c.lists[0]) == len(c.lists[1])),
         "actual_seq_lengths_kv must have as many entries as actual_seq_lengths",
         "{c.shown_lists}", "pass one for each request"),
    Rule(NOBODY, "T:935", PACKED, lambda c: len(c.kv_list or ()) >= c.requests,
         "actual_seq_lengths_kv must have an entry for each request", "{c.shown_lists}: a card "
         "would read elsewhere", "pass one for each request"),
    Rule(TILING, "feat:1000", PACKED, lambda c: c.inner == "NTD" or c.lists[0][-1] == c.room[0],
         "the last entry of actual_seq_lengths must be the tokens of query",
         "{c.shown_lists} for {c.room[0]}", "pass the sums of the lengths"),
    Rule(NPUSIM, "feat:1000", PACKED, lambda c: c.lists[0][-1] == c.room[0],
         "the last entry of actual_seq_lengths must be the tokens of query",
         "{c.shown_lists} for {c.room[0]}: what is left of the output is not known",
         "pass the sums of the lengths"),
    Rule(TILING, "feat:1030", PACKED_KEYS, lambda c: c.lists[1][-1] == c.room[1],
         "the last entry of actual_seq_lengths_kv must be the tokens of key",
         "{c.shown_lists} for {c.room[1]}", "pass the sums of the lengths"),
    Rule(TILING, "cons:350", PADDED, lambda c: (
            all(len(x) == 1 or len(x) >= c.requests for x in c.lists)),
         "lengths must have one entry, or one for each request", "{c.shown_lists} for {c.requests}",
         "pass as many"),
    Rule(TILING, "cons:387", PADDED, lambda c: c.is_single or max(c.query_lengths) <= c.room[0],
         "actual_seq_lengths must be at most the tokens of query",
         "{c.shown_lists} for {c.room[0]}", "pass lengths that fit"),
    Rule(TILING, "cons:387", PADDED, lambda c: c.is_paged or max(c.kv_lengths) <= c.room[1],
         "actual_seq_lengths_kv must be at most the tokens of key",
         "{c.shown_lists} for {c.room[1]}", "pass lengths that fit"),
    Rule(DOCUMENT, "document", ALL, lambda c: c.longest_kv <= MOST_KEYS,
         f"a request must have at most {MOST_KEYS} keys", "{c.longest_kv}", "split it"),
    Rule(DOCUMENT, "document", SINGLE, lambda c: c.longest_kv <= MOST_KEYS_OF_TOKEN,
         f"a request of one token must have at most {MOST_KEYS_OF_TOKEN} keys", "{c.longest_kv}",
         "split it"),
)  # fmt: skip
TABLE_RULES = (
    Rule(NOBODY, "document", PAGES, lambda c: c.has_rows_of_table,
         "block_table must have a row for each request, as long as the blocks of the longest",
         "{c.table_shape} for {c.requests} of up to {c.longest_kv} keys: a card would read "
         "elsewhere",
         "pass them all"),
    Rule(TILING, "cons:229", PAGES, lambda c: (
            not c.is_packed or c.kernel != "FIA" or c.table_shape[0] == c.requests),
         "block_table must have as many rows as there are requests in TND and NTD",
         "{c.table_shape[0]} for {c.requests}", "leave the others out"),
    Rule(NOBODY, "document", PAGES, lambda c: c.stray_block is None,
         "block_table must name blocks of the cache", "{c.stray_block} of {c.key.shape[0]}: a "
         "card would read elsewhere", "correct it"),
)  # fmt: skip
MASK_RULES = (
    Rule(TILING, "single:629", ALL, lambda c: c.sparse_mode in (0, 1, 2, 3, 4, 9),
         "sparse_mode must be 0, 1, 2, 3 or 4, or 9 with query_rope", "{c.sparse_mode}",
         "choose one of these"),
    Rule(TILING, "feat:172", NO_ROPE, lambda c: c.sparse_mode != 9,
         "sparse_mode must be 0, 1, 2, 3 or 4 without query_rope", "9", "choose one of these"),
    Rule(TILING, "feat:172", ALL, lambda c: c.sparse_mode != 9 or c.has_keys_for_tokens,
         "a request must have at least as many keys as tokens with sparse_mode 9",
         "{c.shown_lengths}", "pass the keys that came before, too"),
    Rule(TILING, "single:559", ALL, lambda c: 0 <= c.inner_precise <= 3,
         "inner_precise must lie in [0, 3]", "{c.inner_precise}", "choose one of these"),
    Rule(TILING, "I", INCRE, lambda c: c.inner_precise in (0, 1),
         "inner_precise must be 0 or 1", "{c.inner_precise}", "pass 0"),
    Rule(DOCUMENT, "document", SINGLE, lambda c: c.is_packed or c.inner_precise < 2,
         "inner_precise must be 0 or 1 with one token a request", "{c.inner_precise}",
         "pass 0"),
    Rule(DOCUMENT, "document", SINGLE, lambda c: c.layout != "BNSD_BSND",
         "input_layout must be another one with one token a request", "BNSD_BSND", "pass BNSD"),
    Rule(TILING, "feat:236", ALL, lambda c: c.sparse_mode == 0 or c.mask is not None,
         "atten_mask must be given with a sparse_mode other than 0", "None", "pass one of the "
         f"tokens and keys, with 2 to 4 numpy.triu(..., 1) of {MASK_EXTENT} x {MASK_EXTENT}"),
    Rule(TILING, "T:1161", OWN_MASK, lambda c: c.kernel != "FAI",
         "sparse_mode must be 3 or 4 with a mask in TND where query heads share keys",
         "{c.sparse_mode}", "pass 3 with the stencil, or no mask"),
    Rule(TILING, "feat:242", OWN_MASK, lambda c: (
            len(c.mask_shape) != 2 or (c.layout in IN_ORDER and not c.has_rope)),
         f"atten_mask must have 3 or 4 dimensions but in {listed(IN_ORDER)} without query_rope",
         "{c.mask_shape}", "reshape it"),
    Rule(TILING, "cons:537", OWN_MASK, lambda c: c.is_mask_large_enough,
         f"atten_mask must have shape {SHAPES_OF_MASK}, with sparse_mode 0 or 1",
         "{c.mask_shape} for {c.requests} requests of {c.longest_query} and {c.mask_keys}",
         "pass a number for each token and key"),
    Rule(DOCUMENT, "document", OWN_MASK, lambda c: c.is_paged or c.is_mask_exact,
         "atten_mask must have a row for each token and a column for each key, and no more",
         "{c.mask_shape} for {c.longest_query} and {c.longest_kv}", "cut it"),
    Rule(DOCUMENT, "document", OWN_MASK, lambda c: (
            not c.is_paged or c.mask_shape[-1] >= c.table_shape[1] * c.page_tokens),
         "atten_mask must have a column for each token of all blocks of block_table",
         "{c.mask_shape}", "pad it with ones"),
    Rule(TILING, "cons:572", STENCIL, lambda c: c.is_stencil,
         f"atten_mask must be {MASK_EXTENT} x {MASK_EXTENT} with sparse_mode 2, 3 or 4",
         "{c.mask_shape}", "pass numpy.triu(..., 1), whatever the lengths are"),
    Rule(NOBODY, "document", STENCIL, lambda c: c.is_triangle,
         "atten_mask must have ones above its diagonal alone with sparse_mode 2, 3 or 4",
         "others: a card would hide other keys", "pass numpy.triu(..., 1)"),
    Rule(TILING, "cons:647", MASK, lambda c: max(c.tokens) >= 0 and -c.tokens[1] <= c.tokens[0],
         "pre_tokens and next_tokens must not both be negative with a mask, nor leave no band",
         "{c.tokens[0]} and {c.tokens[1]}", "pass 0 or more for both"),
)  # fmt: skip
KERNEL_RULES = (
    Rule(TILING, "feat:797", FIA, lambda c: not c.is_nz or c.has_rope or c.size in NZ_COLUMNS,
         "a head must have 64 or 128 columns in a cache of 5 dimensions where FIA takes the call",
         "{c.size}", "make it (blocks, block_size, heads x columns)"),
    Rule(TILING, "feat:587", FIA, lambda c: c.inner != "TND" or c.has_rope
         or c.size in (64, 128, 192),
         "a head must have 64, 128 or 192 columns in TND where FIA takes the call", "{c.size}",
         "pad it"),
    Rule(TILING, "feat:101", ALL, lambda c: (
            (c.layout in IN_ORDER and not c.has_rope) or not c.gives(IN_ORDER_ALONE)),
         "pse_shift, paddings, prefixes and scales of the output must be None but in "
         f"{listed(IN_ORDER)} without query_rope", "given", "leave them out"),
    Rule(TILING, "feat:336", ALL, lambda c: not (
            c.gives(PADDINGS) and (c.is_paged or c.gives(PREFIXES))),
         "paddings must be None with a block_table or a prefix", "given", "leave them out"),
    Rule(TILING, "feat:424", PAGES, lambda c: not c.gives(PREFIXES),
         "prefixes must be None with a block_table", "given", "leave them out"),
    Rule(TILING, "exist:459", HALVES, lambda c: not c.gives(QUANTISED),
         "dequant_scale_query must be None, and the modes of its like 0, with key of fp16 or bf16",
         "given", "leave them out"),
    Rule(TILING, "feat:500", SINK_OF_FIA, lambda c: c.sink_fits_fia,
         "learnable_sink must be bfloat16 of shape (num_heads,) where FIA takes the call",
         "{c.sink.spec.dtype} {c.sink.shape}", "pass one for each head, and query of bfloat16"),
    Rule(TILING, "T:1120", SINK_OF_FAI, lambda c: c.inner_precise == 0,
         "inner_precise must be 0 with learnable_sink where FAI takes the call",
         "{c.inner_precise}", "pass 0"),
    Rule(TILING, "I", INT8, lambda c: c.size % DIGIT_UNIT == 0,
         f"a head must have a multiple of {DIGIT_UNIT} columns with key of int8", "{c.size}",
         "pad it"),
    Rule(TILING, "I", INT8, lambda c: not c.is_paged or c.page_tokens % DIGIT_UNIT == 0,
         f"block_size must be a multiple of {DIGIT_UNIT} with key of int8", "{c.page_tokens}",
         "make the cache so"),
    Rule(TILING, "I", INT8, lambda c: c.misfit is None,
         "scales must be one, or have the columns of heads, or with mode 1 the tokens of requests",
         "{c.misfit}", "reshape it"),
)  # fmt: skip
LACKS = (
    Rule(NPUSIM, "document", ALL, lambda c: not c.strays,
         "parameters that are not simulated must be None, and modes 0", "{c.stray}",
         "leave it out"),
    Rule(NPUSIM, "document", SINK, lambda _: False,
         "learnable_sink must be None", "given: how its kernel adds it is not simulated",
         "leave it out, and multiply output by 1 / (1 + exp(learnable_sink - softmax_lse))"),
    Rule(NPUSIM, "feat:172", MLA, lambda c: c.sparse_mode != 9,
         "sparse_mode must be 0, 3 or 4 with heads of 512 columns and query_rope",
         "9: what a tree of tokens hides is not simulated", "pass 3"),
    Rule(NPUSIM, "fia_block_cube_nonquant_mla.h", MLA, lambda c: c.is_value_key,
         "value must be key with heads of 512 columns and query_rope",
         "another one: that its kernel reads values from key is assumed", "pass key for both"),
    Rule(NPUSIM, "feat:172", HEADS_ALIKE, lambda c: c.sparse_mode != 9,
         "sparse_mode must be 0, 1, 2, 3 or 4", "9: what a tree of tokens hides is not simulated",
         "pass 3"),
    Rule(NPUSIM, "feat:797", INT8, lambda c: not c.is_nz,
         "a cache of int8 must have 3 or 4 dimensions", "{c.key.shape}: fractals are not simulated",
         "make it (blocks, block_size, heads x columns)"),
    Rule(NPUSIM, "T", FAI, lambda c: c.inner_precise in (0, 1),
         "inner_precise must be 0 or 1 in TND where no query heads share keys",
         "{c.inner_precise}: what it corrects there is not known", "pass 0"),
    Rule(NPUSIM, "T", FIA, lambda c: (
            c.group > 1 or c.longest_query > 1 or c.is_paged or c.size != OLDER_COLUMNS),
         f"heads must have other than {OLDER_COLUMNS} columns where each request has one token and "
         "num_heads heads of keys without a block_table", "{c.size}: the older kernel that takes "
         "these is not simulated", "put the keys in pages"),
    Rule(NPUSIM, "I", DIGITS, lambda c: c.layout in ("BSH", "BSND", "BNSD"),
         "input_layout must be BSH, BSND or BNSD with key of int8", "{c.layout}: the kernels that "
         "take others are not simulated", "transpose query"),
    Rule(NPUSIM, "I", DIGITS, lambda c: c.longest_query == 1,
         "query must have one token a request with key of int8", "{c.longest_query}: the kernel "
         "that takes more is not simulated", "pass key and value of {c.query.spec.dtype}, and no "
         "scales, to npu_fused_infer_attention_score"),
    Rule(NPUSIM, "I", DIGITS, lambda c: c.mask is None,
         "atten_mask must be None with key of int8", "given: how it hides scores there is not "
         "known", "pass actual_seq_lengths_kv"),
    Rule(NPUSIM, "I", INT8, lambda c: not c.attention.returns_lse,
         "softmax_lse_flag must be False with key of int8", "True: what its kernel returns is not "
         "known", "leave it out"),
    Rule(NPUSIM, "T", OFFSET, lambda c: c.layout == "TND" and c.is_paged and c.rank == 3 and (
            c.has_wide_scales),
         "offsets must be float32, query in TND, and key in pages (blocks, block_size, heads x "
         "columns)", "{c.offsets[0].spec.dtype}, {c.layout} and {c.key.shape}: the kernels that "
         "take others are not simulated", "pass them so, or leave offsets out"),
    Rule(NPUSIM, "T", OFFSET, lambda c: c.has_columns,
         "scales and offsets must be those of columns", "one: what its kernel makes of that is "
         "not known", "repeat it for each column"),
    Rule(NPUSIM, "T", OFFSET, lambda c: c.mask is None or c.sparse_mode > 1,
         "atten_mask must be a stencil with offsets", "one with sparse_mode {c.sparse_mode}: how "
         "it hides scores there is not known", "pass sparse_mode 3, or no mask"),
)  # fmt: skip
"""What a card supports, and npusim does not."""
RULES = (
    *(*QUERY_RULES, *HEAD_RULES, *ROPE_RULES, *LIST_RULES, *PAGE_RULES, *LENGTH_RULES),
    *(*TABLE_RULES, *MASK_RULES, *KERNEL_RULES, *LACKS),
)


def table(names: Mapping[str, str], absent: Container[str] = ()) -> tuple[tuple[str, ...], ...]:
    """The rules as lines of a document; *names* map parameters to those of an operator.

    Text about parameters that are *absent* there is left out.
    """
    found = []
    for checked, source, scope, _, must, *_ in RULES:
        if any(word in absent for word in re.findall(r"\w+", must)):
            continue
        own = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), must)
        code = "warns" if checked.code is None else str(checked.code.value)
        found.append((scope.words, own, checked.by, code, source))
    return ("calls", "what must hold", "who checks it", "code", "source"), *found
