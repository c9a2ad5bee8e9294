"""FIA-MLA: attention to latent keys, whose sums are scaled by their exponents in global memory."""

from __future__ import annotations

import re
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

from npusim import OpError, devices, ops, run
from npusim.ops._attention.fia_sizes import tile_sizes
from npusim.ops.npu_fused_infer_attention_score_v2 import NAMES as SECOND

F16 = np.float16
Lengths = tuple[int, ...]
LAYOUTS = ("BSH", "BSND", "BNSD", "TND", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD", "TND_NTD")
LENGTHS: tuple[tuple[Lengths, Lengths], ...] = (
    ((1,), (200,)),
    ((1, 1, 1), (1100, 5, 0)),
    ((2, 4), (900, 70)),
    ((3, 3), (30, 2)),
)


def decode(
    seed: int, layout: str, lengths: tuple[Lengths, Lengths], heads: int, **more: Any
) -> Any:
    """A call, and what each request has; bf16 in pages of 128 unless *more* says otherwise."""
    own: dict[str, Any] = {"dtype": BF16, "block_size": 128} | more
    return rotated_call(np.random.default_rng(seed), layout, lengths, (heads, 1), 512, **own)


@pytest.mark.filterwarnings("ignore::npusim.DocumentWarning")
@draws(12)
@given(
    layout=st.sampled_from(LAYOUTS),
    lengths=st.sampled_from(LENGTHS),
    heads=st.sampled_from([1, 2, 16, 64, 128]),
    dtype=st.sampled_from([F16, BF16]),
    pages=st.sampled_from([(0, 3), (128, 3), (128, 4), (128, 5), (48, 4), (32, 5)]),
    mode=st.sampled_from([0, 3, 4]),
    device=st.sampled_from([A2, A3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    layout: str,
    lengths: tuple[Lengths, Lengths],
    heads: int,
    dtype: Any,
    pages: tuple[int, int],
    mode: int,
    device: str,
    seed: int,
) -> None:
    more = {"sparse_mode": mode, "softmax_lse_flag": True}
    if mode == 4:
        more |= {"pre_tokens": 600, "next_tokens": 1}
    size = {"block_size": pages[0], "dimensions": pages[1], "dtype": dtype}
    call, every = decode(seed, layout, lengths, heads, **size, **more)
    found = values(call, device)
    assert_all_same(found, reference(call, device))
    outer = layout.partition("_")[2] or layout
    output = found[0].swapaxes(0, 1) if outer == "NBSD" else found[0]
    own = by_request(output, "BNSD" if outer == "NBSD" else outer, lengths[0], heads)
    for (q, k, v), queries, keys, rows in zip(every, *lengths, own, strict=True):
        if mode == 4 and keys > 600:
            # What a token gets behind a tile that it sees nothing of is not what it should.
            continue
        hidden = hidden_of(call, queries, keys)
        truth, _ = float64_rows(q, k, v, hidden, call["scale"]) if keys else (0, None)
        limit = 4e-3 if dtype is F16 else 2e-2
        assert np.abs(rows.astype(np.float64) - truth).max() <= limit * 4


def test_sums_grow_with_the_largest_score() -> None:
    """Each tile has larger scores than those before: exponents move on, and little is lost."""
    call, ((q, k, v),) = decode(3, "BNSD_NBSD", ((1,), (2000,)), 16, dtype=F16, block_size=0)
    steps = np.repeat([0.0, 4.0, 9.0, 30.0], 500).astype(F16)
    call["query_rope"][..., :1] = 24
    call["key_rope"][..., :1] = steps[:, None]
    for x, part in ((q, "query_rope"), (k, "key_rope")):
        x[..., 512:] = call[part][0]
    found = values(call)
    assert_all_same(found, reference(call))
    truth, _ = float64_rows(q, k, v, np.zeros((1, 2000), np.bool_), call["scale"])
    assert np.abs(found[0][:, 0].astype(np.float64) - truth).max() <= 4e-3


def test_one_tile_and_a_key_give_its_value() -> None:
    call, ((_, _, v),) = decode(0, "TND", ((2,), (1,)), 4, sparse_mode=0)
    assert (values(call)[0] == v[0, 0]).all()


def test_what_exceeds_all_products_becomes_zero() -> None:
    """Beyond 1e10 is what an exponent leaves that has wrapped."""
    call, _ = decode(0, "BNSD", ((1,), (1,)), 1, block_size=0)
    for name in ("key", "value"):
        call[name] = np.resize(np.array([2e9, 3e10, -3e10, 1], BF16), (1, 1, 1, 512))
    call["query"] = np.zeros_like(call["query"])
    call["query_rope"] = np.zeros_like(call["query_rope"])
    assert values(call)[0].reshape(-1)[:4].tolist() == [BF16(2e9), 0, 0, 1]


def test_keys_of_a_row_may_be_shared_by_cores() -> None:
    call, _ = decode(1, "BSND_NBSD", ((1,), (6000,)), 16, dimensions=5, softmax_lse_flag=True)
    found = run(OP, **call, device=A2, timing=False)
    assert found.plan is not None
    assert found.plan.pieces > 1
    assert_all_same(found.output, reference(call))


@pytest.mark.filterwarnings("ignore::npusim.DocumentWarning")
@pytest.mark.parametrize(
    ("queries", "keys", "sizes"),
    [
        ((1,), (4096,), (512, 256)),
        ((1,), (100,), (100, 256)),
        ((2,) * 12, (600,) * 12, (512, 128)),
        ((2,) * 12, (600,) * 11 + (9,), (512, 256)),
        ((4,) * 16, (600,) * 16, (512, 256)),
        ((2,) * 48, (600,) * 48, (512, 256)),
    ],
)
def test_rows_of_a_tile_share_requests_of_equal_length(
    queries: Lengths, keys: Lengths, sizes: tuple[int, int]
) -> None:
    """For 24 cores: 12 requests of 2 x 128 rows are 24 tiles of 128."""
    call, _ = decode(0, "TND", (queries, keys), 128)
    found = tile_sizes(ops.load(OP).check(devices.load(A2), **specs_of(call)).attention, 24)
    assert (found.keys, found.rows) == sizes


@pytest.mark.filterwarnings("ignore::npusim.data.errors.DocumentWarning")
def test_the_second_version_is_the_same() -> None:
    call, _ = decode(5, "TND_NTD", ((2, 1), (300, 20)), 16, sparse_mode=3, softmax_lse_flag=True)
    own = {SECOND.get(name, name): value for name, value in call.items()}
    found = run(f"{OP}_v2", **own, device=A2, timing=False).output
    assert_all_same(found, values(call))


def test_the_plan_names_the_kernel_and_why() -> None:
    call, _ = decode(0, "BNSD_NBSD", ((1, 1), (900, 70)), 16)
    found = run(OP, **specs_of(call), device=A2)
    assert found.plan is not None
    assert (found.template, found.plan.reason.partition(";")[0]) == (
        "FIA-MLA",
        "keys are latent: 512 columns and a rotated part",
    )


def test_a_template_that_cannot_take_latent_keys_is_refused() -> None:
    call, _ = decode(0, "BNSD_NBSD", ((1,), (70,)), 16)
    with pytest.raises(OpError, match=re.escape("'FIA' can run only if keys are not latent;")):
        run(OP, **call, device=A2, template="FIA")
