"""A run of a model in a few lines of plain words."""

from __future__ import annotations

from collections import Counter

from npusim.data import text
from npusim.data.text import counted
from npusim.reports.model.tables import by_work, total
from npusim.reports.style import percent, size_named, span_named
from npusim.trace.model import ModelRun

__all__ = ["bounds", "coverage", "headline", "not_timed"]


def headline(run: ModelRun) -> list[str]:
    """Device time, launches, kinds of work, bottlenecks, bytes, and untimed kernels."""
    whole = total(run.launches)
    kernels = counted(whole.launches, "kernel", "kernels")
    launches = counted(run.paid_launches, "launch", "launches")
    lines = [
        f"{span_named(whole.time_us)} of device time on {run.device} ({run.series}): {kernels} "
        f"in {launches}"
    ]
    if run.launches:
        works = sorted(by_work(run).items(), key=lambda item: -item[1].time_us)
        shares = (f"{percent(own.time_us / whole.time_us)} {work}" for work, own in works)
        lines += [
            f"work: {', '.join(shares)}",
            f"bounds: {bounds(run)}; launch and completion are "
            f"{percent(whole.launch_us / whole.time_us)} of the time",
            f"bytes: cores read {size_named(whole.read_bytes)} and write "
            f"{size_named(whole.written_bytes)}; {size_named(whole.gm_bytes)} move from and to "
            f"global memory",
        ]
    return [*lines, coverage(run)]


def coverage(run: ModelRun) -> str:
    """The number of kernels of a card that are timed, and the kernels that are not."""
    return text.coverage(len(run.launches), not_timed(run))


def not_timed(run: ModelRun) -> Counter[str]:
    """Operation of torch -> how often it ran untimed although a card would run a kernel."""
    counts: Counter[str] = Counter()
    for each in run.not_timed:
        counts[each.operator] += each.count
    return counts


def bounds(run: ModelRun) -> str:
    """The bottleneck of the kernels that take most of the time of *run*."""
    spent: dict[str, float] = {}
    for launch in run.launches:
        spent[launch.kernel.bound] = spent.get(launch.kernel.bound, 0.0) + launch.time_us
    ranked = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{percent(us / run.time_us)} in kernels bound by {words}" for words, us in ranked[:3]]
    return ", ".join(parts)
