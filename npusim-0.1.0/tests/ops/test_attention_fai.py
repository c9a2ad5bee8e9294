"""FAI: its values bit for bit, near attention in float64, and how it works on its tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import (
    A2,
    A3,
    KNOWN,
    KNOWN_LSE,
    OP,
    RELATIVE,
    STENCIL,
    attention_call,
    float64_attention,
    known_tensors,
    specs_of,
    values,
)
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, assert_all_same, assert_as_reference

from npusim import devices, ops, run
from npusim.ops._attention.fai_tiling import decode_tasks_of, heads_together, tasks_of, work_of

# ---- known numbers ----


@pytest.mark.parametrize("layout", ["TND", "BSND"])
@pytest.mark.parametrize("dtype", KNOWN)
def test_known_bits_of_two_heads(dtype: Any, layout: str) -> None:
    """FAI and FIA round differently, but not here."""
    query, key, value = known_tensors(dtype)
    call = {"query": query[None], "key": key[:, None], "value": value[:, None]}
    call |= {"actual_seq_lengths": [1], "actual_seq_lengths_kv": [600]}
    if layout == "BSND":
        call = {"query": query[None, None], "key": key[None, :, None]}
        call |= {"value": value[None, :, None]}
    more = {"num_heads": 2, "num_key_value_heads": 1, "scale": 0.25, "input_layout": layout}
    output, lse = values(call | more | {"softmax_lse_flag": True})
    found = output.reshape(2, 16)[:, :6].view(np.uint16)
    assert [" ".join(f"{bits:04X}" for bits in head) for head in found] == [*KNOWN[dtype]]
    assert lse.ravel().tolist() == KNOWN_LSE


# ---- properties ----

LENGTHS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (1,)),
    ((1, 1, 1), (700, 0, 130)),
    ((200, 37), (200, 37)),
    ((129,), (300,)),
    ((150,), (700,)),
    ((5, 1, 9), (600, 256, 9)),
    ((3,), (513,)),
)
"""Query tokens and keys of each request."""


@draws(25)
@given(
    lengths=st.sampled_from(LENGTHS),
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3), (6, 2), (5, 1)]),
    head_size=st.sampled_from([16, 64, 80, 128, 256]),
    dtype=st.sampled_from([np.float16, BF16]),
    block_size=st.sampled_from([0, 16, 48, 128, 512]),
    device=st.sampled_from([A2, A3]),
    is_causal=st.booleans(),
    has_lse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int],
    head_size: int,
    dtype: Any,
    block_size: int,
    device: str,
    is_causal: bool,
    has_lse: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    more = {} if is_causal else {"sparse_mode": 0, "atten_mask": None}
    more |= {"softmax_lse_flag": has_lse, "template": "FAI"}
    call = attention_call(rng, *lengths, heads, head_size, dtype, block_size, **more)
    found = values(call, device)
    truth = float64_attention(call, *lengths)
    tolerance = RELATIVE[dtype] * max(1.0, float(np.abs(truth).max()))
    assert np.abs(found[0].astype(np.float64) - truth).max() <= tolerance


@draws(12)
@given(
    lengths=st.sampled_from(LENGTHS),
    heads=st.sampled_from([1, 2, 3]),
    head_size=st.sampled_from([16, 64, 80, 128, 256]),
    block_size=st.sampled_from([0, 48, 128]),
    is_causal=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_with_high_performance_all_is_fp16(
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: int,
    head_size: int,
    block_size: int,
    is_causal: bool,
    seed: int,
) -> None:
    """inner_precise 1, where no query heads share keys."""
    rng = np.random.default_rng(seed)
    more = {} if is_causal else {"sparse_mode": 0, "atten_mask": None}
    more |= {"softmax_lse_flag": True, "inner_precise": 1}
    call = attention_call(rng, *lengths, (heads, heads), head_size, np.float16, block_size, **more)
    found = run(OP, **call, device=A2, timing=False)
    assert found.template == "FAI"
    assert_all_same(found.output, values(call))
    truth = float64_attention(call, *lengths)
    limit = 5e-3 * max(1.0, float(np.abs(truth).max()))
    assert np.abs(found.output[0].astype(np.float64) - truth).max() <= limit


def test_scores_of_fp16_overflow_with_high_performance() -> None:
    call = attention_call(np.random.default_rng(0), (1,), (2,), (1, 1), 32, np.float16)
    call |= {"query": np.full((1, 1, 32), 200, np.float16), "inner_precise": 1}
    call["key"] = np.full((2, 1, 32), 100, np.float16)
    assert np.isnan(values(call)[0].astype(np.float32)).all()
    values(call)
    assert np.isfinite(values(call | {"inner_precise": 0})[0].astype(np.float32)).all()


SPLIT: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], int], ...] = (
    ((1,), (2048,), (8, 1), 128),
    ((1,), (5000,), (4, 2), 64),
    ((1, 3), (1030, 4100), (4, 2), 128),
    ((16,), (1100,), (8, 1), 256),
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("case", SPLIT)
def test_split_keys_equal_the_reference(case: Any, dtype: Any) -> None:
    queries, keys, heads, head_size = case
    call = attention_call(
        np.random.default_rng(3), queries, keys, heads, head_size, dtype, 128, softmax_lse_flag=True
    )
    found = assert_as_reference(OP, device=A2, **call)
    assert found.template == "FAI-FD"
    truth = float64_attention(call, queries, keys)
    assert np.abs(found.output[0].astype(np.float64) - truth).max() <= RELATIVE[dtype]


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore:.* by the document at most 64 query heads:UserWarning")
@pytest.mark.parametrize(
    ("keys", "heads", "head_size"),
    [
        ((130,) * 24, (4, 2), 64),
        (tuple(range(500, 526)), (6, 3), 128),
        ((*(40,) * 24, 1100), (40, 5), 32),
        ((20,) * 40, (128, 1), 16),
    ],
)
def test_several_heads_of_keys_in_a_task_equal_the_reference(
    keys: tuple[int, ...], heads: tuple[int, int], head_size: int
) -> None:
    queries = (1,) * len(keys)
    call = attention_call(np.random.default_rng(7), queries, keys, heads, head_size, BF16, 128)
    call |= {"sparse_mode": 0, "atten_mask": None}
    found = assert_as_reference(OP, device=A2, **call)
    assert found.template == "FAI-DEC"
    truth = float64_attention(call, queries, keys)
    assert np.abs(found.output[0].astype(np.float64) - truth).max() <= RELATIVE[BF16]


@pytest.mark.sample(4)
@pytest.mark.parametrize("block_size", [0, 128])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "before", "after"),
    [
        ((200,), (200,), (2, 1), 100, 0),
        ((40,), (1400,), (2, 1), 700, 3),
        ((1, 5), (900, 1100), (4, 2), 300, 0),
        ((300,), (1300,), (1, 1), 20, 10),
        ((130,), (700,), (2, 2), 10**6, 50),
    ],
)
def test_bands_equal_the_reference(
    queries: Any, keys: Any, heads: Any, before: int, after: int, block_size: int
) -> None:
    rng, more = np.random.default_rng(5), {"pre_tokens": before, "next_tokens": after}
    call = attention_call(rng, queries, keys, heads, 32, np.float16, block_size, **more)
    call |= {"sparse_mode": 4, "softmax_lse_flag": True}
    found = values(call)
    truth = float64_attention(call, queries, keys)
    assert np.abs(found[0].astype(np.float64) - truth).max() <= 2e-3


@pytest.mark.sample(4)
@pytest.mark.parametrize("block_size", [0, 128])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "more"),
    [
        ((5, 3), (2, 9), (4, 2), {}),
        ((200, 1), (70, 5), (2, 1), {}),
        ((700,), (600,), (2, 2), {}),
        ((3000,), (70,), (1, 1), {}),
        ((10, 1), (4, 1100), (4, 1), {}),
        ((300,), (100,), (2, 1), {"sparse_mode": 4, "pre_tokens": -20, "next_tokens": 40}),
        ((300,), (300,), (1, 1), {"sparse_mode": 4, "pre_tokens": -20, "next_tokens": 40}),
        ((140,), (600,), (1, 1), {"sparse_mode": 4, "pre_tokens": 600, "next_tokens": -590}),
    ],
)
def test_tokens_that_see_no_key_give_zeros_and_no_sum(
    queries: Any, keys: Any, heads: Any, more: dict[str, Any], block_size: int
) -> None:
    rng = np.random.default_rng(5)
    call = attention_call(rng, queries, keys, heads, 32, np.float16, block_size, **more)
    output, lse = values(call | {"softmax_lse_flag": True})
    truth = float64_attention(call, queries, keys)
    sees_none = ~truth.any(axis=2)
    assert sees_none.any()
    assert not output[sees_none].any()
    assert (np.isposinf(lse[..., 0]) == sees_none).all()
    assert np.abs(output.astype(np.float64) - truth).max() <= 2e-3


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 65504.0])
def test_special_numbers_equal_the_reference(number: float) -> None:
    rng = np.random.default_rng(0)
    call = attention_call(rng, (3,), (600,), (2, 1), 64, np.float16)
    for name, place in (("query", (1, 0, 3)), ("key", (40, 0, 5)), ("value", (530, 0, 7))):
        changed = call[name].copy()
        changed[place] = number
        values(call | {name: changed})


def test_requests_without_keys_give_zeros_and_no_sum() -> None:
    call = attention_call(np.random.default_rng(0), (1, 1), (0, 16), (2, 1), 32, np.float16, 16)
    output, lse = values(call | {"softmax_lse_flag": True})
    assert not output[0].any()
    assert output[1].any()
    assert lse[0].ravel().tolist() == [np.inf, np.inf]


def test_a_mask_of_truths_is_taken() -> None:
    call = attention_call(np.random.default_rng(0), (20,), (20,), (1, 1), 16, np.float16)
    plain, truths = values(call), values(call | {"atten_mask": STENCIL.astype(np.bool_)})
    assert_all_same(truths, plain)


def test_without_the_flag_softmax_lse_is_one_zero() -> None:
    call = attention_call(np.random.default_rng(0), (2,), (9,), (1, 1), 16, np.float16)
    assert values(call)[1].tolist() == [0.0]


# ---- tasks ----


@pytest.mark.parametrize(
    ("tokens", "group", "heads"),
    [(1, 4, 4), (1, 200, 128), (2, 200, 64), (40, 8, 2), (43, 8, 2), (64, 8, 2), (65, 8, 1),
     (5000, 8, 1)],
)  # fmt: skip
def test_heads_of_a_task(tokens: int, group: int, heads: int) -> None:
    assert heads_together(tokens, group) == heads


def attention_of(queries: tuple[int, ...], keys: tuple[int, ...], heads: tuple[int, int]) -> Any:
    rng = np.random.default_rng(0)
    call = attention_call(rng, queries, keys, heads, 16, np.float16, 128)
    return ops.load(OP).check(devices.load(A2), **specs_of(call)).attention


def test_tasks_take_heads_before_blocks_before_requests() -> None:
    tasks = list(tasks_of(attention_of((200, 1), (700, 600), (4, 2))))
    places = [(task.request, task.token, task.head, task.form.heads) for task in tasks]
    blocks = [(0, token, head, 1) for token in (0, 128) for head in range(4)]
    assert places == [*blocks, (1, 0, 0, 2), (1, 0, 2, 2)]
    # The first block looks at keys up to that of its last token.
    assert [task.form.keys for task in tasks] == [*[628] * 4, *[700] * 4, 600, 600]


def test_a_core_takes_tiles_until_it_has_its_share() -> None:
    """32 heads of 8 of keys, 8192 keys: 10923 rows x keys a core, so six tiles of 4 x 512."""
    work = work_of(attention_of((1,), (8192,), (32, 8)), 24, "FAI-FD")
    tiles = [[len(list(task.form.tiles)) for task in tasks] for tasks in work.tasks]
    assert len(tiles) == 22
    assert tiles[:8] == [[6], [6], [4, 2], [6], [6], [2, 4], [6], [6]]
    assert [node.pieces for node in work.nodes[:3]] == [3, 4, 3]


def test_a_last_round_is_cut_into_heads() -> None:
    """25 tasks of 8 heads on 24 cores: the last one is cut; of 40 tasks the last 16 are not."""
    for requests, counts in ((25, [8] * 24 + [1] * 8), (40, [8] * 40)):
        a = attention_of((1,) * requests, (600,) * requests, (32, 8))
        assert [task.form.kv_heads for task in decode_tasks_of(a, 24)] == counts


@pytest.mark.parametrize(
    ("requests", "keys", "heads", "cores", "pieces"),
    [(4, 4096, (4, 1), 16, 4), (1, 2048, (8, 1), 4, 4)],
)
def test_cores_of_split_keys(
    requests: int, keys: int, heads: tuple[int, int], cores: int, pieces: int
) -> None:
    a = attention_of((1,) * requests, (keys,) * requests, heads)
    work = work_of(a, 24, "FAI-FD")
    assert len(work.tasks) == cores
    assert [node.pieces for node in work.nodes] == [pieces] * requests


# ---- time ----


def test_a_table_without_values_is_assumed_and_said_so() -> None:
    call = attention_call(np.random.default_rng(0), (1,) * 40, (300,) * 40, (4, 1), 64, BF16, 128)
    plan = run(OP, **specs_of(call), device=A2).plan
    assert plan is not None
    assert plan.reason == (
        "layout TND with sparse_mode 3; block_table has no values: blocks of the cache are taken "
        "to follow each other"
    )


def test_where_pages_lie_does_not_change_the_program() -> None:
    """Tiles of 512 keys share their micro-ops, whatever blocks they are in."""
    rng = np.random.default_rng(0)
    call = attention_call(rng, (1,) * 24, (2048,) * 24, (4, 1), 128, BF16, 128, template="FAI")
    other = call | {"block_table": np.sort(call["block_table"], axis=1)[:, ::-1].copy()}
    one, two = (run(OP, **each, device=A2, values=False) for each in (call, other))
    assert one.trace is not None
    assert two.trace is not None
    for lane, another in zip(one.trace.lanes, two.trace.lanes, strict=True):
        assert len(lane.program) == len(another.program)
        assert len(lane.program.leaves) == len(another.program.leaves)
