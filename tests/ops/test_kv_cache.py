"""Tokens written into the pages of a cache: what comes out, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, OLD, Row, assert_all_same, constraints

from npusim import Tensor, TensorSpec, ops, run
from npusim.isa import Store

SCATTER, RESHAPE = "npu_scatter_pa_kv_cache", "npu_reshape_and_cache"
A2, A3, OLD_CHIP = "ascend910b2", "ascend910_9391", "ascend310p3"


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return rng.integers(-99, 99, shape).astype(dtype)


# ---- values ----


def test_a_token_goes_to_its_page() -> None:
    key = np.arange(8, dtype=np.int8).reshape(2, 1, 4)
    cache, slots = np.full((2, 3, 1, 4), -1, np.int8), np.int32([4, -1])
    found, _ = run(SCATTER, key, key, cache, cache, slots, cache_mode="Norm", device=A2).output
    # Slot 4 is token 1 of page 1; the second token is left out.
    assert found[1, 1, 0].tolist() == [0, 1, 2, 3]
    assert (found == -1).sum() == 20
    assert (cache == -1).all()


@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
@pytest.mark.parametrize("tokens", [1, 17, 1003])
def test_slots_of_64_bits_are_those_of_32(tokens: int, mode: str, rng: np.random.Generator) -> None:
    shape = (1010, 4, 2, 32) if mode == "Norm" else (1010, 4, 4, 16)
    key, cache = numbers(rng, (tokens, 2, 32), np.float16), numbers(rng, shape, np.float16)
    slots = rng.permutation(4040)[:tokens]
    slots[tokens // 2 :: 5] = -1
    found = [
        run(SCATTER, key, -key, cache, cache, slots.astype(kind), cache_mode=mode, device=A2)
        for kind in (np.int32, np.int64)
    ]
    for narrow, wide in zip(*(done.output for done in found), strict=True):
        np.testing.assert_array_equal(narrow, wide)
    # A line of the scalar unit's cache holds half as many.
    assert found[0].time_us <= found[1].time_us


def test_in_fractals_a_token_is_spread_over_its_page() -> None:
    key = np.arange(32, dtype=np.float16).reshape(1, 2, 16)
    cache = np.zeros((1, 2, 4, 16), np.float16)
    found, _ = run(SCATTER, key, key, cache, cache, np.int32([3]), device=A2).output
    assert found[0, 0, 3].tolist() == list(range(16))
    assert found[0, 1, 3].tolist() == list(range(16, 32))
    assert not found[:, :, :3].any()


@draws(30)
@given(
    chip=st.sampled_from([(SCATTER, A2), (SCATTER, A3), (RESHAPE, A2), (RESHAPE, OLD_CHIP)]),
    tokens=st.sampled_from([0, 1, 5, 61, 1003]),
    heads=st.sampled_from([1, 2, 8]),
    widths=st.tuples(*[st.sampled_from([32, 64, 96])] * 2),
    is_nz=st.booleans(),
    is_odd=st.booleans(),
    dtypes=st.sampled_from(
        [
            (np.float16, np.float16),
            (BF16, BF16),
            (np.int8, np.int8),
            (np.int8, np.float16),
            (np.int8, BF16),
            (BF16, np.float16),
        ]
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    chip: tuple[str, str],
    tokens: int,
    heads: int,
    widths: tuple[int, int],
    is_nz: bool,
    is_odd: bool,
    dtypes: tuple[Any, Any],
    seed: int,
) -> None:
    op, device = chip
    if not is_nz:
        dtypes = dtypes[0], dtypes[0]
    if device == OLD_CHIP:
        dtypes = tuple(np.float16 if dtype is BF16 else dtype for dtype in dtypes)
    if is_odd and not is_nz and device != OLD_CHIP:
        widths = widths[0] - 3, widths[1] + 1
    rng = np.random.default_rng(seed)
    blocks, size, sides = tokens // 16 + 2, 16, list(zip(widths, dtypes, strict=True))
    given: list[Any] = [numbers(rng, (tokens, heads, width), dtype) for width, dtype in sides]
    for width, dtype in sides:
        lanes = 32 // np.dtype(dtype).itemsize
        page = (heads * width // lanes, size, lanes) if is_nz else (size, heads, width)
        cache = numbers(rng, (blocks, *page), dtype)
        as_fractals = is_nz and (op == RESHAPE or seed % 2 == 1)
        given.append(Tensor.of(cache, "FRACTAL_NZ") if as_fractals else cache)
    slots = rng.permutation(blocks * size)[:tokens].astype(np.int32)
    slots[rng.random(tokens) < 0.2] = -1
    more = {"cache_mode": "PA_NZ" if is_nz else "Norm"} if op == SCATTER else {}
    found = run(op, *given, slots, device=device, timing=False, **more).output
    expected = ops.load(op).reference(*given, slots, **more)
    assert_all_same(tuple(map(plain, found)), tuple(map(plain, expected)))


def plain(cache: Any) -> Any:
    return cache.numpy() if isinstance(cache, Tensor) else cache


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("tokens", "width", "mode", "template"),
    [
        (16, 128, "Norm", "in_turn"),
        (1000, 128, "Norm", "pieces"),
        (16, 127, "Norm", "pieces"),
        (16, 128, "PA_NZ", "nz_in_turn"),
        (1000, 128, "PA_NZ", "nz_pieces"),
    ],
)
def test_the_template_and_first_slots_without_values(
    tokens: int, width: int, mode: str, template: str
) -> None:
    x = TensorSpec((tokens, 1, width), "float16")
    page = (128, 1, width) if mode == "Norm" else (width // 16, 128, 16)
    cache, slots = TensorSpec((8, *page), "float16"), TensorSpec((tokens,), "int32")
    found = run(SCATTER, x, x, cache, cache, slots, cache_mode=mode, device=A2)
    assert found.template == template
    assert found.trace is not None
    stores = [op for op in found.trace.lanes[0].program.ops if isinstance(op, Store)]
    assert str(stores[0].dst).startswith("key_cache+0 ")


# ---- what is refused ----


def slots(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


PAGES = {"key_cache": ones(2, 4, 1, 16), "value_cache": ones(2, 4, 1, 16)}
TOKENS = {"key": ones(2, 1, 16), "value": ones(2, 1, 16)}
BASE = TOKENS | PAGES | {"slot_mapping": slots(0, 1), "cache_mode": "Norm"}
OTHER = TOKENS | PAGES | {"slot_indices": slots(0, 1)}
OPEN = "which token is kept is open on a card; leave one of the tokens out with -1"
KEY_16 = "(blocks, block_size, 1, 16) for key of shape (2, 1, 16)"

ROWS = [
    Row({"key": ones(2, 16)},
        "key must have shape (tokens, heads, width), not (2, 16); pass one of that shape"),
    Row({name: ones(2, 0, 16) for name in ("key", "value")},
        "key must have heads and a width, not shape (2, 0, 16); leave the call out"),
    Row({"value": ones(3, 1, 16)},
        "value must have shape (2, 1, value_width) like key, not (3, 1, 16); pass one of "
        "that shape"),
    Row({"key_cache": ones(2, 4, 16)}, f"key_cache must have shape {KEY_16}, not (2, 4, 16); "
        "make it so"),
    Row({"value_cache": ones(2, 5, 1, 16)}, "value_cache must have the blocks of key_cache, 2 of "
        "4 tokens, not 2 of 5; make both alike"),
    Row({"cache_mode": "PA_NZ"}, "key_cache must have shape (blocks, 1, block_size, 16) for key of "
        "shape (2, 1, 16), not (2, 4, 1, 16); make it so"),
    Row({"slot_mapping": slots(0, 1).astype(np.int8)},
        "slot_mapping must be int32 or int64 on {series}, not int8; convert it",
        {"slot_mapping": slots(0, 1).astype(np.int64)}),
    Row({"slot_mapping": slots(0)},
        "slot_mapping must have shape (2,) like key, not (1,); pass one of that shape"),
    Row({"slot_mapping": slots(0, 8)}, "slot_mapping must name slots below 8, which the caches "
        "have, not 8; make the caches larger, or pass -1 to leave the token out",
        {"slot_mapping": slots(0, -1)}),
    Row({"slot_mapping": slots(7, 7)},
        f"slot_mapping must name each slot once, not 7 twice: {OPEN}",
        {"slot_mapping": slots(7, -1)}),
]  # fmt: skip
NZ_PAGES = {name: Tensor.of(ones(2, 1, 16, 16), "FRACTAL_NZ") for name in PAGES}
SMALL_PAGES = {name: Tensor.of(ones(2, 1, 8, 16), "FRACTAL_NZ") for name in PAGES}
NARROW = {"key": ones(2, 1, 8), "value": ones(2, 1, 8),
          "key_cache": ones(2, 4, 1, 8), "value_cache": ones(2, 4, 1, 8)}  # fmt: skip
RESHAPE_ROWS = [
    Row({"key_cache": NZ_PAGES["key_cache"]}, "value_cache must have the layout of key_cache, "
        "FRACTAL_NZ, not ND; pass one of them through npu_format_cast"),
    Row(SMALL_PAGES, "key_cache must have blocks of a multiple of 16 tokens in FRACTAL_NZ, not 8; "
        "choose other blocks"),
    Row(NARROW, "key must have tokens of whole blocks of 32 bytes on {series}, not 16 bytes; pad "
        "the width", lines=OLD),
]  # fmt: skip
test_each_constraint_of_scatter = constraints(SCATTER, BASE, ROWS)

test_each_constraint_of_reshape = constraints(RESHAPE, OTHER, RESHAPE_ROWS)
