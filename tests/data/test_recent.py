"""What is worked out when somebody asks is there again at once, as long as there is room."""

from __future__ import annotations

import gc

import pytest

from npusim.data import recent as module
from npusim.data.recent import recent


def length(value: list[int]) -> int:
    return len(value)


class Squares:
    found = 0

    def __init__(self, count: int) -> None:
        self.count = count

    @recent(length)
    def values(self) -> list[int]:
        """Squares of the first numbers."""
        Squares.found += 1
        return [number * number for number in range(self.count)]


@pytest.fixture(autouse=True)
def room_for_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ALL", module._Values(10))
    monkeypatch.setattr(Squares, "found", 0)


def test_the_oldest_values_go_and_are_found_again() -> None:
    a, b, c = Squares(4), Squares(5), Squares(3)
    first = a.values
    assert first == [0, 1, 4, 9]
    assert (a.values, b.values, Squares.found) == (first, [0, 1, 4, 9, 16], 2)
    assert a.values is first
    assert c.values == [0, 1, 4]  # a's go, and b's and c's stay
    assert Squares.found == 3
    assert (b.values, c.values, Squares.found) == ([0, 1, 4, 9, 16], [0, 1, 4], 3)
    assert a.values is not first
    assert (a.values, Squares.found) == (first, 4)


def test_the_last_value_stays_however_large_it_is() -> None:
    large = Squares(100)
    assert large.values is large.values
    assert Squares.found == 1


def test_owners_that_are_gone_take_no_room() -> None:
    for _ in range(5):
        assert Squares(6).values[-1] == 25
    gc.collect()
    last = Squares(4)
    assert last.values is last.values
    assert Squares.values.__doc__ == "Squares of the first numbers."
