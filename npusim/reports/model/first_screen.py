"""The first screen of the page of a model: the time, its coverage, and what takes longest.

A page never mixes models: if several ran, each has a bar below its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from npusim.accuracy import accuracy_of, kind_of
from npusim.accuracy.kinds import PRODUCTS
from npusim.data.tensor import TensorSpec
from npusim.data.text import counted, tally
from npusim.reports import answer, overview
from npusim.reports.answer import Part
from npusim.reports.model.headline import bounds, not_timed
from npusim.reports.model.tables import Total, by_kernel, by_root, by_work, total
from npusim.reports.model.works import COLORS
from npusim.reports.run_labels import Head, listed
from npusim.reports.style import percent, span_named
from npusim.trace.model import Kernel, ModelRun

__all__ = ["Lead", "of_run", "of_runs"]

MOST_KERNELS = 8
"""The most bars on the screen."""
AROUND = {"gaps": "#D9D9D9", "rest": "#595959"}
"""Part of a step outside its kernels -> its colour."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The properties of the step of a served model beyond its kernels."""

    name: str
    """The name of its time: `TPOT`."""
    time_us: float
    off_us: float
    """The error that half of such times do not exceed."""
    tokens_per_s: float
    verb: str
    """The verb for its tokens: `made`."""
    around_us: Mapping[str, float] = field(default_factory=dict)
    """The time outside kernels: gaps between them, and the rest."""


def of_run(run: ModelRun, lead: Lead | None) -> str:
    """The first screen of *run*, with the properties of its step."""
    parts = [_about(run), answer.tiles(_tiles(run, lead)), _time(run, lead), _kernels(run)]
    return answer.screen(parts)


def of_runs(runs: Sequence[ModelRun], heads: Sequence[Head], lines: Sequence[str]) -> str:
    """The first screen of several runs, with *lines* of further remarks."""
    found = [overview.Entry(head, run.time_us, tuple(works(run)), bounds(run))
             for run, head in zip(runs, heads, strict=True)]  # fmt: skip
    covered = ", ".join(percent(_timed(run)) for run in runs[: overview.MOST_SHARES])
    tiles = [*overview.tiles(found), (covered, "of the kernels of each are timed")]
    ranked = overview.ranked([run.time_us for run in runs])
    sentence = overview.differing(*found) if len(runs) == 2 else ranked
    said = "".join(f"<p>{escape(line)}</p>" for line in (sentence, *lines))
    bars = f"{overview.section(found)}{overview.key(found)}"
    return answer.screen([answer.tiles(tiles), f"<h2>Where the time goes</h2>{bars}{said}"])


def works(run: ModelRun) -> list[Part]:
    """The kinds of work of *run* as parts of a bar."""
    return [Part(work, own.time_us, COLORS[work]) for work, own in by_work(run).items()]


def _about(run: ModelRun) -> str:
    """The card, the number of kernels, and the names of the models."""
    kernels = counted(len(run.launches), "kernel", "kernels")
    words = [run.series, f"{kernels} in {counted(run.paid_launches, 'launch', 'launches')}"]
    names = list(dict.fromkeys(run.classes[name] for name in by_root(run) if name in run.classes))
    if names:
        words.append(f"model{'s' if len(names) > 1 else ''}: {listed(names)}")
    return f'<p class="soft">{escape(" · ".join(words))}</p>'


# ---- large figures ----


def _tiles(run: ModelRun, lead: Lead | None) -> list[tuple[str, str]]:
    if lead is None:
        launch_us = total(run.launches).launch_us
        time = span_named(run.time_us), "device time of all kernels"
        second = percent(launch_us / (run.time_us or 1.0)), "of it is launch and completion"
    else:
        off = f"± {percent(lead.off_us / lead.time_us)}, half of such times are within that"
        time = span_named(lead.time_us), f"{lead.name}: {off}"
        second = f"{lead.tokens_per_s:,.0f}", f"tokens are {lead.verb} a second"
    return [time, second, _validated(run), _coverage(run)]


def _validated(run: ModelRun) -> tuple[str, str]:
    """The share of the time in kernels whose kind was measured on a card."""
    known_us = sum(own.time_us for kernel, own in by_kernel(run).items()
                   if _is_measured(kernel, run.series))  # fmt: skip
    share = known_us / run.time_us if run.time_us else 0.0
    return percent(share), f"validated: of the time, in kinds of kernel measured on {run.series}"


def _is_measured(kernel: Kernel, series: str) -> bool:
    """Whether kernels of its kind were measured; a record does not hold the order of a weight."""
    try:
        specs = [_spec(text) for text in kernel.inputs]
    except ValueError:
        return False  # not the tensors of a record that npusim wrote
    orders = (False, True) if kernel.op in PRODUCTS and len(specs) > 1 else (False,)
    for is_transposed in orders:
        given = {str(place): spec for place, spec in enumerate(specs)}
        if is_transposed:
            weight = specs[1]
            given["1"] = TensorSpec(weight.shape, weight.dtype, weight.layout, transposed=True)
        kind, _ = kind_of(kernel.op, series, given)
        if accuracy_of(kind, kernel.time_us).rows:
            return True
    return False


def _spec(text: str) -> TensorSpec:
    """The tensor that a record describes: `int8 16x64 FRACTAL_NZ`."""
    dtype, shape, *layouts = text.split(" ")
    extents = () if shape == "scalar" else tuple(map(int, shape.split("x")))
    return TensorSpec(extents, dtype, layouts[0] if layouts else "ND")


def _coverage(run: ModelRun) -> tuple[str, str]:
    missing = not_timed(run)
    if not missing:
        return "100 %", "coverage: every kernel that a card would run is timed"
    kinds = counted(len(missing), "kind", "kinds")
    kernels = counted(missing.total(), "kernel", "kernels")
    return percent(_timed(run)), f"coverage: {kernels} of {kinds} took no time"


def _timed(run: ModelRun) -> float:
    """The coverage: the share of the kernels of a card that are timed."""
    timed = len(run.launches)
    return timed / ((timed + not_timed(run).total()) or 1)


# ---- where the time goes ----


def _time(run: ModelRun, lead: Lead | None) -> str:
    around = {} if lead is None else lead.around_us
    beyond = [Part(AROUND_NAMES[name], us, AROUND[name]) for name, us in around.items()]
    parts = [*works(run), *beyond]
    whole_us = sum(part.us for part in parts) or 1.0
    bars = answer.bar(parts, whole_us) + answer.key(answer.named(parts, whole_us))
    return f"<h2>Where the time goes</h2>{bars}{_models(run)}<p>{escape(_sentence(run))}</p>"


AROUND_NAMES = {"gaps": "gaps between kernels", "rest": "host"}


def _sentence(run: ModelRun) -> str:
    missing = not_timed(run)
    text = f"Of the time of kernels, {bounds(run)}." if run.launches else "No kernel was timed."
    if missing:
        text += f" The time is a lower bound, since these took none here: {tally(missing)}."
    return text


def _models(run: ModelRun) -> str:
    """For several models, a bar for each, all to one scale."""
    found = by_root(run)
    if len(found) < 2:
        return ""
    rows = [answer.Share(name, own.time_us / (run.time_us or 1.0), _of(own, run))
            for name, own in found.items()]  # fmt: skip
    return answer.shares([rows])


def _of(own: Total, run: ModelRun) -> str:
    return f"{span_named(own.time_us)}, {percent(own.time_us / (run.time_us or 1.0))}"


# ---- what takes longest ----


def _kernels(run: ModelRun) -> str:
    found = by_kernel(run)
    if not found:
        return ""
    lines = []
    for kernel, own in list(found.items())[:MOST_KERNELS]:
        bar = answer.left(own.time_us / run.time_us)
        what = f"{kernel.op} {', '.join(kernel.inputs[:2])}"
        why = f"{own.launches:,} x {span_named(kernel.time_us)}, bound by {kernel.bound}"
        lines.append(
            f'<li><p><b>{escape(what)}</b> <span class="soft">{escape(why)}</span></p>{bar}'
            f"<span>{_of(own, run)}</span></li>"
        )
    left = len(found) - len(lines)
    more = f' <span class="soft">and {left:,} more</span>' if left > 0 else ""
    return f'<h2>The longest kernels{more}</h2><ol class="changes">{"".join(lines)}</ol>'
