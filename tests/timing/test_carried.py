"""What passes from launch to launch in the L2, against lines that are counted one by one."""

from __future__ import annotations

import numpy as np
from tiny import L2_BYTES

from npusim.data.json import Json
from npusim.devices.schema import DeviceSpec
from npusim.timing.memory import Arrival, CarriedL2
from npusim.timing.memory.l2 import AGES, NEVER, WHOLE, survival
from npusim.trace.left import UNTOUCHED, Left, Runs

LINE_BYTES = 128
LINES = L2_BYTES // LINE_BYTES


class OneByOne:
    """The same, line by line: when they were touched, and which of them are dirty."""

    def __init__(self) -> None:
        self.touched: dict[int, tuple[int, int]] = {}
        self.dirty: set[int] = set()
        self.launches = 0

    def age(self, line: int) -> int:
        """Lines that were touched later, in parts of what the L2 holds."""
        if line not in self.touched:
            return NEVER
        later = sum(other > self.touched[line] for other in self.touched.values())
        return later * AGES // LINES

    def launched(self, place: range, volumes: list[int], volume: int, is_stored: bool) -> None:
        gone = {x for x in self.dirty if self.age(x) * L2_BYTES // AGES + volume > L2_BYTES}
        self.dirty -= gone
        self.launches += 1
        for line, then in zip(place, volumes, strict=True):
            if then != UNTOUCHED:
                self.touched[line] = self.launches, then
                if is_stored and volume - then <= L2_BYTES:
                    self.dirty.add(line)


def summary(found: Arrival) -> Json:
    return {name: runs.each().tolist() for name, runs in found.tensors.items()}


def test_ages_and_dirty_lines_are_those_counted_one_by_one(tiny: DeviceSpec) -> None:
    rng = np.random.default_rng(0)
    carried, counted = CarriedL2(tiny), OneByOne()
    written = 0
    for _ in range(60):
        first = int(rng.integers(0, 90))
        place = range(first, first + int(rng.integers(1, 40)))
        volume = int(rng.choice([0, 2048, L2_BYTES, 3 * L2_BYTES]))
        volumes = np.sort(rng.integers(UNTOUCHED, volume + 1, len(place)))[:: rng.choice([-1, 1])]
        is_stored = bool(rng.integers(2))
        stored = {"y"} if is_stored else set()
        carried.launched({"y": place}, Left({"y": Runs.of(volumes)}, volume), stored)
        counted.launched(place, volumes.tolist(), volume, is_stored)
        found = carried.found({"all": range(140)})
        oldest = survival(tiny.l2.ways).size - 1
        ages = [counted.age(line) for line in range(140)]
        expected = [age if age < oldest else NEVER for age in ages]
        seen = [age if age < oldest else NEVER for age in found.tensors["all"].each().tolist()]
        assert seen == expected
        near = [x for x in counted.dirty if counted.age(x) <= AGES]
        assert sum(n for age, n in found.dirty if age <= AGES) == len(near) * LINE_BYTES
        old = [min(counted.age(x), oldest) for x in counted.dirty.difference(near)]
        there = sum(survival(tiny.l2.ways)[old]) / WHOLE
        assert found.dirty_bytes == (len(near) + round(there)) * LINE_BYTES
        written += not counted.dirty
        assert [age for age, _ in found.dirty] == sorted((x for x, _ in found.dirty), reverse=True)
    assert 0 < written < 60
    assert summary(carried.found({"far": range(500, 503)})) == {"far": [NEVER] * 3}


def test_what_is_found_alike_has_one_digest(tiny: DeviceSpec) -> None:
    digests = []
    for start in (0, 1000):
        carried = CarriedL2(tiny)
        place = {"x": range(start, start + 4)}
        carried.launched(place, Left({"x": Runs.of(np.array([0, 0, 5, 5]))}, 9), {"x"})
        digests.append(carried.found(place).digest)
        digests.append(carried.found({"x": range(start + 1, start + 5)}).digest)
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]
