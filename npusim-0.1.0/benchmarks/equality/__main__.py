"""Compare the results of random calls between the current tree and another checkout.

    python benchmarks/equality [--calls 2500] [--operators a,b] [--seed 0] [--only OPERATOR:NUMBER]
                               [--against PATH] [--baseline-cache FILE]

Both run the same calls, of every operator and template, on a chip of each product line. Compared
are the bits, types, shapes and layouts of all outputs, cycles, times, counters, launches, template
and reason, and of refused calls the error and its code. The other checkout is a worktree of the
commit BASELINE, made for the occasion, or PATH. A call follows from the seed and its name alone, so
that `--seed S --only NAME` tries it again; what is printed runs after `from described import
drawn`, from this folder. Exits with 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from calls import call_named, calls_of
from checkouts import HERE, Cache, Outcome, Runner, checkout_of, require_engine, version_of
from described import Call, text_of
from drawing import DEVICES, RECIPES

BASELINE = "5cd57f3"
"""The commit whose results hold."""
NOT_COMPARED = ("message", "cpu_s")
MAX_SHOWN = 20
PROGRESS_S = 20
"""Seconds between two lines about how far the runs are."""


def differences(ours: Outcome, theirs: Outcome) -> list[str]:
    """What differs between two outcomes of a call, a line each."""
    lines = [
        line
        for name in {**theirs, **ours}
        if name not in NOT_COMPARED
        for line in _apart(name, ours.get(name), theirs.get(name))
    ]
    if lines:
        messages = [outcome["message"] for outcome in (theirs, ours) if "message" in outcome]
        lines += [f"message: {message}" for message in messages]
    return lines


def _apart(name: str, mine: object, other: object) -> Iterator[str]:
    """What differs between two values of *name*, part by part where both have the same parts."""
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        mine, other = dict(enumerate(mine)), dict(enumerate(other))
    if isinstance(mine, dict) and isinstance(other, dict) and list(mine) == list(other):
        for part in mine:
            yield from _apart(f"{name}.{part}", mine[part], other[part])
    elif json.dumps(mine, sort_keys=True) != json.dumps(other, sort_keys=True):
        # NaN is as good as NaN.
        yield f"{name}: baseline {_short(other)}, here {_short(mine)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def run_both(
    calls: Sequence[Call], baseline: Path, cache: Cache, folder: Path
) -> tuple[list[Outcome], list[Outcome]]:
    """The outcomes of *calls* here and in *baseline*, which are run at the same time."""
    missing = [call for call in calls if cache.get(call) is None]
    ours = Runner(HERE, calls, folder / "here")
    theirs = Runner(baseline, missing, folder / "baseline")
    try:
        shown = time.monotonic()
        while not all([ours.wait(0.5), theirs.wait(0.5)]):
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                of_theirs = f"{theirs.done} of {len(missing)} calls of the baseline"
                print(f"{ours.done} of {len(calls)} calls here, {of_theirs}", file=sys.stderr)
    finally:
        ours.stop()
        theirs.stop()
    for call, outcome in zip(missing, theirs.outcomes, strict=True):
        cache.add(call, outcome)
    fresh = iter(theirs.outcomes)
    known = [cache.get(call) for call in calls]
    return ours.outcomes, [next(fresh) if each is None else each for each in known]


def kind_of(outcome: Outcome) -> str:
    """`run`, `refused` (with a code of CANN), `rejected` (another error) or `too long`."""
    if outcome.get("too_long"):
        return "too long"
    if "error" not in outcome:
        return "run"
    return "refused" if outcome.get("code") is not None else "rejected"


def show_coverage(calls: Sequence[Call], outcomes: Sequence[Outcome]) -> None:
    """Print how many calls of each operator and template ran on each chip."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for call, outcome in zip(calls, outcomes, strict=True):
        kind = kind_of(outcome)
        template = (outcome["template"] or "") if kind == "run" else f"({kind})"
        device = str(call.options["device"])
        counts[call.operator, template, device] += 1
    rows = sorted({(operator, template) for operator, template, _ in counts})
    print(f"{'':36}{'':24}" + "".join(f"{device:>16}" for device in DEVICES))
    for operator, template in rows:
        numbers = [counts[operator, template, device] for device in DEVICES]
        print(f"{operator:36}{template:24}" + "".join(f"{number:16}" for number in numbers))


def report(
    calls: Sequence[Call], ours: Sequence[Outcome], theirs: Sequence[Outcome], seed: int
) -> int:
    """Print what differs, and how many calls there were; return the number of differences."""
    kinds: Counter[str] = Counter()
    found = 0
    for call, mine, other in zip(calls, ours, theirs, strict=True):
        is_compared = not (mine.get("too_long") or other.get("too_long"))
        kinds[kind_of(other) if is_compared else "too long"] += 1
        lines = differences(mine, other) if is_compared else []
        found += bool(lines)
        if lines and found <= MAX_SHOWN:
            print(f"--seed {seed} --only {call.name}\n  {text_of(call)}")
            print("".join(f"    {line}\n" for line in lines), end="")
    if found > MAX_SHOWN:
        print(f"... and {found - MAX_SHOWN} more")
    cpu_s = [sum(outcome["cpu_s"] for outcome in each) for each in (theirs, ours)]
    print(
        f"seed {seed}: {len(calls)} calls, of which {kinds['run']} ran, {kinds['refused']} were "
        f"refused, {kinds['rejected']} ended in another error and {kinds['too long']} took too "
        f"long; {found} differences (processor time: baseline {cpu_s[0]:.0f} s, here "
        f"{cpu_s[1]:.0f} s)"
    )
    return found


def asked_for() -> argparse.Namespace:
    """What the command line asks for."""
    words = argparse.ArgumentParser(prog="equality", description=__doc__.split("\n", 1)[0])
    words.add_argument("--calls", type=int, default=2500, help="how many, of all operators")
    words.add_argument("--operators", help="names, separated by commas; all unless given")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", help="one call, by the name that was printed: npu_swiglu:17")
    words.add_argument("--against", type=Path, help=f"a checkout, in place of one of {BASELINE}")
    words.add_argument("--baseline-cache", type=Path, help="a file that keeps its outcomes")
    words.add_argument("--coverage", action="store_true", help="list templates, chip by chip")
    asked = words.parse_args()
    cache = asked.baseline_cache
    if cache is not None and (cache.is_dir() or not cache.parent.is_dir()):
        words.error(f"--baseline-cache must be a file in a folder that is there, not {cache}")
    return asked


def main() -> int:
    """Run what the command line asks for."""
    asked = asked_for()
    operators = asked.operators.split(",") if asked.operators else sorted(RECIPES)
    calls = calls_of(operators, asked.calls, asked.seed)
    if asked.only:
        calls = [call_named(asked.only, asked.seed)]
    require_engine(HERE)
    place = nullcontext(asked.against.resolve()) if asked.against else checkout_of(BASELINE)
    with place as baseline, tempfile.TemporaryDirectory(prefix="npusim-equality-") as folder:
        cache = Cache(asked.baseline_cache, version_of(baseline))
        ours, theirs = run_both(calls, baseline, cache, Path(folder))
    if asked.only:
        print(json.dumps({"here": ours[0], "baseline": theirs[0]}, indent=1))
    if asked.coverage:
        show_coverage(calls, theirs)
    return int(report(calls, ours, theirs, asked.seed) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
