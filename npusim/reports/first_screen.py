"""The first screen of the page of a run: its time, its share of the chip's limits, and the advice.

Shares refer to the whole time of the call, launches included, as in a profile of the whole call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from npusim.data.dtypes import dtype_named
from npusim.reports import advice, answer, bounds, costs, limits, style
from npusim.reports.advice import Advised
from npusim.reports.answer import Part, Share, left, percent
from npusim.reports.causes import CAUSES, Bound, least_us, path_causes
from npusim.reports.run_labels import argument
from npusim.reports.subject import trace_of
from npusim.reports.traffic import work
from npusim.trace import Known
from npusim.trace.record import Record

__all__ = ["COLORS", "error", "of_run", "parts", "used"]

AROUND: dict[Known, str] = {
    "launch": costs.COLORS["launch"],
    "earlier": costs.COLORS[costs.EARLIER],
}
OTHERS = [color for color in style.MANY_COLORS if color not in AROUND.values()]
COLORS = AROUND | dict(zip((cause for cause in CAUSES if cause not in AROUND), OTHERS, strict=True))
"""Cause -> the colour of its part of the bar, the same on every page."""
FEW = 3
"""With this few measured kernels, the expected error is only a rough guide."""
LINKS: Mapping[Known, str] = {
    "gm": "global memory",
    "l2 reads": "L2 reads",
    "l2 writes": "L2 writes",
}


def of_run(run: Record, given: Sequence[Advised] | str | None) -> str:
    """The first screen of *run*; *given* is the advice, the reason for none, or None to omit it."""
    found = [_about(run), _tiles(run), _time(run), _used(run)]
    if given is not None:
        found.insert(3, _changes(run, given))
    return answer.screen(found)


def _about(run: Record) -> str:
    """The chip, the arguments and the state of the L2: `Atlas A2 · x int8 16x5120 · L2 cold`."""
    given = run.facts["arguments"].items()
    words: list[str] = [run.device.series]
    words += [f"{name} {argument(value)}" for name, value in given if value is not None]
    words.append(f"L2 {run.facts['l2']}")
    if run.template is not None:
        words.append(f"kernel {run.template}")
    return f'<p class="soft">{escape(" · ".join(words))}</p>'


# ---- large figures ----


def _tiles(run: Record) -> str:
    kernels = "" if len(run.launches) == 1 else f", {len(run.launches)} kernels"
    time = style.span_named(_us(run)), f"time of the call{kernels}"
    return answer.tiles((time, _of_peak(run), _of_bandwidth(run), error(run)))


def _us(run: Record) -> float:
    """The whole time of the call; :func:`report` has checked that it exists."""
    assert run.time_us is not None
    return run.time_us


def _of_peak(run: Record) -> tuple[str, str]:
    """The share of the peak of the cubes, or for a run without a product, of the vector units."""
    done, seconds = work(trace_of(run)), _us(run) / 1e6
    if done.cube_ops:
        dtype = max(done.cube_dtypes, key=lambda name: done.cube_dtypes[name])
        peak, count, kind = limits.cube(run.device, dtype).per_s, done.cube_ops, dtype
        unit = "FLOPS" if dtype_named(dtype).is_float else "OPS"
    else:
        peak, count = limits.vector(run.device, done.vector_bits).per_s, done.vector_ops
        kind, unit = f"{done.vector_bits}-bit vector", "OPS"
    reached = count / seconds
    rates = f"{style.ops_named(reached, unit)} of {style.ops_named(peak, unit)}"
    return percent(reached / peak), f"of the {kind} peak, {rates}"


def _of_bandwidth(run: Record) -> tuple[str, str]:
    limit = run.device.gm.read_bytes_per_s
    reached = trace_of(run).gm_bytes / (_us(run) / 1e6)
    rates = f"{style.rate_named(reached)} of {style.rate_named(limit)}"
    return percent(reached / limit), f"of the memory bandwidth, {rates}"


def error(run: Record) -> tuple[str, str]:
    """The expected error, from measured kernels of the same kind, and how many there are."""
    known = run.accuracy
    if known is None or known.kind is None:
        return "unknown", "expected error: no measurement of your own kernel is known"
    if known.p90 is None:
        return "unvalidated", f"no public measurement of this operator on {known.series}"
    only = "only " if known.rows <= FEW else ""
    kernels = f"{only}{known.rows} measured kernel{'' if known.rows == 1 else 's'}"
    return f"± {percent(known.p90)}", f"expected error in 9 of 10 cases, from {kernels}"


# ---- where the time goes ----


def _time(run: Record) -> str:
    found, total_us = parts(run), _us(run)
    return (
        f"<h2>Where the time goes</h2>{answer.bar(found, total_us)}"
        f"{answer.key(answer.named(found, total_us))}"
        f"<p>{escape(advice.sentence(bounds.headline(run)))}.</p>"
    )


def parts(run: Record) -> list[Part]:
    """The causes on the critical path of *run*, the longest first; they add up to its time."""
    return [
        Part(_named(run, bound), bound.path_us, COLORS[bound.cause]) for bound in path_causes(run)
    ]


def _named(run: Record, bound: Bound) -> str:
    """The cause in short; for kernels that ran before, their names."""
    if bound.cause == "earlier":
        return " and ".join(dict.fromkeys(launch.op for launch in run.launches[:-1]))
    return CAUSES[bound.cause].short


# ---- what to change ----


def _changes(run: Record, given: Sequence[Advised] | str) -> str:
    heading = "What to change"
    if isinstance(given, str):
        return f'<h2>{heading}</h2><p class="note">{escape(given)}</p>'
    changes = [each for each in given if each.kind == "change"]
    best_us = min((each.after_us for each in changes if each.rows is None), default=_us(run))
    if best_us < _us(run):
        heading += f": {style.time_named(_us(run))} becomes {style.time_named(best_us)}"
    items = "".join(map(_change, changes))
    text = f'<ol class="changes">{items}</ol>' if items else f"<p>{advice.NOTHING}</p>"
    return f"<h2>{heading}</h2>{text}{advice.supposed(given)}"


def _change(each: Advised) -> str:
    """What to do, as code if possible, and a bar of the remaining time."""
    before, after = each.rows or (1, 1)
    rest = each.after_us / after / (each.before_us / before)
    took = style.time_named(each.after_us) + (f" for {after} rows" if each.rows else "")
    code = "".join(f"<code>{escape(line)}</code>" for line in each.code)
    why = escape(advice.sentence(each.text))
    what = f"{why}.{code}" if code else f"<b>{escape(advice.sentence(each.change))}.</b> {why}."
    return f'<li title="{escape(each.times)}"><p>{what}</p>{left(rest)}<span>{took}</span></li>'


# ---- limits ----


def _used(run: Record) -> str:
    note = '<p class="note">Of links and units, shares of the time of the whole call.</p>'
    return f"<h2>How much of the chip is used</h2>{answer.shares([used(run)])}{note}"


def used(run: Record) -> list[Share]:
    """The utilisation of each resource of the chip over the whole time."""
    trace, total_us = trace_of(run), _us(run)
    found = {
        name: us / total_us
        for cause, us in least_us(trace, run.device).items()
        if us and (name := LINKS[cause])
    }
    done = work(trace)
    for dtype, count in done.cube_dtypes.items():
        found["cube"] = found.get("cube", 0.0) + _share(
            count, limits.cube(run.device, dtype), total_us
        )
    if done.vector_ops:
        found["vector unit"] = _share(
            done.vector_ops, limits.vector(run.device, done.vector_bits), total_us
        )
    shares = [Share(name, share, percent(share)) for name, share in found.items()]
    for kind in dict.fromkeys(lane.kind for lane in trace.lanes):
        cores = sum(len(lane.cores) for lane in trace.lanes if lane.kind == kind)
        count = run.device.cores[kind].count
        shares.append(Share(f"{kind} cores", cores / count, f"{cores} of {count}"))
    return shares


def _share(count: int, limit: limits.Limit, total_us: float) -> float:
    return count / limit.per_s / (total_us / 1e6)
