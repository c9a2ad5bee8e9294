"""Two runs of models held against each other: by kind of work, by operator and by module.

What only one of them has stands there with the time that it takes, and nothing beside it. Modules
are found again by their paths below the outermost one, so that two classes of model can be held
against each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.data.text import tally
from npusim.reports.model import tables
from npusim.reports.model.headline import coverage, not_timed
from npusim.reports.model.sheets import Sheet
from npusim.reports.model.tables import Total
from npusim.reports.style import span_named
from npusim.trace.model import ModelRun

__all__ = ["compared", "headline_of_two", "ratio_named"]

COLUMNS = ("a_us", "b_us", "ratio", "difference_us", "a_launches", "b_launches")


def headline_of_two(a: ModelRun, b: ModelRun) -> list[str]:
    """Which one is faster, and how much of both is timed."""
    times = [f"{span_named(run.time_us)} on {run.device} ({run.title})" for run in (a, b)]
    told = [f"A takes {times[0]}, B {times[1]}: B takes {ratio_named(_ratio(a.time_us, b.time_us))}"
            f" the time of A"]  # fmt: skip
    told += [f"A: {coverage(a)}", f"B: {coverage(b)}"]
    missing = not_timed(a), not_timed(b)
    if missing[0] == missing[1]:
        return told
    more = (missing[0] - missing[1], missing[1] - missing[0])
    alone = [f"{letter} alone {tally(own)}" for letter, own in zip("AB", more, strict=True) if own]
    return [*told, f"not the same is missing from both: {'; '.join(alone)}"]


def _ratio(a_us: float, b_us: float) -> float | None:
    return b_us / a_us if a_us else None


def ratio_named(ratio: float | None) -> str:
    """A ratio of two times.

    >>> ratio_named(0.5), ratio_named(12.345), ratio_named(None)
    ('0.50 x', '12.35 x', 'no multiple of')
    """
    return "no multiple of" if ratio is None else f"{ratio:.2f} x"


def compared(a: ModelRun, b: ModelRun) -> dict[str, Sheet]:
    """Name -> table, with the times of both and their ratio."""
    modules = [_below_root(tables.by_module(run)) for run in (a, b)]
    roles = [_below_root(tables.by_role(run)) for run in (a, b)]
    found = (
        _held("works", "work", tables.by_work(a), tables.by_work(b)),
        _held("operators", "op", tables.by_op(a), tables.by_op(b)),
        _held("modules", "module", *modules, is_tree=True),
        _held("roles", "module", *roles, is_tree=True),
    )
    return {sheet.name: sheet for sheet in found}


def _below_root(found: Mapping[str, Total]) -> dict[str, Total]:
    """*found* by the path below the outermost module, which is called `root`, if it is one."""
    roots = {path.partition(".")[0] for path in found if path != tables.OUTSIDE}
    if len(roots) != 1:
        return dict(found)
    (root,) = roots
    return {path if path == tables.OUTSIDE else "root" + path[len(root) :]: own
            for path, own in found.items()}  # fmt: skip


def _held(
    name: str, key: str, a: Mapping[str, Total], b: Mapping[str, Total], *, is_tree: bool = False
) -> Sheet:
    """Rows of both: those that take longest first, or *is_tree* as modules lie in each other."""
    names = tables.as_tree(dict.fromkeys((*a, *b))) if is_tree else list(dict.fromkeys((*a, *b)))
    rows = []
    for each in names:
        own, other = a.get(each), b.get(each)
        a_us, b_us = own.time_us if own else 0.0, other.time_us if other else 0.0
        rows.append(
            (
                *(each, a_us if own else None, b_us if other else None),
                *(_ratio(a_us, b_us) if own and other else None, b_us - a_us),
                *(own.launches if own else 0, other.launches if other else 0),
            )
        )
    if not is_tree:
        rows.sort(key=lambda row: (-max(row[1] or 0.0, row[2] or 0.0), row[0]))
    return Sheet(name, (key, *COLUMNS), tuple(rows))
