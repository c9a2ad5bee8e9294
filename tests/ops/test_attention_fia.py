"""FIA: its values bit for bit, near attention in float64, and how it splits its work."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from attention_calls import (
    A2,
    A3,
    OP,
    RELATIVE,
    specs_of,
    values,
)
from attention_layouts import by_request, float64_rows, layout_call
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_calls import BF16, assert_as_reference

from npusim import TensorSpec, devices, ops, run
from npusim.ops._attention.fia_tiling import Rows, Share, cost, schedule, split, tile_sizes
from npusim.ops._attention.oracle import row_sums

LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "NTD", "NTD_TND")
Array = NDArray[Any]


def hidden_of(call: dict[str, Any], queries: int, keys: int, *, counts: bool) -> Array:
    """Which keys the tokens of a request do not see, by the document's words.

    Where all requests have one token, and a place of their own for it, no mode *counts*.
    """
    rows, columns = np.arange(queries)[:, None], np.arange(keys)
    apart = keys - queries
    match call.get("sparse_mode", 0) if counts else 0:
        case 2:
            return columns > rows
        case 3:
            return columns > rows + apart
        case 4:
            before, after = call["pre_tokens"], call["next_tokens"]
            return (columns > rows + apart + after) | (columns < rows + apart - before)
    return np.zeros((queries, keys), np.bool_)


def assert_near_float64(call: dict[str, Any], every: Any, output: Array, dtype: Any) -> None:
    layout = call["input_layout"]
    outside = layout.partition("_")[2] or layout
    lengths = [q.shape[1] for q, _, _ in every]
    found = by_request(output, outside, lengths, call["num_heads"])
    counts = max(lengths) > 1 or "T" in layout
    for own, (q, k, v) in zip(found, every, strict=True):
        hidden = hidden_of(call, q.shape[1], k.shape[1], counts=counts)
        truth, _ = float64_rows(q, k, v, hidden, call["scale"])
        tolerance = RELATIVE[dtype] * max(1.0, float(np.abs(truth).max()))
        assert np.abs(own.astype(np.float64) - truth).max() <= tolerance


def test_sums_in_the_order_of_the_softmax_library() -> None:
    """600 numbers: the trees of 64 times 8, the next 64 on top, then 24 on the first of them."""
    p = np.random.default_rng(0).random((3, 600), np.float32)
    trees = p[:, :512].reshape(3, 64, 8)
    for _ in range(3):
        trees = trees[..., 0::2] + trees[..., 1::2]
    lanes = trees[..., 0] + p[:, 512:576]
    lanes[:, :24] = lanes[:, :24] + p[:, 576:]
    while lanes.shape[1] > 1:
        lanes = lanes[:, 0::2] + lanes[:, 1::2]
    assert row_sums(p).tolist() == lanes[:, 0].tolist()


# ---- properties ----

LENGTHS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1,), (1,)),
    ((1, 1, 1), (700, 0, 130)),
    ((40, 23), (100, 20)),
    ((17,), (300,)),
    ((5, 1, 9), (600, 256, 9)),
    ((3,), (513,)),
    ((70,), (61,)),
)
"""Query tokens and keys of each request."""


@draws(20)
@given(
    layout=st.sampled_from(LAYOUTS),
    lengths=st.sampled_from(LENGTHS),
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3), (6, 2), (5, 1)]),
    columns=st.sampled_from([16, 64, 80, 128, 272]),
    dtype=st.sampled_from([np.float16, BF16]),
    device=st.sampled_from([A2, A3]),
    mode=st.sampled_from([0, 2, 3, 4]),
    has_lse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    layout: str,
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    device: str,
    mode: int,
    has_lse: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    more: dict[str, Any] = {"sparse_mode": mode, "softmax_lse_flag": has_lse}
    if mode == 4:
        more |= {"pre_tokens": int(rng.integers(0, 90)), "next_tokens": int(rng.integers(-20, 90))}
    call, every = layout_call(rng, layout, lengths, heads, columns, dtype, **more)
    found = values(call, device)
    kept = [own for own in every if own[1].shape[1]]
    if len(kept) == len(every):
        assert_near_float64(call, every, found[0], dtype)


@draws(10)
@given(
    layout=st.sampled_from(["BSH", "BSND", "BNSD", "NTD"]),
    lengths=st.sampled_from([((1, 1), (700, 130)), ((9,), (300,)), ((40, 3), (100, 20))]),
    heads=st.sampled_from([(2, 1), (3, 3), (6, 2)]),
    columns=st.sampled_from([64, 128]),
    dtype=st.sampled_from([np.float16, BF16]),
    block_size=st.sampled_from([16, 48, 128, 512]),
    heads_first=st.booleans(),
    mode=st.sampled_from([0, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_keys_in_pages_equal_the_reference(
    layout: str,
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    block_size: int,
    heads_first: bool,
    mode: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    call, every = layout_call(
        rng, layout, lengths, heads, columns, dtype, block_size=block_size,
        heads_first=heads_first, sparse_mode=mode,
    )  # fmt: skip
    found = values(call)
    assert_near_float64(call, every, found[0], dtype)


SPLIT: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, int], int], ...] = (
    ("BSND", (1,), (9000,), (4, 1), 0),
    ("BNSD", (1, 1), (8500, 3000), (4, 2), 3),
    ("BSH", (3,), (5000,), (8, 1), 3),
    ("BSND", (300,), (700,), (2, 1), 4),
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("case", SPLIT)
def test_rows_that_cores_share_equal_the_reference(case: Any, dtype: Any) -> None:
    layout, queries, keys, heads, mode = case
    more = {"pre_tokens": 200, "next_tokens": -30} if mode == 4 else {}
    call, every = layout_call(
        np.random.default_rng(3), layout, (queries, keys), heads, 64, dtype, sparse_mode=mode,
        softmax_lse_flag=True, **more,
    )  # fmt: skip
    found = assert_as_reference(OP, device=A2, **call)
    assert found.plan is not None
    assert found.plan.pieces > 1
    assert_near_float64(call, every, found.output[0], dtype)


@pytest.mark.sample(1)
@pytest.mark.parametrize("block_size", [0, 16])
def test_heads_so_wide_that_not_all_rows_stay_in_l1(block_size: int) -> None:
    call, every = layout_call(
        np.random.default_rng(0), "BSND", ((150,), (200,)), (2, 1), 512, BF16,
        block_size=block_size, sparse_mode=3,
    )  # fmt: skip
    found = values(call)
    assert_near_float64(call, every, found[0], BF16)


def test_requests_without_keys_or_tokens_are_left_out() -> None:
    rng = np.random.default_rng(0)
    for layout, lengths in (("BSND", ((1, 1), (0, 0))), ("NTD", ((0, 3), (5, 7)))):
        call, _ = layout_call(rng, layout, lengths, (2, 1), 64, BF16, softmax_lse_flag=True)
        values(call)


@pytest.mark.parametrize(("heads", "keys"), [((64, 1), 2100), ((128, 1), 300)])
def test_many_heads_may_share_keys(heads: tuple[int, int], keys: int) -> None:
    rng = np.random.default_rng(0)
    call, every = layout_call(rng, "BSH", ((1, 2), (keys, 30)), heads, 64, BF16)
    found = values(call)
    assert_near_float64(call, every, found[0], BF16)


MASKS = ((20, 50), (1, 20, 50), (2, 20, 50), (1, 1, 20, 50), (2, 1, 20, 50))


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize(("layout", "dtype"), [("BSND", np.uint8), ("BNSD", np.bool_)])
def test_a_mask_hides_what_is_not_zero(shape: tuple[int, ...], layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    mask = rng.random(shape) < 0.3
    call, every = layout_call(rng, layout, ((20, 20), (50, 50)), (4, 2), 64, np.float16)
    found = values(call | {"atten_mask": mask.astype(dtype)})
    outputs = by_request(found[0], layout, (20, 20), 4)
    for own, (q, k, v), of in zip(outputs, every, range(2), strict=True):
        hidden = np.broadcast_to(mask.reshape(-1, 20, 50), (2, 20, 50))[of]
        truth, _ = float64_rows(q, k, v, hidden, call["scale"])
        assert np.abs(own.astype(np.float64) - truth).max() <= 2e-3


def test_single_tokens_have_rows_of_a_mask() -> None:
    rng = np.random.default_rng(1)
    call, _ = layout_call(rng, "BSH", ((1, 1), (50, 50)), (4, 1), 64, np.float16)
    mask = np.zeros((2, 50), np.uint8)
    mask[1, 10:] = 1
    found = values(call | {"atten_mask": mask})
    short = {"actual_seq_lengths_kv": [50, 10]}
    np.testing.assert_allclose(found[0], values(call | short)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
def test_rows_without_keys_are_the_mean_unless_they_are_corrected(layout: str) -> None:
    rng = np.random.default_rng(1)
    call, every = layout_call(rng, layout, ((20,), (50,)), (2, 1), 64, np.float16)
    mask = np.zeros((20, 50), np.uint8)
    mask[[3, 18]] = 1
    call |= {"atten_mask": mask, "softmax_lse_flag": True}
    plain, lse = values(call)
    corrected, corrected_lse = values(call | {"inner_precise": 2})
    for name, found in (("mean", plain), ("zero", corrected)):
        (rows,) = by_request(found, layout, (20,), 2)
        wanted = every[0][2].astype(np.float64).mean(axis=1) if name == "mean" else 0
        assert np.abs(rows[:, [3, 18]] - np.broadcast_to(wanted, (1, 64))).max() <= 2e-3
    assert np.isposinf(corrected_lse[0, :, [3, 18], 0]).all()
    assert not np.isinf(lse).any()


@pytest.mark.sample(1)
@pytest.mark.parametrize("layout", ["BSND", "BNSD", "NTD"])
def test_tokens_before_all_keys_give_zeros_and_no_sum(layout: str) -> None:
    rng = np.random.default_rng(1)
    call, _ = layout_call(
        rng, layout, ((600,), (70,)), (2, 1), 16, np.float16, sparse_mode=3, softmax_lse_flag=True
    )
    output, lse = values(call)
    (rows,) = by_request(output, layout, (600,), 2)
    assert not rows[:, :530].any()
    assert rows[:, 530:].any(axis=(0, 2)).all()
    per_token = lse[..., 0] if layout == "NTD" else lse[0, ..., 0].T
    assert np.isposinf(per_token[:530]).all()
    assert np.isfinite(per_token[530:]).all()


def test_a_band_that_ends_before_it_begins_hides_all() -> None:
    rng = np.random.default_rng(1)
    more = {"sparse_mode": 4, "pre_tokens": 0, "next_tokens": -4, "softmax_lse_flag": True}
    call, _ = layout_call(rng, "BSND", ((38,), (105,)), (2, 1), 64, np.float16, **more)
    output, lse = values(call)
    assert not output.any()
    assert np.isposinf(lse).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 65504.0])
def test_special_numbers_equal_the_reference(number: float) -> None:
    rng = np.random.default_rng(0)
    call, _ = layout_call(rng, "BSND", ((3,), (600,)), (2, 1), 64, np.float16, sparse_mode=3)
    for name, place in (("query", (0, 1, 0, 3)), ("key", (0, 40, 0, 5)), ("value", (0, 530, 0, 7))):
        changed = call[name].copy()
        changed[place] = number
        values(call | {name: changed})


# ---- tiles ----


def attention_of(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    heads: tuple[int, int],
    layout: str = "BSND",
    **more: Any,
) -> Any:
    rng = np.random.default_rng(0)
    call, _ = layout_call(rng, layout, (queries, keys), heads, 16, np.float16, **more)
    return ops.load(OP).check(devices.load(A2), **specs_of(call)).attention


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "more", "sizes"),
    [
        (17, 9000, (4, 1), {}, (512, 512)),
        (1, 9000, (4, 1), {}, (8192, 32)),
        (1, 9000, (5, 1), {}, (4096, 64)),
        (1, 9000, (10, 1), {}, (2048, 128)),
        (1, 600, (4, 1), {}, (600, 256)),
        (2, 9000, (4, 1), {"sparse_mode": 3}, (1024, 256)),
        (1, 9000, (4, 1), {"sparse_mode": 3}, (8192, 32)),
        (1, 9000, (4, 1), {"layout": "NTD"}, (512, 512)),
        (1, 9000, (4, 1), {"block_size": 48}, (8160, 32)),
    ],
)
def test_sizes_of_tiles(
    queries: int, keys: int, heads: tuple[int, int], more: dict[str, Any], sizes: tuple[int, int]
) -> None:
    assert tile_sizes(Rows(attention_of((queries,), (keys,), heads, **more))) == sizes


@pytest.mark.parametrize(
    ("layout", "runs"),
    [
        ("BSND", [(1, 1, 2, 1), (2, 2, 0, 3), (4, 1, 0, 2)]),
        ("BNSD", [(5, 2, 0, 1), (0, 7, 1, 1)]),
    ],
)
def test_rows_come_token_by_token_or_head_by_head(layout: str, runs: Any) -> None:
    rows = Rows(attention_of((7,), (9,), (3, 1), layout))
    assert [tuple(run) for run in rows.runs(0, 5, 9)] == runs


# ---- cores ----


def test_cost_of_a_tile() -> None:
    assert [cost(1, 1), cost(16, 64), cost(17, 65), cost(512, 512)] == [16, 16, 32, 272]


def test_cores_take_heads_then_rows_then_tiles() -> None:
    """Two heads of three rows of tiles: halves of heads are too much, so rows are split."""
    head = [[10, 10], [10, 10, 10], [10]]
    assert split([head, head], 2) == [
        [Share(0, 0, 0, 2), Share(0, 1, 0, 3), Share(0, 2, 0, 1)],
        [Share(1, 0, 0, 2), Share(1, 1, 0, 3), Share(1, 2, 0, 1)],
    ]
    assert split([head, head], 4) == [
        [Share(0, 0, 0, 2), Share(0, 1, 0, 1)],
        [Share(0, 1, 1, 3), Share(0, 2, 0, 1)],
        [Share(1, 0, 0, 2), Share(1, 1, 0, 1)],
        [Share(1, 1, 1, 3), Share(1, 2, 0, 1)],
    ]


@draws(100)
@given(
    heads=st.lists(
        st.lists(st.lists(st.integers(16, 300), max_size=6), min_size=1, max_size=5),
        min_size=1,
        max_size=6,
    ),
    cores=st.integers(1, 24),
)
def test_every_tile_has_one_core(heads: list[list[list[int]]], cores: int) -> None:
    tiles = [
        (head, row, tile)
        for head, rows in enumerate(heads)
        for row, own in enumerate(rows)
        for tile in range(len(own))
    ]
    shares = split(heads, cores)
    found = [
        (share.head, share.row, tile)
        for core in shares
        for share in core
        for tile in range(share.first, share.last)
    ]
    assert found == tiles
    assert all(shares)
    assert len(shares) <= cores


def test_one_long_request_is_split_over_all_cores() -> None:
    plan = schedule(attention_of((1,), (65536,), (4, 1)), 24)
    assert [[piece.last - piece.first for piece in core] for core in plan.cores] == [[1]] * 8
    assert plan.pieces == 8
    # Its four rows are one part, which one vector core puts together.
    assert [len(parts) for parts in plan.combined] == [1] + [0] * 15


@pytest.mark.parametrize(
    ("keys", "tiles"),
    [
        (1024, {(0, 512, 0, 1), (512, 512, 0, 2)}),
        # One key more, so that each block of rows needs one tile more.
        (1025, {(0, 512, 0, 2), (512, 512, 0, 3)}),
    ],
)
def test_causal_rows_have_tiles_up_to_their_last_key(keys: int, tiles: set[Any]) -> None:
    a = attention_of((1024,), (keys,), (1, 1), sparse_mode=3)
    pieces = (piece for core in schedule(a, 24).cores for piece in core)
    assert {tuple(piece.row_tile[2:]) for piece in pieces} == tiles


# ---- time ----


def test_the_plan_is_plain_numbers() -> None:
    rng = np.random.default_rng(0)
    call, _ = layout_call(rng, "BSND", ((17,), (1030,)), (1, 1), 32, BF16)
    found = run(OP, **specs_of(call), device=A2).to_json()["plan"]
    assert found["template"] == "FIA"
    own = {"tile_rows": 512, "tile_keys": 512, "pieces": 3, "streams_keys": False}
    assert {name: found[name] for name in own} == own
    assert json.dumps(found)


def test_keys_of_long_decoding_pass_the_l2_by() -> None:
    def plan_of(layout: str, keys: int) -> Any:
        shape = (8, 1, keys, 128) if layout == "BNSD" else (8, keys, 1, 128)
        key = TensorSpec(shape, "bfloat16")
        query = (8, 4, 1, 128) if layout == "BNSD" else (8, 1, 4, 128)
        return run(
            OP, TensorSpec(query, "bfloat16"), key, key, num_heads=4, num_key_value_heads=1,
            scale=0.1, input_layout=layout, device=A2, timing=False,
        ).plan  # fmt: skip

    assert plan_of("BNSD", 256).streams_keys
    assert not plan_of("BSND", 256).streams_keys
    assert plan_of("BSND", 65536).streams_keys
