"""Checks that a number of the chip that is changed a little moves no time against its direction.

    nice .venv/bin/python benchmarks/directions.py [--calls 200] [--seed 0] [--only NUMBER]
                                                   [--longest-us US] [-j N]

Each call is a measured kernel of `npusim validate`, drawn at random, on its chip and on one of
which one number is a little larger or smaller, by 0.1 to 5 %: a bandwidth, a latency, a clock, what
a micro-op or a launch costs. A memory that is faster must not lengthen the kernel, and a latency
that is longer must not shorten it, by more than TOLERANCE: whatever moves by more owes it to cores
that happen to march in step, or to who came first. Each such call gets a line; exits with 1 if
there are any. `--only` tries the call of that number again.

A call is drawn in a few milliseconds and timed as quickly as `npusim validate` times its row. Those
of which a source measured `--longest-us` and more are passed over.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from npusim import devices
from npusim.devices import changed
from npusim.devices.schema import DeviceSpec
from npusim.run.processes import answers
from npusim.validation import Row, read
from npusim.validation.calls import timed
from npusim.validation.timed import Call, NotModelledError

TOLERANCE = 0.01
"""By so much a time may move against its direction, as a share of it."""
CHANGES = 0.001, 0.05
"""The least and the most by which a number changes, as shares of it."""

SHORTENS = ("clock_hz", "bytes_per_cycle", "bytes_per_s", "tiles_per_cycle", "aliased_speed")
"""Ends of the names of numbers of which more is never slower."""
LENGTHENS = (
    *("_cycles", "_ns", "_us", "run_bytes"),
    *("cycles_per_repeat_16bit", "cycles_per_repeat_32bit"),
)
"""Ends of the names of numbers of which more is never faster."""
NEITHER = ("apart_us",)
"""Numbers that say how a chip works, and of which more is neither."""


class Change(NamedTuple):
    """A measured kernel, and what becomes of one number of its chip."""

    row: Row
    key: str
    factor: float

    def __str__(self) -> str:
        return f"{self.row.id} ({self.row.family}), {self.key} x {self.factor:.4f}"


class Times(NamedTuple):
    """Of one kernel, in microseconds."""

    before_us: float
    after_us: float

    def against(self, change: Change) -> float:
        """By which share the time moved against its direction; below 0 along with it."""
        moved = self.after_us / self.before_us - 1
        should_grow = (change.factor > 1) != _shortens(change.key)
        return -moved if should_grow else moved


def _shortens(key: str) -> bool:
    return key.endswith(SHORTENS)


def _has_a_direction(name: str) -> bool:
    return name.endswith((*SHORTENS, *LENGTHENS)) and name not in NEITHER


def numbers(spec: DeviceSpec) -> dict[str, float]:
    """Dotted key -> each number of the chip that has a direction, but those that are 0."""
    found: dict[str, float] = {}

    def walk(tree: Mapping[str, object], above: tuple[str, ...]) -> None:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, (*above, name))
            elif isinstance(value, int | float) and value and _has_a_direction(name):
                found[".".join((*above, name))] = value

    walk(spec.model_dump(exclude={"sources"}), ())
    return found


def changes(seed: int, longest_us: float) -> Iterator[Change]:
    """One call after the other; the same *seed* draws the same ones."""
    draw = random.Random(seed)
    rows = [row for row in read() if row.latency_us < longest_us and _is_a_call(row)]
    while True:
        row = draw.choice(rows)
        known = numbers(devices.load(row.device))
        table = draw.choice(list(dict.fromkeys(key.partition(".")[0] for key in known)))
        key = draw.choice([key for key in known if key.startswith(f"{table}.")])
        share = draw.uniform(*CHANGES) * draw.choice((1, -1))
        value = known[key] * (1 + share)
        if isinstance(known[key], int):
            value = round(value)
        # Of a few cycles none is a part.
        if value != known[key]:
            yield Change(row, key, value / known[key])


def _is_a_call(row: Row) -> bool:
    try:
        return all(isinstance(kernel, Call) for kernel in timed(row))
    except NotModelledError:
        return False


def times(change: Change) -> Times:
    """The times of a kernel on its chip, and on the changed one."""
    spec = devices.load(change.row.device)
    before = numbers(spec)[change.key]
    value = before * change.factor
    other = changed(spec, {change.key: round(value) if isinstance(before, int) else value})
    found = []
    for chip in (spec, other):
        calls = (replace(call, device=chip) for call in timed(change.row) if isinstance(call, Call))
        found.append(sum(call.time_us() for call in calls))
    return Times(*found)


def main(words: list[str] | None = None) -> int:
    """Try calls, and print what moves against its direction; returns how many there are."""
    parser = argparse.ArgumentParser(description="Change numbers of chips a little.")
    parser.add_argument("--calls", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="the call of this number")
    parser.add_argument("--longest-us", type=float, default=1000.0, metavar="US")
    parser.add_argument("-j", "--jobs", type=int, metavar="N")
    options = parser.parse_args(words)
    drawn = dict(enumerate(islice(changes(options.seed, options.longest_us), options.calls)))
    if options.only is not None:
        drawn = {options.only: drawn[options.only]}
    found, worst = 0, 0.0
    for number, answer in answers(times, drawn, options.jobs):
        against = answer.against(drawn[number])
        worst = max(worst, against)
        if against > TOLERANCE or options.only is not None:
            found += against > TOLERANCE
            took = f"{answer.before_us:.2f} us, then {answer.after_us:.2f} us"
            print(f"{number}: {drawn[number]}: {took}, {against:+.2%} against its direction")
    print(
        f"seed {options.seed}: {len(drawn)} calls, {found} against their direction by more than "
        f"{TOLERANCE:.0%}, the worst by {worst:.2%}"
    )
    return found


if __name__ == "__main__":
    sys.exit(bool(main()))
