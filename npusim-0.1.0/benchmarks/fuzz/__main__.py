"""Draw calls, device files, run folders and programs, and report what ends as nothing should.

    python benchmarks/fuzz [--seconds 600] [--cases N] [--seed 0] [--only calls] [--case N]

A case must end in a result or in one of npusim's own refusals, whose message can be shown. Anything
else is a finding: a bare traceback, a process that ends, no end within a minute, values that are
not those of the operator's reference. Each case follows from the seed and its number alone, so that
`--only AREA --case N` tries one again. Exits with 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from calls import call
from device_files import device_file
from outcome import Case, Outcome, outcome_of
from programs import program
from run_folders import make, run_folder

MEMORY_BYTES = 8 << 30
"""What a case may take of memory."""
MAX_SHOWN = 20
Draw = Callable[[np.random.Generator], Case]


class Ended(NamedTuple):
    """A case that was tried."""

    number: int
    text: str
    outcome: Outcome


def draws(area: str, folder: Path) -> Draw:
    """What draws the cases of *area*, which keep their files in *folder*."""
    match area:
        case "calls":
            return call
        case "device_files":
            return lambda rng: device_file(rng, folder)
        case "run_folders":
            right = folder / "right"
            if not right.exists():
                make(right)
            return lambda rng: run_folder(rng, right, folder / "damaged")
        case "programs":
            return program
        case _:
            raise SystemExit(f"fuzz: the area must be one of {', '.join(AREAS)}, not {area}")


AREAS = ("calls", "device_files", "run_folders", "programs")


def try_case(area: str, seed: int, number: int, draw: Draw) -> Ended:
    """Draw case *number* and run it."""
    case = draw(np.random.default_rng([seed, AREAS.index(area), number]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Ended(number, case.text, outcome_of(case))


def work(
    area: str, seed: int, numbers: range, until_s: float, folder: Path, to: Connection
) -> None:
    """Try the cases of *numbers*, until the process has taken *until_s* of its processor."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    draw = draws(area, folder)
    for number in numbers:
        if time.process_time() > until_s:
            break
        to.send(number)
        to.send((try_case(area, seed, number, draw), time.process_time()))
    to.send(None)


def run_area(
    area: str, seed: int, cases: int, seconds: float, folder: Path
) -> tuple[Counter[str], list[Ended]]:
    """Try *cases* of *area*, or as many as take *seconds*; a process that ends is a finding."""
    counts: Counter[str] = Counter()
    findings: list[Ended] = []
    first, left_s = 0, seconds
    while left_s > 0 and first < cases:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        # Processor time counts from the start of the child.
        child = multiprocessing.get_context("fork").Process(
            target=work, args=(area, seed, range(first, cases), left_s, folder, theirs)
        )
        child.start()
        theirs.close()
        spent_s = 0.0
        try:
            while (word := ours.recv()) is not None:
                if isinstance(word, int):
                    first = word
                    continue
                ended, spent_s = word
                counts[ended.outcome.kind] += 1
                if ended.outcome.kind == "finding":
                    findings.append(ended)
            left_s = 0
        except EOFError:
            child.join()
            if child.exitcode == 1:
                raise SystemExit(f"fuzz: case {first} of {area} could not be drawn") from None
            died = Outcome("finding", f"the process ended with exit code {child.exitcode}")
            counts["finding"] += 1
            findings.append(Ended(first, "draw it again to see what it is", died))
            first, left_s = first + 1, left_s - max(spent_s, 0.1)
        child.join()
    return counts, findings


def show(area: str, counts: Counter[str], findings: list[Ended]) -> None:
    """Print what came of *area*: each kind of finding once, with the number of a case."""
    tried = sum(counts.values())
    print(
        f"{area:13} {tried:6} cases: {counts['result']} results, {counts['refusal']} refusals, "
        f"{counts['finding']} findings",
        flush=True,
    )
    shown: set[str] = set()
    for ended in findings:
        where = "\n".join(ended.outcome.text.splitlines()[-4:])
        if where not in shown and len(shown) < MAX_SHOWN:
            shown.add(where)
            print(f"  case {ended.number}: {ended.text[:2000]}")
            print("    " + where.replace("\n", "\n    "))


def main() -> int:
    """Run what the command line asks for."""
    words = argparse.ArgumentParser(prog="fuzz", description=__doc__.split("\n", 1)[0])
    words.add_argument("--seconds", type=float, default=600, help="processor time in all")
    words.add_argument("--cases", type=int, default=10**9, help="at most, of each area")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", choices=AREAS, help="one area")
    words.add_argument("--case", type=int, help="one case of it, whose number was printed")
    asked = words.parse_args()
    areas = (asked.only,) if asked.only else AREAS
    found = 0
    with tempfile.TemporaryDirectory(prefix="npusim-fuzz-") as name:
        folder = Path(name)
        if asked.case is not None:
            ended = try_case(areas[0], asked.seed, asked.case, draws(areas[0], folder))
            print(f"{ended.outcome.kind}: {ended.text}\n{ended.outcome.text}")
            return int(ended.outcome.kind == "finding")
        for area in areas:
            counts, findings = run_area(
                area, asked.seed, asked.cases, asked.seconds / len(areas), folder
            )
            show(area, counts, findings)
            found += counts["finding"]
    print(f"seed {asked.seed}: {found} findings")
    return int(found > 0)


if __name__ == "__main__":
    raise SystemExit(main())
