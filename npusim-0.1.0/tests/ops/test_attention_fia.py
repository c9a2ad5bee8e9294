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
    reference,
    specs_of,
    values,
)
from attention_layouts import by_request, float64_rows, layout_call
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_calls import BF16, assert_all_same

from npusim import TensorSpec, devices, ops, run
from npusim.ops._attention.fia_tiling import Rows, Share, cost, schedule, split, tile_sizes
from npusim.ops._attention.oracle_sums import row_sums

TURNED = ("NTD", "NTD_TND", "BSH_BNSD", "BSND_BNSD")
"""Layouts that take heads of 64 and of 128 columns."""
LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", *TURNED)
DOCUMENT = "ignore:npu_fused_infer_attention_score. by the document:UserWarning"
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
    counts = max(lengths) > 1 or layout not in ("BSH", "BSND", "BNSD")
    for own, (q, k, v) in zip(found, every, strict=True):
        hidden = hidden_of(call, q.shape[1], k.shape[1], counts=counts)
        truth, _ = float64_rows(q, k, v, hidden, call["scale"])
        tolerance = RELATIVE[dtype] * max(1.0, float(np.abs(truth).max()))
        assert np.abs(own.astype(np.float64) - truth).max() <= tolerance


def test_sums_are_added_up_in_the_order_of_the_softmax_library() -> None:
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


@pytest.mark.filterwarnings(DOCUMENT)
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
        before = int(rng.integers(0, 90))
        after = int(rng.integers(max(-20, -before), 90))
        more |= {"pre_tokens": before, "next_tokens": after}
    if layout in TURNED:
        columns = 64 if columns < 80 else 128
    call, every = layout_call(rng, layout, lengths, heads, columns, dtype, **more)
    found = values(call, device)
    assert_all_same(found, reference(call, device))
    kept = [own for own in every if own[1].shape[1]]
    if len(kept) == len(every):
        assert_near_float64(call, every, found[0], dtype)


@pytest.mark.filterwarnings(DOCUMENT)
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
    assert_all_same(found, reference(call))
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
    found = run(OP, **call, device=A2, timing=False)
    assert found.plan is not None
    assert found.plan.pieces > 1
    assert_all_same(found.output, reference(call))
    assert_near_float64(call, every, found.output[0], dtype)


@pytest.mark.sample(1)
@pytest.mark.filterwarnings(DOCUMENT)
@pytest.mark.parametrize("block_size", [0, 16])
def test_heads_so_wide_that_not_all_rows_stay_in_l1(block_size: int) -> None:
    call, every = layout_call(
        np.random.default_rng(0), "BSND", ((150,), (200,)), (2, 1), 512, BF16,
        block_size=block_size, sparse_mode=3,
    )  # fmt: skip
    found = values(call)
    assert_all_same(found, reference(call))
    assert_near_float64(call, every, found[0], BF16)


def test_requests_without_keys_or_tokens_are_left_out() -> None:
    rng = np.random.default_rng(0)
    for layout, lengths in (("BSND", ((1, 1), (0, 0))), ("NTD", ((0, 3), (5, 7)))):
        call, _ = layout_call(rng, layout, lengths, (2, 1), 64, BF16, softmax_lse_flag=True)
        assert_all_same(values(call), reference(call))


@pytest.mark.filterwarnings(DOCUMENT)
@pytest.mark.parametrize(("heads", "keys"), [((64, 1), 2100), ((128, 1), 300)])
def test_many_heads_may_share_keys(heads: tuple[int, int], keys: int) -> None:
    rng = np.random.default_rng(0)
    call, every = layout_call(rng, "BSH", ((1, 2), (keys, 30)), heads, 64, BF16)
    found = values(call)
    assert_all_same(found, reference(call))
    assert_near_float64(call, every, found[0], BF16)


MASKS = ((20, 50), (1, 20, 50), (2, 20, 50), (1, 1, 20, 50), (2, 1, 20, 50))


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize(("layout", "dtype"), [("BSND", np.uint8), ("BNSD", np.bool_)])
def test_a_mask_hides_what_is_not_zero(shape: tuple[int, ...], layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    mask = rng.random(shape) < 0.3
    call, every = layout_call(rng, layout, ((20, 20), (50, 50)), (4, 2), 64, np.float16)
    found = values(call | {"atten_mask": mask.astype(dtype)})
    assert_all_same(found, reference(call | {"atten_mask": mask.astype(dtype)}))
    outputs = by_request(found[0], layout, (20, 20), 4)
    for own, (q, k, v), of in zip(outputs, every, range(2), strict=True):
        hidden = np.broadcast_to(mask.reshape(-1, 20, 50), (2, 20, 50))[of]
        truth, _ = float64_rows(q, k, v, hidden, call["scale"])
        assert np.abs(own.astype(np.float64) - truth).max() <= 2e-3


def test_each_of_several_single_tokens_has_its_own_row_of_a_mask() -> None:
    rng = np.random.default_rng(1)
    call, _ = layout_call(rng, "BSH", ((1, 1), (50, 50)), (4, 1), 64, np.float16)
    mask = np.zeros((2, 50), np.uint8)
    mask[1, 10:] = 1
    found = values(call | {"atten_mask": mask})
    assert_all_same(found, reference(call | {"atten_mask": mask}))
    short = {"actual_seq_lengths_kv": [50, 10]}
    np.testing.assert_allclose(found[0], values(call | short)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.* by the document atten_mask must have a row:UserWarning")
@pytest.mark.parametrize("shape", [(25, 61), (1, 20, 50), (2, 33, 90), (2, 1, 20, 51)])
def test_a_mask_may_be_larger_than_tokens_and_keys(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    mask = (rng.random(shape) < 0.3).astype(np.uint8)
    exact = np.broadcast_to(mask, (*[2, 1][: mask.ndim - 2], *shape[-2:]))[..., :20, :50].copy()
    call, _ = layout_call(rng, "BSND", ((20, 20), (50, 50)), (4, 2), 64, np.float16)
    found = values(call | {"atten_mask": mask})
    assert_all_same(found, values(call | {"atten_mask": exact}))
    assert_all_same(found, reference(call | {"atten_mask": mask}))


def test_a_mask_goes_with_pages() -> None:
    """As many columns as whole blocks of the longest request, or as all blocks of the table."""
    rng = np.random.default_rng(1)
    lengths, more = ((20, 20), (150, 50)), {"block_size": 128}
    call, every = layout_call(rng, "BSH", lengths, (4, 2), 64, np.float16, **more)
    mask = (rng.random((2, 1, 20, 384)) < 0.3).astype(np.uint8)
    found = values(call | {"atten_mask": mask})
    assert_all_same(found, reference(call | {"atten_mask": mask}))
    for own, (q, k, v), hidden in zip(found[0], every, mask[:, 0], strict=True):
        truth, _ = float64_rows(q, k, v, hidden[:, : k.shape[1]].astype(np.bool_), call["scale"])
        by_head = own.reshape(20, 4, 64).swapaxes(0, 1)
        assert np.abs(by_head.astype(np.float64) - truth).max() <= 2e-3


@pytest.mark.filterwarnings("ignore:.* by the document atten_mask must have a row:UserWarning")
def test_a_mask_of_tokens_behind_each_other_has_rows_of_the_longest_request() -> None:
    rng = np.random.default_rng(1)
    call, every = layout_call(rng, "TND", ((20, 7), (50, 9)), (2, 2), 64, np.float16)
    mask = (rng.random((2, 22, 60)) < 0.3).astype(np.uint8)
    found = values(call | {"atten_mask": mask})
    assert_all_same(found, reference(call | {"atten_mask": mask}))
    outputs = by_request(found[0], "TND", (20, 7), 2)
    for own, (q, k, v), of in zip(outputs, every, mask, strict=True):
        hidden = of[: q.shape[1], : k.shape[1]].astype(np.bool_)
        truth, _ = float64_rows(q, k, v, hidden, call["scale"])
        assert np.abs(own.astype(np.float64) - truth).max() <= 2e-3


def test_lengths_beyond_those_of_the_requests_are_not_read() -> None:
    call, _ = layout_call(
        np.random.default_rng(1), "BSND", ((6, 3), (50, 20)), (2, 1), 64, np.float16
    )
    more = {"actual_seq_lengths": [6, 3, 99], "actual_seq_lengths_kv": [50, 20, 77, -0]}
    assert_all_same(values(call | more), values(call))


def tiles_of(
    tokens: int, keys: int, rows: int, columns: int, band: tuple[int, int]
) -> tuple[Array, Array]:
    """Keys that lie in tiles which *band*, before and behind, leaves out; tokens that it clears.

    A tile has *rows* tokens and *columns* keys.
    """
    before, after = band
    outside = np.ones((tokens, keys), np.bool_)
    for first in range(0, tokens, rows):
        last = min(first + rows, tokens) - 1
        for start in range(0, keys, columns):
            end = min(start + columns, keys) - 1
            if first - before <= end and last + after >= start:
                outside[first : last + 1, start : end + 1] = False
    every = np.arange(tokens)
    return outside, (every < -after) | (every >= tokens + before)


BANDS = ((0, 0), (100, 0), (-3, 700), (600, -520), (2**31 - 1, 5))


@pytest.mark.sample(4)
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(
    ("layout", "heads", "lengths", "sizes"),
    [
        ("BNSD", (1, 1), (1100, 1030), (512, 512)),
        ("BSND", (2, 1), (700, 1100), (256, 512)),
        ("BSND", (2, 1), (10, 9000), (16, 8192)),
    ],
)
def test_with_a_mask_of_its_own_a_call_chooses_tiles_by_its_band(
    layout: str,
    heads: tuple[int, int],
    lengths: tuple[int, int],
    sizes: tuple[int, int],
    band: tuple[int, int],
) -> None:
    """Within a tile the mask alone hides."""
    tokens, keys = lengths
    rng = np.random.default_rng(2)
    mask = rng.random(lengths) < 0.5
    more = {"pre_tokens": band[0], "next_tokens": band[1], "softmax_lse_flag": True}
    call, every = layout_call(rng, layout, ((tokens,), (keys,)), heads, 16, np.float16, **more)
    call["atten_mask"] = mask.astype(np.uint8)
    output, lse = values(call)
    assert_all_same((output, lse), reference(call))
    outside, cleared = tiles_of(tokens, keys, *sizes, band)
    truth, sees = float64_rows(*every[0], mask | outside, call["scale"])
    for token in np.nonzero(~sees & ~outside.all(axis=1))[0]:
        # All that it sees of its tiles is hidden, and so alike.
        seen = every[0][2][0, ~outside[token]]
        truth[:, token] = seen.astype(np.float64).mean(axis=0)
    truth[:, cleared] = 0
    (found,) = by_request(output, layout, (tokens,), heads[0])
    assert np.abs(found.astype(np.float64) - truth).max() <= 2e-3
    has_no_sum = outside.all(axis=1) | (~sees & (min(band) < 0))
    assert (np.isposinf(lse[0, 0, :, 0]) == has_no_sum).all()


def test_a_mask_that_hides_all_within_a_band_gives_means_and_no_sum() -> None:
    """Where a band begins after a token or ends before it, a sum of hidden keys is infinite."""
    rng = np.random.default_rng(2)
    call, every = layout_call(rng, "BSND", ((20,), (50,)), (2, 1), 64, np.float16)
    mask = np.zeros((20, 50), np.uint8)
    mask[[3, 18]] = 1
    call |= {"atten_mask": mask, "softmax_lse_flag": True, "next_tokens": -2}
    output, lse = values(call)
    assert_all_same((output, lse), reference(call))
    (rows,) = by_request(output, "BSND", (20,), 2)
    mean = every[0][2].astype(np.float64).mean(axis=1)
    assert np.abs(rows[:, [3, 18]] - np.broadcast_to(mean[:, None], (2, 2, 64))).max() <= 2e-3
    assert not rows[:, :2].any()
    assert np.nonzero(np.isposinf(lse[0, 0, :, 0]))[0].tolist() == [3, 18]


def test_tiles_outside_of_the_band_take_no_time() -> None:
    rng = np.random.default_rng(2)
    call, _ = layout_call(rng, "BNSD", ((2048,), (2048,)), (24, 24), 64, np.float16)
    call["atten_mask"] = np.zeros((2048, 2048), np.uint8)
    whole, narrow = (
        run(OP, **specs_of(call | more), device=A2).time_us
        for more in ({}, {"pre_tokens": 0, "next_tokens": 0})
    )
    assert whole is not None
    assert narrow is not None
    assert narrow < whole / 2


@pytest.mark.parametrize("layout", ["BSND", "BNSD"])
def test_rows_without_keys_are_the_mean_unless_they_are_corrected(layout: str) -> None:
    rng = np.random.default_rng(1)
    call, every = layout_call(rng, layout, ((20,), (50,)), (2, 1), 64, np.float16)
    mask = np.zeros((20, 50), np.uint8)
    mask[[3, 18]] = 1
    call |= {"atten_mask": mask, "softmax_lse_flag": True}
    plain, lse = values(call)
    corrected, corrected_lse = values(call | {"inner_precise": 2})
    assert_all_same((corrected, corrected_lse), reference(call | {"inner_precise": 2}))
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
        rng, layout, ((600,), (70,)), (2, 1), 64, np.float16, sparse_mode=3, softmax_lse_flag=True
    )
    output, lse = values(call)
    assert_all_same((output, lse), reference(call))
    (rows,) = by_request(output, layout, (600,), 2)
    assert not rows[:, :530].any()
    assert rows[:, 530:].any(axis=(0, 2)).all()
    per_token = lse[..., 0] if layout == "NTD" else lse[0, ..., 0].T
    assert np.isposinf(per_token[:530]).all()
    assert np.isfinite(per_token[530:]).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 65504.0])
def test_special_numbers_equal_the_reference(number: float) -> None:
    rng = np.random.default_rng(0)
    call, _ = layout_call(rng, "BSND", ((3,), (600,)), (2, 1), 64, np.float16, sparse_mode=3)
    for name, place in (("query", (0, 1, 0, 3)), ("key", (0, 40, 0, 5)), ("value", (0, 530, 0, 7))):
        changed = call[name].copy()
        changed[place] = number
        assert_all_same(values(call | {name: changed}), reference(call | {name: changed}))


# ---- tiles ----


def attention_of(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    heads: tuple[int, int],
    layout: str = "BSND",
    **more: Any,
) -> Any:
    rng = np.random.default_rng(0)
    call, _ = layout_call(rng, layout, (queries, keys), heads, 64, np.float16, **more)
    return ops.load(OP).check(devices.load(A2), **specs_of(call)).attention


@pytest.mark.filterwarnings(DOCUMENT)
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
    found = tile_sizes(attention_of((queries,), (keys,), heads, **more), 24)
    assert (found.keys, found.rows) == sizes


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


def test_causal_rows_have_tiles_up_to_their_last_key_only() -> None:
    a = attention_of((1024,), (1024,), (1, 1), sparse_mode=3)
    tiles = {tuple(piece.row_tile[2:]) for core in schedule(a, 24).cores for piece in core}
    assert tiles == {(0, 512, 0, 1), (512, 512, 0, 2)}


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


@pytest.mark.nightly
@pytest.mark.parametrize(("heads", "pages"), [((4, 4), False), ((4, 1), True)])
def test_large_calls_are_timed_soon(heads: tuple[int, int], pages: bool) -> None:
    from time import process_time

    more: dict[str, Any]
    if pages:
        query = TensorSpec((64, 1, heads[0] * 128), "bfloat16")
        keys = TensorSpec((64 * 128, 128, heads[1] * 128), "bfloat16")
        more = {"input_layout": "BSH", "block_table": TensorSpec((64, 128), "int32")}
        more |= {"actual_seq_lengths_kv": [16384] * 64, "block_size": 128}
    else:
        ends = [*range(3518, 3518 * 7, 3518), 24624]
        query = TensorSpec((heads[0], 24624, 128), "bfloat16")
        keys = TensorSpec((heads[1], 24624, 128), "bfloat16")
        more = {"input_layout": "NTD", "sparse_mode": 3}
        more |= {"atten_mask": TensorSpec((2048, 2048), "int8")}
        more |= {"actual_seq_lengths": ends, "actual_seq_lengths_kv": ends}
    begin = process_time()
    found = run(
        OP, query, keys, keys, num_heads=heads[0], num_key_value_heads=heads[1], scale=0.1,
        engine="compiled", device=A2, **more,
    )  # fmt: skip
    assert found.time_us is not None
    assert process_time() - begin < 20.0
