"""npu_incre_flash_attention: another operator's calls of int8 by its names, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import OP as FIRST
from op_calls import BF16, NEW, Row, assert_all_same, assert_as_reference, constraints

from npusim import Code, ops, run

OP = "npu_incre_flash_attention"
RNG = np.random.default_rng(0)
F16 = np.float16
KEYS = RNG.integers(-128, 128, (2, 2, 9, 2, 32)).astype(np.int8)
BASE: dict[str, Any] = {
    "query": RNG.standard_normal((2, 1, 4, 32)).astype(F16),
    "key": KEYS[0],
    "value": KEYS[1],
    "antiquant_scale": RNG.uniform(0.01, 0.02, (2, 2, 32)).astype(F16),
    "actual_seq_lengths": [9, 4],
    "num_heads": 4,
    "num_key_value_heads": 2,
    "scale_value": 0.2,
    "input_layout": "BSND",
}
NAMES = {"actual_seq_lengths": "actual_seq_lengths_kv", "scale_value": "scale"}


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
def test_it_is_the_first_operator_by_other_names(device: str) -> None:
    found = run(OP, **BASE, device=device)
    call = {NAMES.get(name, name): value for name, value in BASE.items()}
    known = run(FIRST, **call, device=device)
    assert_all_same((found.output,), known.output[:1])
    assert_all_same((found.output,), (ops.load(OP).reference(**BASE),))
    assert (found.time_us, found.template) == (known.time_us, "IFA")


ROWS = [
    Row({"antiquant_scale": np.ones(3, F16)}, "scales must be one, or have the columns of heads, "
        "or with mode 1 the tokens of requests, not antiquant_scale (3,) in place of (2,) or (2, "
        "2, 32); reshape it", {"antiquant_scale": np.ones(2, F16)}, NEW, Code.TILING_ERROR),
    Row({"antiquant_offset": np.ones(2, F16)}, "offsets must be float32, query in TND, and key in "
        "pages (blocks, block_size, heads x columns), not float16, BSND and (2, 9, 2, 32): the "
        "kernels that take others are not simulated; pass them so, or leave offsets out", {}, NEW,
        Code.UNSUPPORTED),
    Row({"query": np.ones((3, 1, 4, 32), F16), "key": KEYS[0, [0, 1, 0]],
         "value": KEYS[1, [0, 1, 0]]}, "lengths must have one entry, or one for each request, not "
        "[9, 4] for 3; pass as many", {"actual_seq_lengths": [3, 1, 2]}, NEW, Code.TILING_ERROR),
    Row({"actual_seq_lengths": [9, 10]}, "actual_seq_lengths must be at most the tokens of key, "
        "not [9, 10] for 9; pass lengths that fit", {"actual_seq_lengths": [3]}, NEW,
        Code.TILING_ERROR),
    Row({"scale_value": np.inf}, "scale_value must be a finite number of fp32, not inf; pass 1 / "
        "sqrt(columns of a head), say", {}, NEW),
    Row({"query": np.ones((2, 3, 4, 32), F16)}, "query must have one token a request with key of "
        "int8, not 3: the kernel that takes more is not simulated; pass key and value of float16, "
        f"and no scales, to {FIRST}", {}, NEW, Code.UNSUPPORTED),
]  # fmt: skip


test_each_constraint = constraints(OP, BASE, ROWS)


# ---- float16 on vector cores alone ----

SHAPES = {
    # Requests, heads, keys, columns: chunks and running sums of values are cut otherwise in each.
    "one chunk": ("BNSD", 3, 8, 40, 64),
    "odd rest": ("BSND", 2, 16, 130, 128),
    "columns of heads": ("BSH", 1, 24, 300, 96),
    "padded rows": ("BNSD", 3, 8, 200, 256),
    "widest": ("BSND", 3, 9, 37, 512),
    "two loops": ("BNSD", 1, 24, 8200, 32),
    "several heads a core": ("BSH", 12, 5, 20, 32),
}


def halves(layout: str, *sizes: int, seed: int = 0) -> dict[str, Any]:
    requests, heads, keys, columns = sizes
    rng = np.random.default_rng(seed)
    tensors = [
        rng.standard_normal((requests, heads, tokens, columns)).astype(F16)
        for tokens in (1, keys, keys)
    ]
    if layout != "BNSD":
        tensors = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in tensors]
    if layout == "BSH":
        tensors = [x.reshape(*x.shape[:2], -1) for x in tensors]
    found = dict(zip(("query", "key", "value"), tensors, strict=True))
    return found | {"num_heads": heads, "input_layout": layout, "scale_value": columns**-0.5}


@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
@pytest.mark.parametrize("name", SHAPES)
def test_keys_of_float16_give_the_reference(name: str, device: str) -> None:
    layout, *sizes = SHAPES[name]
    call = halves(layout, *sizes)
    lengths = np.random.default_rng(1).integers(1, sizes[2] + 1, sizes[0]).tolist()
    found = assert_as_reference(OP, **call, actual_seq_lengths=lengths, device=device)
    assert found.template == "IFA-VECTOR"


def test_what_is_infinite_or_no_number_gives_the_reference() -> None:
    call = halves("BNSD", 3, 8, 40, 64)
    call["query"][0, 0, 0, 3], call["key"][0, 1, 5, 7] = np.nan, np.inf
    call["value"][1, 2, 3, 4], call["value"][2, 0, 39, 0] = -np.inf, np.nan
    assert_as_reference(OP, **call, device="ascend910b2")


def test_keys_of_float16_give_attention() -> None:
    """Against float64, within 2e-3 as the vendor asks of float16."""
    call = halves("BNSD", 3, 8, 300, 64)
    q, k, v = (call[name].astype(np.float64) for name in ("query", "key", "value"))
    scores = (q @ k.swapaxes(2, 3)) * 0.125
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    exact = weights @ v / weights.sum(axis=3, keepdims=True)
    np.testing.assert_allclose(run(OP, **call, device="ascend910b2").output, exact, atol=2e-3)


UNSIMULATED = "the kernel for others is not simulated; call npu_fused_infer_attention_score"
OF_HALVES = halves("BNSD", 3, 8, 40, 64)
ROWS_OF_HALVES = [
    Row({name: OF_HALVES[name].astype(BF16) for name in ("query", "key", "value")},
        f"query must be float16 where keys are not of int8, not bfloat16: {UNSIMULATED}",
        code=Code.UNSUPPORTED),
    Row({"num_key_value_heads": 4, **{name: OF_HALVES[name][:, :4] for name in ("key", "value")}},
        "num_key_value_heads must be 0 or the 8 num_heads where keys are not of int8, not 4: "
        f"{UNSIMULATED}", {"num_key_value_heads": 8}, code=Code.UNSUPPORTED),
    Row({"block_table": np.zeros((3, 1), np.int32)},
        f"block_table must be None where keys are not of int8, not given: {UNSIMULATED}",
        code=Code.UNSUPPORTED),
    Row({"atten_mask": np.zeros((3, 40), np.uint8)},
        f"atten_mask must be None where keys are not of int8, not given: {UNSIMULATED}",
        code=Code.UNSUPPORTED),
    Row(halves("BNSD", 3, 8, 40, 48),
        "query must have heads of a multiple of 32 elements, at most 512, not 48: others are not "
        "simulated; call npu_fused_infer_attention_score", code=Code.UNSUPPORTED),
    Row(halves("BNSD", 1, 8, 40, 64),
        "query must have at least 24 heads of all requests, half of the vector cores, not 8: that "
        "keys are dealt out to cores is not simulated; call npu_fused_infer_attention_score",
        code=Code.UNSUPPORTED),
    Row({"value": OF_HALVES["value"][:, :, :39]},
        "value must have shape (3, 8, 40, 64) like key, not (3, 8, 39, 64); pass one of that "
        "shape"),
    Row({"query": OF_HALVES["query"][:2]},
        "query must have one token of each request and key the heads of query, not shapes (2, 8, "
        "1, 64) and (3, 8, 40, 64) for num_heads=8; reshape them"),
    Row({"query": OF_HALVES["query"][0]},
        "query and key must have 4 dimensions in BNSD, and elements, and num_heads be positive, "
        "not shapes (8, 1, 64) and (3, 8, 40, 64) and 8; reshape them"),
    Row({"actual_seq_lengths": [3, 41, 2]},
        "actual_seq_lengths must have a length from 1 to 40 for each of 3 requests, not [3, 41, "
        "2]; correct it", {"actual_seq_lengths": [3, 40, 2]}),
    Row({"input_layout": "TND"},
        "input_layout must be BSH, BSND or BNSD, not 'TND'; choose one of these"),
    Row({"inner_precise": 2}, "inner_precise must be 0 or 1, not 2; pass 0", {"inner_precise": 0},
        code=Code.TILING_ERROR),
    Row({"scale_value": np.inf}, "scale_value must be a finite number of fp32, not inf; pass 1 / "
        "sqrt(columns of a head), say"),
]  # fmt: skip
test_each_constraint_of_halves = constraints(OP, OF_HALVES, ROWS_OF_HALVES)
