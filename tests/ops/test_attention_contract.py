"""What npu_fused_infer_attention_score refuses, and which kernel takes what it accepts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_calls import OP, STENCIL, attention_call, specs_of
from op_calls import NEW, Row, assert_accepted, assert_all_same, assert_refused, on_each_line

from npusim import Code, OpError, TensorSpec, devices, ops, run
from npusim.ops._attention.check import ATTRIBUTES
from npusim.ops._attention.problem import choose
from npusim.ops.npu_fused_infer_attention_score_v2 import NAMES

A2, V2 = "ascend910b2", f"{OP}_v2"
RNG = np.random.default_rng(0)
BASE = attention_call(RNG, (2, 3), (4, 5), (4, 2), 32, np.float16)
PAGED = attention_call(RNG, (1, 1), (20, 5), (4, 2), 32, np.float16, 16)
HALF = BASE["query"]


def ones(*shape: int, dtype: Any = np.float16) -> Any:
    return np.ones(shape, dtype)


ROWS = [
    Row({"pse_shift": HALF}, "pse_shift must be None, not an array of float16 (5, 4, 32): "
        "offsets of keys, quantised queries and outputs, offsets of scores, prefixes and rotated "
        "parts of a head are not simulated; leave it out", {}, NEW, Code.UNSUPPORTED),
    Row({"antiquant_mode": 1}, "antiquant_mode must be 0 with no antiquant_scale on {series}, not "
        "1; pass 0", {}, NEW),
    Row({"value": ones(9, 2, 16)}, "value must have the shape of key, (9, 2, 32), not (9, 2, 16); "
        "pass as many columns", {}, NEW),
    Row({"input_layout": "SBH"}, "input_layout must be BSH, BSND, BNSD, BNSD_BSND, TND, NTD or "
        "NTD_TND, not 'SBH'; choose one of these", {}, NEW),
    Row({"num_heads": 0}, "num_heads must lie in [1, 256], not be 0; pass the heads of query", {},
        NEW),
    Row({"num_key_value_heads": 3}, "num_key_value_heads must divide num_heads, 4, not be 3; pass "
        "the heads of key", {}, NEW),
    Row({"query": ones(5, 256, 16), "num_heads": 256, "num_key_value_heads": 1},
        "at most 128 query heads must share a head of keys, not 256; repeat the keys", {}, NEW),
    Row({"query": ones(5, 128)}, "query must have shape (tokens, heads, columns) for input_layout "
        "TND, not (5, 128); reshape it", {}, NEW),
    Row({"query": ones(5, 2, 32)}, "query must have num_heads, 4, as dimension 1 of (tokens, "
        "heads, columns), not 2; pass the heads of query", {}, NEW),
    Row({"query": ones(5, 2, 126), "input_layout": "BSH"}, "the last dimension of query must be a "
        "multiple of num_heads, 4, not 126; pass the heads of query", {}, NEW),
    Row({"query": ones(5, 4, 40)}, "a head of query must have a multiple of 16 columns up to 512, "
        "not 40; pad it", {}, NEW),
    Row(dict.fromkeys(("key", "value"), ones(9, 2, 64)), "a head of key must have as many columns "
        "as one of query, 32, not 64: others are not simulated; pad the shorter one", {}, NEW),
    Row(dict.fromkeys(("key", "value"), ones(2, 9, 64))
        | {"query": ones(1, 9, 128), "input_layout": "BSH"}, "key must have the requests of "
        "query, 1, not 2; pass keys for each", {}, NEW),
    Row({"actual_seq_lengths": [2.5, 5]}, "actual_seq_lengths[0] must be an integer, not 2.5; "
        "pass one without quotes or a point", {}, NEW),
    Row({"actual_seq_lengths": [-1, 5]}, "actual_seq_lengths must be a list of integers from 0 "
        "on, one for each request, not [-1, 5]; pass the lengths as plain integers", {}, NEW),
    Row({"actual_seq_lengths": None},
        "actual_seq_lengths must be given for input_layout TND, not None; pass a list", {}, NEW),
    Row({"actual_seq_lengths_kv": None},
        "actual_seq_lengths_kv must be given for input_layout TND, not None; pass a list", {}, NEW),
    Row({"actual_seq_lengths": [1] * 4097, "actual_seq_lengths_kv": [9] * 4097},
        "actual_seq_lengths must have at most 4096 entries for input_layout TND, not 4097; split "
        "the call", {}, NEW),
    Row({"actual_seq_lengths_kv": [9]}, "actual_seq_lengths_kv must have as many entries as "
        "actual_seq_lengths, 2, not 1; pass one for each request", {}, NEW),
    Row({"actual_seq_lengths": [6, 5]}, "actual_seq_lengths must not fall from request to request "
        "for input_layout TND, where each is the sum of lengths so far, not [6, 5]; pass the sums",
        {}, NEW),
    Row({"actual_seq_lengths_kv": [4, 5]}, "the last entry of actual_seq_lengths_kv must be the "
        "tokens of key, 9, not 5; pass the sums of the lengths", {}, NEW),
    Row({"scale": np.nan}, "scale must be a finite number of fp32, not nan; pass 1 / sqrt(columns "
        "of a head), say", {}, NEW),
    Row({"sparse_mode": 5}, "sparse_mode must lie in [0, 4], not be 5; choose one of these", {},
        NEW),
    Row({"inner_precise": 4}, "inner_precise must lie in [0, 3], not be 4; choose one of these",
        {}, NEW),
    Row({"atten_mask": None}, "atten_mask must be given with sparse_mode 3, not None; pass the "
        "upper triangle of ones, numpy.triu(..., 1), of 2048 x 2048", {}, NEW, Code.TILING_ERROR),
    Row({"atten_mask": STENCIL[:5, :9].copy()}, "atten_mask must have shape (2048, 2048) with "
        "sparse_mode 3, not (5, 9); pass the upper triangle of ones, whatever the lengths are",
        {"atten_mask": STENCIL[None].copy()}, NEW, Code.TILING_ERROR),
    Row({"atten_mask": STENCIL.T.copy()}, "atten_mask must be the upper triangle of ones, "
        "numpy.triu(..., 1), with sparse_mode 3, not other numbers: a card would hide other keys; "
        "pass it so", {}, NEW),
    Row({"sparse_mode": 0}, "atten_mask must have shape (3, 5), (1, 3, 5), (2, 3, 5), (1, 1, 3, 5) "
        "or (2, 1, 3, 5) with sparse_mode 0, not (2048, 2048); pass a number for each token and "
        "key", {"sparse_mode": 0, "atten_mask": None}, NEW),
    Row(dict.fromkeys(("key", "value"), ones(9, 4, 32))
        | {"num_key_value_heads": 4, "inner_precise": 1}, "inner_precise must be 0 in layout TND, "
        "not 1: scores of half the size are not simulated; pass 0", {}, NEW, Code.UNSUPPORTED),
    Row({"actual_seq_lengths_kv": [1, 9]}, "each query token must see a key, or its request have "
        "none, not be without one of 1 with sparse_mode 3 as one of 2 of request 0 is: such tokens "
        "are not simulated; pass all keys", {}, NEW, Code.UNSUPPORTED),
    Row({"sparse_mode": 4, "pre_tokens": -4}, "each query token must see a key, or its request "
        "have none, not be without one of 4 with sparse_mode 4 as one of 2 of request 0 is: such "
        "tokens are not simulated; pass all keys", {"sparse_mode": 4, "pre_tokens": 1}, NEW,
        Code.UNSUPPORTED),
    Row({"template": "PFA"}, "template must be FAI, FAI-FD, FAI-DEC, FIA or IFA, not 'PFA'; leave "
        "it out to get the vendor's choice", {"template": "FAI"}, NEW),
    Row({"template": "IFA"}, "template 'IFA' can run only if key and value are int8; leave it out "
        "to get the vendor's choice", {}, NEW),
    Row({"template": "FAI-FD"}, "template 'FAI-FD' can run only if the cache is in pages; leave it "
        "out to get the vendor's choice", {}, NEW),
]  # fmt: skip
PAGED_ROWS = [
    Row({"actual_seq_lengths_kv": None}, "actual_seq_lengths_kv must be given with a block_table, "
        "not None; pass the keys of each request", {}, NEW),
    Row(dict.fromkeys(("key", "value"), ones(5, 16, 2, 32)), "key must have shape (blocks, "
        "block_size, 64) or (blocks, 2, block_size, 32) with a block_table, not (5, 16, 2, 32); "
        "reshape the cache", {}, NEW),
    Row({"block_size": 128},
        "block_size must be that of the cache, 16, not 128; pass 16", {}, NEW),
    Row(dict.fromkeys(("key", "value"), ones(5, 24, 64)) | {"block_size": 24}, "block_size must be "
        "a multiple of 16 up to 1024, not 24; make the cache so", {}, NEW),
    Row({"block_table": ones(2, 1, dtype=np.int32)}, "block_table must have shape (2, blocks of "
        "the longest request), at least 2 of them, not (2, 1); pass a row for each request", {},
        NEW),
    Row({"block_table": np.full((2, 2), 9, np.int32)}, "block_table must name blocks in [0, 5) of "
        "the cache, not 9 for request 0; a card would read elsewhere: correct it", {}, NEW),
]  # fmt: skip


@on_each_line(ROWS)
def test_each_constraint(series: str, rows: list[Row]) -> None:
    for row in rows:
        assert_refused(OP, BASE | row.wrong, row, series)
        assert_accepted(OP, BASE | row.right, series)


@on_each_line(PAGED_ROWS)
def test_each_constraint_of_pages(series: str, rows: list[Row]) -> None:
    for row in rows:
        assert_refused(OP, PAGED | row.wrong, row, series)
    assert_accepted(OP, PAGED, series)


def test_what_is_not_simulated_may_be_left_out() -> None:
    operator = ops.load(OP)
    known = {*ATTRIBUTES, *(name for row in operator.support for name in row.entries)}
    others = [each for each in operator.parameters if each.name not in known]
    assert len(others) == 17
    assert {(each.default, each.by_name) for each in others} == {(None, True)}


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


def test_empty_queries_run_nothing() -> None:
    call = BASE | {"query": HALF[:0], "actual_seq_lengths": [0, 0]}
    found = run(OP, **call, device=A2)
    assert found.plan is None
    assert np.asarray(found.outputs["output"]).shape == (0, 4, 32)


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
        ({"num_query_heads": 0}, "num_query_heads must lie in [1, 256], not be 0; pass the heads "
         "of query"),
        ({"actual_seq_kvlen": [9]}, "actual_seq_kvlen must have as many entries as "
         "actual_seq_qlen, 2, not 1; pass one for each request"),
        ({"learnable_sink": HALF}, "learnable_sink must be None, not an array of float16 (5, 4, "
         "32): quantised keys, offsets of scores, prefixes and rotated parts of a head are not "
         "simulated; leave it out"),
        ({"key_quant_mode": 1}, "key_quant_mode must be 0, not 1: quantised keys, offsets of "
         "scores, prefixes and rotated parts of a head are not simulated; leave it out"),
    ],
)  # fmt: skip
def test_the_second_version_refuses_by_its_own_names(wrong: dict[str, Any], message: str) -> None:
    call = {NAMES.get(name, name): value for name, value in BASE.items()} | wrong
    with pytest.raises(OpError, match=rf"^{V2}: {re.escape(message)} \[\d+\]$"):
        run(V2, **call, device=A2)
