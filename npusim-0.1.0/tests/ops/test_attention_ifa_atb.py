"""IFA-ATB: attention to keys and values of int8 with offsets, bit for bit, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
from attention_calls import (
    A2,
    A3,
    OP,
    attention_call,
    float64_attention,
    reference,
    specs_of,
    values,
)
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, NEW, Row, assert_all_same, constraints

from npusim import Code, TensorSpec, run

F16 = np.float16
Lengths = tuple[int, ...]


def int8_call(
    seed: int,
    lengths: tuple[Lengths, Lengths],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    block_size: int,
    **more: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call as vllm-ascend makes it, and the same with keys and values in float64."""
    rng = np.random.default_rng(seed)
    call = attention_call(rng, *lengths, heads, columns, dtype, block_size, **more)
    real = dict(call)
    for name in ("key", "value"):
        wide = np.rint(call[name].astype(np.float32) * 50)
        call[name] = np.clip(wide, -128, 127).astype(np.int8)
        scale = rng.uniform(0.01, 0.03, (1, heads[1] * columns)).astype(np.float32)
        offset = rng.uniform(-3, 3, (1, heads[1] * columns)).astype(np.float32)
        call |= {f"{name}_antiquant_scale": scale, f"{name}_antiquant_offset": offset}
        real[name] = (call[name].astype(np.float64) + offset) * scale
    return call, real


LENGTHS: tuple[tuple[Lengths, Lengths], ...] = (
    ((1, 1, 1), (700, 3, 130)),
    ((200, 5), (200, 70)),
    ((40,), (1400,)),
    ((9, 3), (20, 1)),
    ((1, 1), (0, 40)),
)


@draws(12)
@given(
    lengths=st.sampled_from(LENGTHS),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 2)]),
    columns=st.sampled_from([32, 64, 96, 128]),
    dtype=st.sampled_from([F16, BF16]),
    block_size=st.sampled_from([32, 96, 128]),
    device=st.sampled_from([A2, A3]),
    mode=st.sampled_from([0, 3, 4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    lengths: tuple[Lengths, Lengths],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    block_size: int,
    device: str,
    mode: int,
    seed: int,
) -> None:
    more: dict[str, Any] = {"sparse_mode": mode}
    if mode == 0:
        more["atten_mask"] = None
    if mode == 4:
        more |= {"pre_tokens": 600, "next_tokens": 3}
    call, real = int8_call(seed, lengths, heads, columns, dtype, block_size, **more)
    found = values(call, device)
    assert_all_same(found, reference(call, device))
    truth = float64_attention(real, *lengths)
    limit = (4e-3 if dtype is F16 else 1.5e-2) * max(1.0, float(np.abs(truth).max()))
    assert np.abs(found[0].astype(np.float64) - truth).max() <= limit


def test_offsets_are_added_before_scales() -> None:
    """One key, so that its value comes back: (100 - 4) x 2."""
    call, _ = int8_call(0, ((1,), (1,)), (1, 1), 32, F16, 32)
    call["value"] = np.full_like(call["value"], 100)
    call["value_antiquant_offset"] = np.full((1, 32), -4, np.float32)
    call["value_antiquant_scale"] = np.full((1, 32), 2, np.float32)
    assert values(call)[0].tolist() == np.full((1, 1, 32), 192.0).tolist()


def test_scores_are_fp16() -> None:
    """What is beyond 65504 is infinite, and infinite less infinite is no number."""
    call, _ = int8_call(0, ((1,), (2,)), (1, 1), 32, F16, 32)
    call["query"] = np.full_like(call["query"], 200)
    for what, number in (("scale", 1), ("offset", 0)):
        call[f"key_antiquant_{what}"] = np.full((1, 32), number, np.float32)
    call["key"] = np.full_like(call["key"], 100)
    assert np.isnan(values(call)[0].astype(np.float32)).all()
    assert_all_same(values(call), reference(call))


def test_scales_and_offsets_of_both_may_come_as_one() -> None:
    call, _ = int8_call(1, ((1, 7), (130, 70)), (4, 2), 64, F16, 128)
    known = values(call)
    for what in ("scale", "offset"):
        apart = [call.pop(f"{name}_antiquant_{what}") for name in ("key", "value")]
        call[f"antiquant_{what}"] = np.concatenate(apart)
    assert_all_same(values(call), known)


def test_the_plan_names_the_kernel_and_why() -> None:
    call, _ = int8_call(1, ((1, 7), (600, 70)), (4, 2), 64, F16, 128)
    found = run(OP, **specs_of(call), device=A2)
    assert found.plan is not None
    assert (found.template, found.plan.reason.partition(";")[0]) == (
        "IFA-ATB",
        "key and value are int8 with offsets",
    )
    assert (found.plan.tile_keys, found.plan.tile_rows, found.plan.pieces) == (256, 128, 0)


def test_dequantising_takes_its_time() -> None:
    """The same call of half the bytes a key is slower than that of fp16, which FAI takes."""
    call, _ = int8_call(1, ((1,) * 8, (1000,) * 8), (4, 1), 128, F16, 128)
    plain = {name: x for name, x in call.items() if "antiquant" not in name}
    plain |= {name: TensorSpec(call[name].shape, "float16") for name in ("key", "value")}
    times = [run(OP, **specs_of(each), device=A2).time_us for each in (call, plain)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] > times[1]


# ---- the contract ----

BASE, _ = int8_call(0, ((1, 2), (40, 9)), (4, 2), 32, F16, 32)

ROWS = [
    Row({"key_antiquant_offset": None}, "key_antiquant_offset must be given with key_antiquant_"
        "mode=0 and key_antiquant_scale of float32 on {series}, not None; pass a tensor", {}, NEW,
        Code.NULL_POINTER),
    Row({"key_antiquant_offset": np.ones((3, 32), np.float32)}, "scales must be one, or have the "
        "columns of heads, or with mode 1 the tokens of requests, not key_antiquant_offset (3, 32) "
        "in place of (1,), (1, 2, 32), (2, 32), (1, 64) or (64,); reshape it",
        {"key_antiquant_offset": np.ones((2, 32), np.float32)}, NEW, Code.TILING_ERROR),
    Row({"template": "IFA"}, "template 'IFA' can run only if key and value are int8 without "
        "offsets; leave it out to get the vendor's choice", {"template": "IFA-ATB"}, NEW),
]  # fmt: skip


test_each_constraint = constraints(OP, BASE, ROWS)
