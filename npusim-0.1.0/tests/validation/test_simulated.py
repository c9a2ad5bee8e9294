"""The simulated times that ship: they are what the rows and the simulator give."""

from __future__ import annotations

from importlib.resources import files

import pytest

from npusim.validation import Result, measure, read, sample, simulated

AGAIN = "moved; run benchmarks/simulated_times.py --anew"
ROWS = read()
FAMILIES = sorted({row.family for row in ROWS})


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_those_of_the_sample(family: str) -> None:
    """A case a family, each in one process, so that several workers share them."""
    rows = sample(row for row in ROWS if row.family == family)
    shipped = simulated.times()
    for found in measure(rows, jobs=1):
        time_us = None if found.time_us is None else round(found.time_us, 4)
        assert shipped.get(found.row.id) == time_us, f"{found.row.id} {AGAIN}"


def test_the_file_says_what_follows_from_rows_and_times() -> None:
    text = (files("npusim.accuracy") / "simulated.csv").read_text(encoding="utf-8")
    assert simulated.content(ROWS, simulated.times()) == text


def test_results_have_the_times_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "times", lambda: {"m0623": 1.5, "m0624": 1.25})
    rows = [row for row in ROWS if row.id in ("m0623", "m0624")]
    assert simulated.results(rows) == (Result(rows[0], 1.5), Result(rows[1], 1.25))


def test_a_row_without_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "times", dict)
    rows = [row for row in ROWS if row.id in ("m0001", "m0967")]

    assert [(one.time_us, one.reason) for one in simulated.results(rows)] == [
        (None, "npusim can, but simulated.csv has no line of it"),
        (None, "mentioned in passing, as a sum or for a shape that is not exact"),
    ]
