"""npu_apply_rotary_pos_emb: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from chips import THREE
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, NEW, Row, assert_all_same, constraints

from npusim import TensorSpec, devices, ops, run

OP = "npu_apply_rotary_pos_emb"
A2, OLD_CHIP = "ascend910b2", "ascend310p3"


def turned(*tensors: Any, device: str = A2, **more: Any) -> Any:
    return run(OP, *tensors, device=device, timing=False, **more).output


# ---- values ----


def padded(words: list[int], dtype: Any) -> Any:
    """A vector of 64 numbers, of which each half begins with four of *words*."""
    row = np.zeros(64, np.uint16)
    row[:4], row[32:36] = words[:4], words[4:]
    return row.view(dtype).reshape(1, 1, 1, 64)


def test_bfloat16_rounds_ties_away_from_zero() -> None:
    """1.015625 x 1.25 = 1.26953125 lies between 3fa2 and 3fa3; npu_rotary_mul takes the former."""
    x, cos = (padded([word] * 8, BF16) for word in (0x3F82, 0x3FA0))
    sin = np.zeros_like(x)
    query, key = turned(x, x, cos, sin)
    assert {f"{word:04x}" for word in query.view(np.uint16).ravel()} == {"3fa3", "0000"}
    assert np.array_equal(query.view(np.uint16), key.view(np.uint16))
    nearest = run("npu_rotary_mul", x, cos, sin, device=A2, timing=False).output
    assert {f"{word:04x}" for word in nearest.view(np.uint16).ravel()} == {"3fa2", "0000"}


@pytest.mark.parametrize("device", [A2, OLD_CHIP])
def test_float16_rounds_each_step(device: str) -> None:
    x = padded([0x3C00, 0xC100, 0x3555, 0x4700, 0x3C0A, 0x9F2B, 0x429A, 0x5640], np.float16)
    cos = padded([0x3BA5, 0x3853, 0xB01F, 0xB9E6] * 2, np.float16)
    sin = padded([0x34BA, 0x3ABB, 0x3BEF, 0x3967] * 2, np.float16)
    query, _ = turned(x, x, cos, sin, device=device)
    words = [f"{word:04x}" for word in query.view(np.uint16).ravel()]
    assert words[:4] == ["3942", "bd62", "c2a2", "d48b"]
    assert words[32:36] == ["3d0a", "c037", "ae0c", "d450"]


@draws(30)
@given(
    device=st.sampled_from(THREE),
    tokens=st.sampled_from([(1, 1), (2, 3), (1, 47), (3, 40), (1, 400)]),
    heads=st.tuples(st.sampled_from([1, 4, 33]), st.sampled_from([1, 2])),
    width=st.sampled_from([64, 128]),
    dtype=st.sampled_from([np.float16, BF16, np.float32]),
    is_tnd=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str,
    tokens: tuple[int, int],
    heads: tuple[int, int],
    width: int,
    dtype: Any,
    is_tnd: bool,
    seed: int,
) -> None:
    if device == OLD_CHIP and dtype is BF16:
        dtype = np.float32
    front = tokens[1:] if is_tnd else tokens
    rng = np.random.default_rng(seed)
    given = [
        (rng.standard_normal((*front, count, width)) * 10).astype(dtype) for count in (*heads, 1, 1)
    ]
    special = [np.nan, np.inf, -np.inf, -0.0, 6e4][seed % 5]
    for array in given:
        array.reshape(-1)[seed % array.size] = np.array(special, dtype)
    layout = "TND" if is_tnd else "BSND"
    reference = ops.load(OP).reference(*given, layout, spec=devices.load(device))
    assert_all_same(turned(*given, device=device, layout=layout), reference)


@pytest.mark.parametrize(
    ("device", "dtype", "tokens", "heads", "template"),
    [
        (A2, "bfloat16", 48, 40, "small"),
        (A2, "bfloat16", 49, 40, "ab_cast"),
        (A2, "float16", 480, 9, "ab"),
        (OLD_CHIP, "float16", 8, 40, "small"),
    ],
)
def test_the_template(device: str, dtype: str, tokens: int, heads: int, template: str) -> None:
    x, line = (TensorSpec((tokens, count, 128), dtype) for count in (heads, 1))
    found = run(OP, x, line, line, line, "TND", device=device)
    assert found.template == template


# ---- what is refused ----


BASE = {
    "query": ones(2, 3, 4, 64), "key": ones(2, 3, 1, 64),
    "cos": ones(2, 3, 1, 64), "sin": ones(2, 3, 1, 64),
}  # fmt: skip
FLAT = {name: ones(6, 1, 64) for name in BASE}
NARROW = {name: ones(2, 3, 1, 32) for name in BASE}
EMPTY = {name: ones(0, 3, 1, 64) for name in BASE}

ROWS = [
    Row(FLAT, "query must have 4 dimensions in layout BSND, not 3; reshape it",
        FLAT | {"layout": "TND"}),
    Row(NARROW, "query must have a last dimension of 64 or 128, not 32; pad or cut it, or use "
        "npu_rotary_mul"),
    Row(EMPTY, "query and key must have elements, not shapes (0, 3, 1, 64) and (0, 3, 1, 64); "
        "leave the call out"),
    Row({"key": ones(2, 2, 1, 64)},
        "key must have shape (2, 3, key_heads, 64) like query, not (2, 2, 1, 64); pass one "
        "of that shape"),
    Row({"cos": ones(1, 3, 1, 64)},
        "cos must have shape (2, 3, 1, 64) like query, not (1, 3, 1, 64); pass one of that "
        "shape"),
    Row({"query": ones(2, 3, 900, 64, dtype=np.float32), "key": ones(2, 3, 1, 64, dtype=np.float32),
        "cos": ones(2, 3, 1, 64, dtype=np.float32), "sin": ones(2, 3, 1, 64, dtype=np.float32)},
        "query and key must have so few heads that a token's 901 fit, with room to work, into the "
        "196352 bytes of the unified buffer, not need 923136; split the heads over several calls",
        lines=NEW),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)
