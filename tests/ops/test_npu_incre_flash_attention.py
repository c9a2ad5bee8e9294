"""npu_incre_flash_attention: another operator's calls of int8 by its names, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import OP as FIRST
from op_calls import NEW, Row, assert_all_same, constraints

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
    Row({"antiquant_scale": None, "key": KEYS[0].astype(F16), "value": KEYS[1].astype(F16)},
        "antiquant_scale must be given, with key and value of int8, not None: the kernel for other "
        "keys is not simulated; call npu_fused_infer_attention_score, which has others", {}, NEW,
        Code.UNSUPPORTED),
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
    Row({"inner_precise": 2}, "inner_precise must be 0 or 1, not 2; pass 0", {"inner_precise": 0},
        NEW, Code.TILING_ERROR),
    Row({"scale_value": np.inf}, "scale_value must be a finite number of fp32, not inf; pass 1 / "
        "sqrt(columns of a head), say", {}, NEW),
    Row({"query": np.ones((2, 3, 4, 32), F16)}, "query must have one token a request with key of "
        "int8, not 3: the kernel that takes more is not simulated; pass key and value of float16, "
        f"and no scales, to {FIRST}", {}, NEW, Code.UNSUPPORTED),
]  # fmt: skip


test_each_constraint = constraints(OP, BASE, ROWS)
