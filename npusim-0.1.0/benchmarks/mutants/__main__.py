"""Change one place of npusim at a time, and see whether its narrow tests notice.

    python benchmarks/mutants [--only NAME] [--jobs 2] [--limit-s 300]

The changes are those of a table, realistic ones: off by one in a tile, a flag left out, a dropped
clear, a key without a part. Each is made in a copy of the tree, and the tests that the table names
run there, for a limited time; they must pass without the change. Printed is what caught each, and
of what survives where it is and what it becomes. Exits with 1 if more than MOST_SURVIVORS do.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from copies import HERE, Copy, Outcome
from mutant import Mutant, TableError, require_fitting
from table import MUTANTS

MOST_SURVIVORS = 5
UNCHANGED_S = 3600.0
"""How long all tests may take without a change."""


def chosen(only: str | None) -> tuple[Mutant, ...]:
    """All mutants, or the one called *only*."""
    found = tuple(mutant for mutant in MUTANTS if only in (None, mutant.name))
    if not found:
        raise SystemExit(
            f"mutants: --only must name a mutant, not {only}; the names are those of the table: "
            f"{', '.join(mutant.name for mutant in MUTANTS)}"
        )
    return found


@contextmanager
def copies_of_tree(count: int) -> Iterator[list[Copy]]:
    """*count* copies, which are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="npusim-mutants-") as folder:
        yield [Copy(Path(folder) / str(number)) for number in range(count)]


def require_passing(copy: Copy, mutants: Sequence[Mutant], jobs: int) -> None:
    """Refuse tests that fail without a change: they would catch everything."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    ended = copy.test(tests, UNCHANGED_S, "-n", str(jobs if len(tests) > 1 else 0))
    if ended.by:
        raise SystemExit(
            f"mutants: all tests must pass without a change, but {ended.by} does not; mend it "
            f"first:\n{ended.text}"
        )


def outcomes(
    mutants: Sequence[Mutant], copies: Sequence[Copy], limit_s: float
) -> Iterator[tuple[Mutant, Outcome]]:
    """What became of each of *mutants*, in their order; a copy has one at a time."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def tried(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            with copy.changed(mutant):
                return copy.test(mutant.tests, limit_s)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from zip(mutants, pool.map(tried, mutants), strict=True)


def described(mutant: Mutant) -> str:
    """Where *mutant* is, and what it changes."""
    before, after = (
        "".join(f"  {sign} {line}\n" for line in text.splitlines())
        for sign, text in (("-", mutant.text), ("+", mutant.becomes))
    )
    return f"  {mutant.path}:{mutant.line(HERE)}\n{before}{after}  {' '.join(mutant.tests)}"


def asked_for() -> argparse.Namespace:
    """What the command line asks for."""
    words = argparse.ArgumentParser(prog="mutants", description=__doc__.split("\n", 1)[0])
    words.add_argument("--only", metavar="NAME", help="one mutant of the table")
    words.add_argument("--jobs", type=int, default=1, help="how many are tried at a time")
    words.add_argument("--limit-s", type=float, default=300.0, help="for the tests of each")
    asked = words.parse_args()
    if asked.jobs < 1:
        words.error(f"--jobs must be 1 or more, not {asked.jobs}")
    return asked


def main() -> int:
    """Try what the command line asks for."""
    asked = asked_for()
    mutants = chosen(asked.only)
    try:
        require_fitting(mutants, HERE)
    except TableError as error:
        raise SystemExit(str(error)) from None
    survivors = 0
    with copies_of_tree(min(asked.jobs, len(mutants))) as copies:
        require_passing(copies[0], mutants, asked.jobs)
        for mutant, outcome in outcomes(mutants, copies, asked.limit_s):
            word = f"caught by {outcome.by}" if outcome.by else "SURVIVED"
            print(f"{mutant.name}: {word} ({outcome.seconds:.0f} s)", flush=True)
            if not outcome.by:
                survivors += 1
                print(described(mutant), flush=True)
    print(f"{len(mutants)} mutants, {survivors} survived")
    return int(survivors > MOST_SURVIVORS)


if __name__ == "__main__":
    raise SystemExit(main())
