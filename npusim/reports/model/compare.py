"""Runs of models compared with the first: by kind of work, operator, module and layer.

Rows that only some runs have show their times, but no ratio. Modules are matched by their paths
below the outermost one, so that different classes of models can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import and_
from typing import TypeVar

from npusim.data.text import counted, tally
from npusim.reports.model import tables
from npusim.reports.model.headline import coverage, not_timed
from npusim.reports.model.sheets import HEADINGS, Sheet, Value
from npusim.reports.model.tables import Total
from npusim.reports.overview import than
from npusim.reports.run_labels import Fact, Head, distinguished, letters
from npusim.reports.style import span_named
from npusim.trace.model import ModelRun

__all__ = ["below_root", "compared", "headline_of", "heads", "missing"]

Own = TypeVar("Own")


# ---- in words ----


def heads(runs: Sequence[ModelRun]) -> list[Head]:
    """The labels of *runs* on a page: script and card, or otherwise their kernels."""
    if len(runs) == 1:
        return [Head("", "")]
    facts = [{"script": Fact("", (run.title,)), "card": Fact("", (run.device,))} for run in runs]
    more = [own | _kernels(run) for own, run in zip(facts, runs, strict=True)]
    are_alike = len({*map(_values, facts)}) == len({*map(_values, more)})
    return distinguished(facts if are_alike else more, "like")


def _values(facts: Mapping[str, Fact]) -> tuple[Fact, ...]:
    return tuple(facts.values())


def _kernels(run: ModelRun) -> dict[str, Fact]:
    """The number of kernels, and the one that takes longest."""
    kernel = next(iter(tables.by_kernel(run)), None)
    longest = f"{kernel.op} of {', '.join(kernel.inputs)}" if kernel else "none"
    return {
        "kernels": Fact("", (counted(len(run.launches), "kernel", "kernels"),)),
        "longest": Fact("longest", (longest,)),
    }


def headline_of(runs: Sequence[ModelRun]) -> list[str]:
    """The time of each run compared with the first, and the coverage of each."""
    times: list[str] = []
    timed = []
    for letter, run in zip(letters(len(runs)), runs, strict=True):
        words = f"{letter} takes {span_named(run.time_us)} on {run.device} ({run.title})"
        times.append(f"{words}, {than(runs[0].time_us, run.time_us)}" if times else words)
        timed.append(f"{letter}: {coverage(run)}")
    return [*times, *timed, *missing(runs)]


def missing(runs: Sequence[ModelRun]) -> list[str]:
    """What is untimed in only some of *runs*; empty if the same is untimed in all."""
    found = [not_timed(run) for run in runs]
    shared = reduce(and_, found)
    more = zip(letters(len(runs)), (own - shared for own in found), strict=True)
    words = [f"{letter} {tally(own)}" for letter, own in more if own]
    if not words:
        return []
    return [f"not the same is missing from all: beyond what all miss, {'; '.join(words)}"]


# ---- in tables ----


def compared(runs: Sequence[ModelRun]) -> dict[str, Sheet]:
    """Name -> table, with the times of each of two or more, and their ratios to the first."""
    found = (
        _held("works", "work", [tables.by_work(run) for run in runs]),
        _held("operators", "op", [tables.by_op(run) for run in runs]),
        _held("modules", "module", [below_root(tables.by_module(run)) for run in runs]),
        _held("roles", "module", [below_root(tables.by_role(run)) for run in runs]),
    )
    return {sheet.name: sheet for sheet in found}


def below_root(found: Mapping[str, Own]) -> dict[str, Own]:
    """*found* by the path below the outermost module, which is called `root`, for modules."""
    roots = {path.partition(".")[0] for path in found if path != tables.OUTSIDE}
    if len(roots) != 1:
        return dict(found)
    (root,) = roots
    return {path if path == tables.OUTSIDE else "root" + path[len(root) :]: own
            for path, own in found.items()}  # fmt: skip


def _held(name: str, key: str, runs: Sequence[Mapping[str, Total]]) -> Sheet:
    """The rows of all runs: the longest time first, modules in the order of their tree."""
    names = list(dict.fromkeys(chain.from_iterable(runs)))
    if key == "module":
        names = tables.as_tree(names)
    else:
        longest_us = {name: max(own[name].time_us for own in runs if name in own) for name in names}
        names.sort(key=lambda name: (-longest_us[name], name))
    columns = _columns(len(runs))
    rows: list[tuple[Value, ...]] = []
    for each in names:
        totals = [own.get(each) for own in runs]
        times = [own.time_us if own else None for own in totals]
        ratios = [_ratio(times[0], us) for us in times[1:]]
        difference = [(times[1] or 0.0) - (times[0] or 0.0)] if len(runs) == 2 else []
        launches = [own.launches if own else 0 for own in totals]
        rows.append((each, *times, *ratios, *difference, *launches))
    return Sheet(name, (key, *columns), tuple(rows), HEADINGS | columns)


def _columns(count: int) -> dict[str, str]:
    """Column -> its heading on pages."""
    first, *others = letters(count)
    times = {f"{letter.lower()}_us": letter for letter in (first, *others)}
    ratios = {f"{letter.lower()}_ratio": f"{letter} / {first}" for letter in others}
    if count == 2:
        ratios = {"ratio": "B / A", "difference_us": "B - A"}
    launches = {f"{letter.lower()}_launches": f"launches of {letter}" for letter in letters(count)}
    return times | ratios | launches


def _ratio(first_us: float | None, us: float | None) -> float | None:
    return us / first_us if first_us and us is not None else None
