"""FIA of heads with rotated parts, of 192 columns with values of 128, and of caches in fractals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_calls import A2, A3, OP, reference, specs_of, values
from attention_layouts import by_request, float64_rows
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, assert_all_same
from rotated_calls import hidden_of, rotated_call

from npusim import run

F16 = np.float16
Lengths = tuple[int, ...]
LAYOUTS = ("BSH", "BSND", "BNSD", "TND", "NTD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "NTD_TND")
LENGTHS: tuple[tuple[Lengths, Lengths], ...] = (
    ((5, 3), (30, 3)),
    ((20, 7), (300, 7)),
    ((1, 1), (1100, 0)),
    ((515,), (540,)),
)


@pytest.mark.filterwarnings("ignore::npusim.DocumentWarning")
@draws(12)
@given(
    layout=st.sampled_from(LAYOUTS),
    lengths=st.sampled_from(LENGTHS),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2)]),
    dtype=st.sampled_from([F16, BF16]),
    pages=st.sampled_from([(0, 3), (128, 3), (128, 4), (128, 5), (48, 5)]),
    mode=st.sampled_from([0, 3, 4]),
    device=st.sampled_from([A2, A3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    layout: str,
    lengths: tuple[Lengths, Lengths],
    heads: tuple[int, int],
    dtype: Any,
    pages: tuple[int, int],
    mode: int,
    device: str,
    seed: int,
) -> None:
    more = {"sparse_mode": mode, "softmax_lse_flag": True}
    if mode == 4:
        more |= {"pre_tokens": 40, "next_tokens": 1}
    size = {"block_size": pages[0], "dimensions": pages[1]}
    rng = np.random.default_rng(seed)
    call, every = rotated_call(rng, layout, lengths, heads, 128, dtype, **size, **more)
    found = values(call, device)
    assert_all_same(found, reference(call, device))
    outer = layout.partition("_")[2] or layout
    own = by_request(found[0], outer, lengths[0], heads[0])
    for (q, k, v), queries, keys, rows in zip(every, *lengths, own, strict=True):
        hidden = hidden_of(call, queries, keys)
        truth, _ = float64_rows(q, k, v, hidden, call["scale"]) if keys else (np.zeros(1), None)
        assert np.abs(rows.astype(np.float64) - truth).max() <= (4e-3 if dtype is F16 else 2e-2)


@pytest.mark.parametrize("layout", ["TND", "BSND", "BNSD"])
def test_rotated_parts_may_be_columns_of_the_heads(layout: str) -> None:
    """The cube adds up the columns in the same order."""
    rng = np.random.default_rng(0)
    lengths = (20, 7), (300, 9)
    call, _ = rotated_call(rng, layout, lengths, (4, 2), 128, BF16, sparse_mode=3)
    joined = {
        name: np.concatenate([call[name], call[f"{name}_rope"]], axis=-1)
        for name in ("query", "key")
    }
    behind = call | joined | {"query_rope": None, "key_rope": None}
    assert_all_same(values(call), values(behind))
    assert_all_same(values(behind), reference(behind))


@pytest.mark.filterwarnings("ignore::npusim.data.errors.DocumentWarning")
@pytest.mark.parametrize("columns", [64, 128])
def test_a_cache_in_fractals_is_that_of_heads_first(columns: int) -> None:
    rng = np.random.default_rng(1)
    lengths = (20, 7), (300, 9)
    size = {"block_size": 128, "dimensions": 5, "sparse_mode": 3}
    call, _ = rotated_call(rng, "BNSD", lengths, (4, 2), columns, BF16, **size)
    call |= {"query_rope": None, "key_rope": None}
    plain = {
        name: call[name].swapaxes(2, 3).reshape(*call[name].shape[:2], 128, columns).copy()
        for name in ("key", "value")
    }
    assert_all_same(values(call), values(call | plain))
    assert_all_same(values(call), reference(call))


def test_rotated_parts_take_their_time() -> None:
    rng = np.random.default_rng(2)
    call, _ = rotated_call(rng, "TND", ((600,), (600,)), (4, 4), 128, BF16, sparse_mode=3)
    plain = {name: x for name, x in call.items() if "rope" not in name}
    found = [run(OP, **specs_of(each), device=A2) for each in (call, plain | {"template": "FIA"})]
    assert [each.template for each in found] == ["FIA", "FIA"]
    times = [each.time_us for each in found]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] > times[1]
