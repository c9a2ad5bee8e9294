"""npu_incre_flash_attention: another operator's calls of int8 by its names, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import OP as FIRST
from op_calls import NEW, Row, assert_accepted, assert_all_same, assert_refused, on_each_line

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


OTHERS = (
    "offsets of keys, quantised queries and outputs, offsets of scores, prefixes and rotated parts "
    "of a head are not simulated; leave it out"
)
ROWS = [
    Row({"antiquant_scale": None, "key": KEYS[0].astype(F16), "value": KEYS[1].astype(F16)},
        "antiquant_scale must be given, with key and value of int8, not None: the kernel for other "
        "keys is not simulated; call npu_fused_infer_attention_score, which has others", {}, NEW,
        Code.UNSUPPORTED),
    Row({"antiquant_scale": np.ones(3, F16)}, "antiquant_scale must have shape (2,) or (2, 2, 32) "
        "with input_layout BSND, not (3,); reshape it", {"antiquant_scale": np.ones(2, F16)}, NEW),
    Row({"antiquant_offset": np.ones(2, F16)}, f"antiquant_offset must be None, not an array of "
        f"float16 (2,): {OTHERS}", {}, NEW, Code.UNSUPPORTED),
    Row({"actual_seq_lengths": [1, 2, 3]}, "actual_seq_lengths must have 1 or 2 entries, one for "
        "each request, not 3; pass as many", {"actual_seq_lengths": [3]}, NEW),
    Row({"scale_value": np.inf}, "scale_value must be a finite number of fp32, not inf; pass 1 / "
        "sqrt(columns of a head), say", {}, NEW),
    Row({"query": np.ones((2, 3, 4, 32), F16)}, "query must have one token a request with key of "
        "int8, not 3: the kernel that takes more is not simulated; pass key and value of float16, "
        f"and no scales, to {FIRST}", {}, NEW, Code.UNSUPPORTED),
]  # fmt: skip


@on_each_line(ROWS)
def test_each_constraint(series: str, rows: list[Row]) -> None:
    for row in rows:
        assert_refused(OP, BASE | row.wrong, row, series)
        assert_accepted(OP, BASE | row.right, series)
