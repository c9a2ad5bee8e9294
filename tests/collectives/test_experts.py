"""Tokens on their way to experts and back, against a loop over tokens."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import devices
from npusim.collectives import experts
from npusim.data.dtypes import Array

RANKS, EXPERTS, CHOSEN, COLUMNS = 4, 8, 3, 64
BFLOAT16: Any = ml_dtypes.bfloat16
TOKENS = (5, 1, 7, 4)


def drawn() -> tuple[list[Array], list[Array]]:
    """Tokens of each rank, and their experts."""
    draw = np.random.default_rng(5)
    xs = [draw.standard_normal((count, COLUMNS)).astype(BFLOAT16) for count in TOKENS]
    ids = [
        np.stack([draw.permutation(EXPERTS)[:CHOSEN] for _ in range(count)]).astype(np.int32)
        for count in TOKENS
    ]
    return xs, ids


@pytest.mark.parametrize("rank", range(RANKS))
def test_rows_come_by_expert_then_rank_then_token(rank: int) -> None:
    xs, ids = drawn()
    found = experts.dispatched(xs, ids, rank, EXPERTS)
    rows, sources, sums = [], [], []
    for expert in (2 * rank, 2 * rank + 1):
        for source in range(RANKS):
            for token in range(TOKENS[source]):
                for place in range(CHOSEN):
                    if ids[source][token, place] == expert:
                        rows.append(xs[source][token])
                        sources.append([source, token, place])
            sums.append(len(rows))
    assert found.rows.tobytes() == np.array(rows).tobytes()
    assert found.sources.tolist() == sources
    assert found.sums.tolist() == sums
    assert found.tokens.tolist() == [sums[3], sums[7] - sums[3]]
    assert found.scales.size == 0


def test_rows_are_quantised_by_127_over_their_maximum() -> None:
    xs = [np.array([[1.0, -0.5, 0.25] + [0.0] * 5, [0.0] * 8], np.float16)]
    ids = [np.array([[0], [0]], np.int32)]
    found = experts.dispatched(xs, ids, 0, 1, quantises=True)
    # 63.5 and 31.75: ties go to even. A row of zeros has NaNs, which become 0.
    assert found.rows.tolist() == [[127, -64, 32, 0, 0, 0, 0, 0], [0] * 8]
    assert found.scales.dtype == np.float32
    assert found.scales.tolist() == [float(np.float32(1) / np.float32(127)), 0.0]

    smooth = np.full((1, 8), 2.0, np.float32)
    smoothed = experts.dispatched(xs, ids, 0, 1, smooth, quantises=True)
    assert smoothed.rows.tolist() == found.rows.tolist()
    assert smoothed.scales[0] == np.float32(1) / (np.float32(127) / np.float32(2))


def test_combining_adds_in_fp32_in_the_order_of_places() -> None:
    draw = np.random.default_rng(6)
    rows = (draw.standard_normal((9, CHOSEN, COLUMNS)) * 50).astype(np.float16)
    weights = draw.random((9, CHOSEN)).astype(np.float32)
    shared = draw.standard_normal((9, COLUMNS)).astype(np.float16)
    found = experts.combined(rows, weights, shared)
    for token in range(9):
        for column in range(COLUMNS):
            total = np.float32(0)
            for place in range(CHOSEN):
                total += np.float32(rows[token, place, column]) * weights[token, place]
            total += np.float32(shared[token, column])
            assert found[token, column] == np.float16(total)


def test_a_card_alone_with_one_token_and_many_of_32_take_what_was_measured() -> None:
    chip = devices.load("Atlas A3")
    # us of DeepEP-Ascend at 8, 16 and 32 dies, 128 tokens of 7168, 8 experts each.
    measured = {8: (132, 126), 16: (139, 135), 32: (153, 151)}
    row, back = (
        experts.row_bytes(7168, size, has_scale=size == 1, has_source=size == 1) for size in (1, 2)
    )
    for cards, (there_us, back_us) in measured.items():
        assert experts.routing_us("dispatch", 1024 * row, cards, chip) == pytest.approx(
            there_us, rel=0.1
        )
        assert experts.routing_us("combine", 1024 * back, cards, chip) == pytest.approx(
            back_us, rel=0.1
        )
    assert experts.routing_us("dispatch", 8 * 6156, 32, chip) == pytest.approx(45.3, rel=0.1)
    assert experts.routing_us("combine", 8 * 12288, 32, chip) == pytest.approx(26.8, rel=0.1)


def test_a_wider_link_between_servers_moves_the_time() -> None:
    chip = devices.load("Atlas A2")
    wider = devices.changed(chip, {"links.servers.gather_bytes_per_s": "x1.25"})
    before, after = (
        experts.routing_us("dispatch", 1 << 24, 16, each, servers=2) for each in (chip, wider)
    )
    assert after == pytest.approx(before - (1 << 23) / 24.3e3 / 5)


def test_a_chip_without_the_kernels_is_refused() -> None:
    message = (
        "collectives: combine must run on Atlas A2 or Atlas A3, not on ascend310p3; take one of "
        "these"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        experts.routing_us("combine", 8, 2, devices.load("Atlas 300I Duo"))
