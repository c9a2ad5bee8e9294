"""Times of collectives: against real cards, and what makes them longer."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from npusim import collectives, devices
from npusim.collectives import Kind

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "collectives.py"
MIB = 1 << 20


def benchmark() -> Any:
    """benchmarks/collectives.py as a module."""
    spec = importlib.util.spec_from_file_location("collectives_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_medians_of_every_table_are_within_20_percent_from_1_mib_on_and_30_below() -> None:
    measured = benchmark()
    found = measured.rows()
    assert len(found) == 562
    page = (BENCHMARK.parents[1] / "docs" / "collectives.md").read_text("utf-8")
    for name in dict.fromkeys(row.table for row in found):
        cells = []
        for is_long, most in ((True, 0.2), (False, 0.3)):
            of = [row for row in found if row.table == name and row.is_long == is_long]
            error = measured.error(of)
            assert error < most, (name, is_long)
            cells.append(f"{100 * error:.1f} % of {len(of)}")
        # The page shows what the benchmark prints.
        assert f"| {cells[0]} | {cells[1]} |" in page.replace(" rows |", " |")


@pytest.mark.parametrize("kind", collectives.KINDS)
def test_twice_the_bandwidth_halves_what_bytes_take(kind: Kind) -> None:
    chip = devices.load("Atlas A2")
    rates = {
        f"links.{part}.{lane}_bytes_per_s": "x2"
        for part in ("staged.gather", "staged.reduce", "exchange")
        for lane in ("pair", "peer", "port")
    }
    before = collectives.estimate(kind, 64 * MIB, 8, chip)
    after = collectives.estimate(kind, 64 * MIB, 8, devices.changed(chip, rates))
    assert after.moving_us == pytest.approx(before.moving_us / 2)
    assert after.start_us == before.start_us
    assert after.time_us == pytest.approx(before.time_us - before.moving_us / 2)


def test_all_reduce_is_reduce_scatter_and_all_gather_of_its_slices() -> None:
    chip = devices.load("Atlas A2")
    whole = collectives.estimate("all_reduce", 64 * MIB, 8, chip)
    parts = [
        collectives.estimate(kind, 8 * MIB, 8, chip) for kind in ("reduce_scatter", "all_gather")
    ]
    assert whole.time_us == pytest.approx(sum(part.time_us for part in parts))


def test_a_mesh_of_8_by_hand() -> None:
    # Two phases of 10 tasks of 5 us; 7 slices of 8 MiB over 7 links of 17.9 and of 17 GB/s.
    slice_us = 8 * MIB / 17.9e3 + 8 * MIB / 17e3
    assert collectives.time_us("all_reduce", 64 * MIB, 8, "Atlas A2") == pytest.approx(
        100 + slice_us, rel=1e-6
    )


def test_two_servers_of_a_mesh_by_hand() -> None:
    # 8 MiB of a card's place: 4 MiB each way by RDMA, a step of 9.5 us for each phase.
    inside = collectives.time_us("all_reduce", 64 * MIB, 8, "Atlas A2")
    between_us = 2 * (9.5 + 4 * MIB / 24.3e3)
    assert collectives.time_us("all_reduce", 64 * MIB, 16, "Atlas A2") == pytest.approx(
        inside + between_us
    )


def test_cards_in_the_same_place_of_two_servers_have_no_mesh() -> None:
    apart = collectives.time_us("all_gather", MIB, 2, "Atlas A2", servers=2)
    assert apart == pytest.approx(9.5 + MIB / 24.3e3)
    chip = devices.load("Atlas A2")
    assert collectives.message_us(MIB, chip, is_beyond=True) == pytest.approx(apart)
    assert collectives.message_us(MIB, chip) == pytest.approx(1.1 + MIB / 20.9e3)


def test_a_ring_takes_a_step_for_each_other_card() -> None:
    chip = devices.load("Atlas 300I Duo")
    two, four = (collectives.estimate("all_reduce", MIB, cards, chip) for cards in (2, 4))
    assert (two.start_us, four.start_us) == pytest.approx((2 * 3.3, 6 * 3.3))


def test_short_slices_move_directly_and_long_ones_by_tasks() -> None:
    chip = devices.load("Atlas A3")
    for size_bytes, way in ((589_824, "direct"), (589_825, "staged")):
        assert collectives.estimate("all_gather", size_bytes, 8, chip).way == way
    for size_bytes, way in ((32_768, "direct"), (32_769, "staged")):
        assert collectives.estimate("all_gather", size_bytes, 32, chip).way == way


@pytest.mark.parametrize("chip", ["Atlas A2", "Atlas A3", "Atlas 300I Duo"])
@pytest.mark.parametrize("kind", collectives.KINDS)
def test_more_bytes_never_take_less_and_one_card_takes_nothing(kind: Kind, chip: str) -> None:
    for cards in (2, 4):
        times = [collectives.time_us(kind, 1 << power, cards, chip) for power in range(34)]
        assert times == sorted(times)
    assert collectives.time_us(kind, MIB, 1, chip) == 0
    assert collectives.time_us(kind, 0, 2, chip) == 0


REFUSED: dict[tuple[object, object, object, str], str] = {
    ("all_sum", 8, 2, "Atlas A2"): (
        "collectives: the kind must be one of all_reduce, all_gather, reduce_scatter, all_to_all, "
        "broadcast, not 'all_sum'; use one of these"
    ),
    ("all_reduce", -1, 2, "Atlas A2"): (
        "collectives: all_reduce: size_bytes must be a whole number from 0 on, not -1; pass the "
        "bytes of a card"
    ),
    ("all_reduce", 1.5, 2, "Atlas A2"): (
        "collectives: all_reduce: size_bytes must be a whole number from 0 on, not 1.5; pass the "
        "bytes of a card"
    ),
    ("all_gather", 8, 0, "Atlas A3"): (
        "collectives: all_gather: cards must be 1 to 768 on ascend910_9391, as many as its links "
        "join, not 0; take fewer, or another chip"
    ),
    ("all_gather", 8, 769, "Atlas A3"): (
        "collectives: all_gather: cards must be 1 to 768 on ascend910_9391, as many as its links "
        "join, not 769; take fewer, or another chip"
    ),
    ("all_gather", 8, 8, "Atlas 300I Duo"): (
        "collectives: all_gather: cards must be 1 to 4 on ascend310p3, as many as its links "
        "join, not 8; take fewer, or another chip"
    ),
    ("broadcast", 8, 9, "Atlas A2"): (
        "collectives: broadcast: cards must be as many in each server, up to 8 on ascend910b2, not "
        "9 in 2; take a multiple of the servers, or more of them"
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.items())
def test_what_cannot_take_part_is_refused(call: tuple[Kind, int, int, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        collectives.time_us(*call)
