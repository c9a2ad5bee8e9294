"""Which rows are simulated where nobody asks for all."""

from __future__ import annotations

import pytest

from npusim.validation import Row, read, sample
from npusim.validation.samples import LONGEST_US, MOST_ROWS

KEPT = "npu_quantize"


def row(name: str, latency_us: float, family: str = "f", op: str = KEPT) -> Row:
    return Row(name, family, op, "Atlas A3", latency_us, m=3, n=64, x_dtype="bfloat16")


def names(rows: tuple[Row, ...]) -> str:
    return "".join(row.id for row in rows)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four rows of a family."""
    monkeypatch.setattr("npusim.validation.samples.MOST_ROWS", 4)


@pytest.mark.usefixtures("four")
def test_a_sample_lies_evenly_between_short_and_long_rows() -> None:
    times = {"c": 9.0, "a": 1.0, "g": 80.0, "b": 2.0, "f": 70.0, "d": 10.0, "e": 11.0}
    rows = [row(name, us) for name, us in times.items()]

    # The first, third, fifth and last by time, in the order of the file.
    assert names(sample(rows)) == "cage"
    assert sample(rows[::-1]) == sample(rows)[::-1]


@pytest.mark.usefixtures("four")
def test_each_family_has_its_own() -> None:
    rows = [row(f"{number}", number + 1.0, "fg"[number % 2]) for number in range(8)]
    assert sample(rows) == tuple(rows)


def test_long_rows_are_passed_over_but_for_the_shortest_of_a_family() -> None:
    rows = [row("a", LONGEST_US), row("b", LONGEST_US + 1), row("c", 9e4, "g"), row("d", 8e4, "g")]
    assert names(sample(rows)) == "ad"


@pytest.mark.usefixtures("four")
def test_what_is_not_modelled_costs_nothing_and_stays() -> None:
    rows = [row(name, us) for us, name in enumerate("abcde", 1)]
    assert (
        names(sample([*rows, row("x", 5e5, op="cumsum"), row("y", 1.0, op="cumprod")])) == "abcexy"
    )


def test_the_sample_of_what_ships_is_small_and_of_every_family() -> None:
    rows = read()
    found = sample(rows)

    assert {row.family for row in found} == {row.family for row in rows}
    timed = [row for row in found if row.op not in ("maximum",) and row.latency_us <= LONGEST_US]
    assert len(timed) <= MOST_ROWS * len({row.family for row in rows})
    assert [row.id for row in found] == [row.id for row in rows if row in set(found)]
