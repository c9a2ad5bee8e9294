"""Products fused with collectives: tiles, and which stage waits for which."""

from __future__ import annotations

import pytest

from npusim import devices
from npusim.collectives.pipelined import Fused, gathered_us, move, reduced_us, tiles
from npusim.collectives.times import Estimate

A2 = devices.load("Atlas A2")
KINDS: tuple[Fused, ...] = ("all_reduce", "all_gather", "reduce_scatter")


def of(start_us: float, moving_us: float) -> Estimate:
    return Estimate("staged", start_us, moving_us, start_us + moving_us)


@pytest.mark.parametrize("chip", ["Atlas A2", "Atlas A3", "Atlas 300I Duo"])
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_are_the_rows_in_whole_units_but_for_one(kind: Fused, chip: str) -> None:
    spec = devices.load(chip)
    for m in (1, 127, 500, 2048, 5416, 30_000):
        for n, k in ((1408, 6144), (8192, 512), (512, 8192)):
            for cards in (2, 4):
                cut = tiles(kind, m, n, k, cards, 2, spec)
                assert sum(cut) == m
                assert len(cut) <= 16
                assert sum(rows % 128 > 0 for rows in cut) <= 1
                assert all(rows > 0 for rows in cut)


def test_few_rows_are_not_cut_and_many_are() -> None:
    assert tiles("all_reduce", 256, 1408, 6144, 8, 2, A2) == (256,)
    assert len(tiles("all_reduce", 5416, 1408, 6144, 8, 2, A2)) > 2


def test_a_tile_moves_when_it_is_multiplied_and_the_links_are_free() -> None:
    # Products rule: only the last tile moves alone.
    assert reduced_us([10.0, 10.0], [of(1.0, 2.0)] * 2) == 23.0
    # Links rule: the first product stands alone before them.
    assert reduced_us([2.0, 2.0], [of(1.0, 10.0)] * 2) == 23.0
    # The start of each is before its bytes.
    assert reduced_us([2.0, 2.0], [of(10.0, 1.0)] * 2) == 23.0


def test_own_rows_are_multiplied_while_those_of_others_come() -> None:
    assert gathered_us(30.0, [4.0, 4.0], [of(1.0, 5.0)] * 2) == 38.0
    assert gathered_us(1.0, [4.0, 4.0], [of(1.0, 5.0)] * 2) == 15.0


def test_a_tile_that_waits_ready_starts_sooner() -> None:
    found = move("all_reduce", 8 << 20, 8, A2, 1)
    assert found.start_us == A2.links.prepared_us == 18.0
    assert found.time_us == found.start_us + found.moving_us
