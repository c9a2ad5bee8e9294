"""The page of a run of a model, or of several side by side, which opens from disk.

Launches of one call share their kernel, names are stored once, and starts are stored as gaps
between launches: thousands of launches take some tens of kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain

from npusim.reports import answer, frame
from npusim.reports.model import first_screen, tables
from npusim.reports.model.compare import below_root, compared, heads, missing
from npusim.reports.model.first_screen import Lead
from npusim.reports.model.headline import not_timed
from npusim.reports.model.sheets import Sheet, sheets
from npusim.reports.model.tables import Total
from npusim.reports.model.works import COLORS, WORKS, work_of
from npusim.reports.run_labels import Head, letters, listed
from npusim.reports.style import percent, span_named
from npusim.reports.tables import table
from npusim.trace.model import ModelRun

__all__ = ["page", "payload"]

MOST_ROWS = 300
"""The most rows of a table on a page; its file has all rows."""
FOLDED = ("work", "layers", "operators", "modules", "kernels", "missing")
"""Sections of tables, which are initially closed."""
OPEN_DEPTH = 4
"""Deeper modules are initially folded."""
SHARED, OWN = "npusim.reports", "npusim.reports.model"


def page(runs: Sequence[ModelRun], lead: Lead | None = None) -> str:
    """The page of one run, or of several that are compared; raises ValueError for none.

    *lead* has the properties of the step of a served model, which must be the only run.
    """
    if not runs:
        raise ValueError("reports: one run at least must be given, not none; record a model")
    named = heads(runs)
    if len(runs) == 1:
        top, parts = first_screen.of_run(runs[0], lead), _of_one(runs[0])
    else:
        top, parts = first_screen.of_runs(runs, named, missing(runs)), _of_several(runs, named)
    body = top + frame.sections(parts, FOLDED)
    script = frame.text_of(SHARED, "zoom.js") + frame.text_of(OWN, "page.js")
    styles = frame.text_of(SHARED, "page.css") + frame.text_of(OWN, "page.css")
    return frame.document(_titled(runs), styles, script, body)


def _titled(runs: Sequence[ModelRun]) -> str:
    names = list(dict.fromkeys(f"{run.title} on {run.device}" for run in runs))
    if len(runs) == len(names) <= 2:
        return " against ".join(names)
    titles = list(dict.fromkeys(run.title for run in runs))
    if len(titles) == 1:
        cards = list(dict.fromkeys(run.device for run in runs))
        return f"{len(runs)} runs of {titles[0]} on {listed(cards)}"
    return f"{len(runs)} runs: {listed(names)}"


def _of_one(run: ModelRun) -> dict[str, tuple[str, str]]:
    known = sheets(run)
    return {
        "timeline": ("Timeline", _timelines([run], heads([run]))),
        "work": ("Kinds of work", _shown(known["works"])),
        "layers": ("Layers", _layers([run])),
        "operators": ("Operators", _shown(known["operators"])),
        "modules": ("Modules", _modules(known)),
        "kernels": ("Kernels", _shown(known["kernels"])),
        "missing": ("Not timed", _missing(run)),
    }


def _of_several(runs: Sequence[ModelRun], named: Sequence[Head]) -> dict[str, tuple[str, str]]:
    held = compared(runs)
    kernels = [_shown(sheets(run)["kernels"]) for run in runs]
    return {
        "timeline": ("Timelines", _timelines(runs, named)),
        "work": ("Kinds of work", _shown(held["works"])),
        "layers": ("Layers", _layers(runs)),
        "operators": ("Operators", _shown(held["operators"])),
        "modules": ("Modules", _modules(held)),
        "kernels": ("Kernels", frame.columns(named, kernels, wide=True)),
        "missing": ("Not timed", frame.columns(named, list(map(_missing, runs)))),
    }


# ---- tables ----


def _shown(sheet: Sheet) -> str:
    rows = sheet.readable()
    if not rows:
        return '<p class="note">nothing</p>'
    more = len(rows) - MOST_ROWS
    note = f'<p class="note">and {more:,} more in {sheet.name}.csv</p>' if more > 0 else ""
    return table(sheet.headings(), rows[:MOST_ROWS]) + note


def _missing(run: ModelRun) -> str:
    """Untimed operations by name; the tree of modules shows where they are."""
    if not run.not_timed:
        return '<p class="note">Every kernel that a card would run is timed.</p>'
    note = "A card would run these as kernels too; here they took no time, and are in no sum."
    ranked = sorted(not_timed(run).items(), key=lambda item: (-item[1], item[0]))
    return f'<p class="note">{note}</p>{table(["operator", "times"], ranked)}'


def _modules(known: Mapping[str, Sheet]) -> str:
    """All layers of a list together, and then each one."""
    return (
        '<p class="note">A module holds what runs in its forward and in those below.</p>'
        f"{_tree(known['roles'])}<details><summary>Each layer by itself</summary>"
        f"{_tree(known['modules'])}</details>"
    )


def _tree(sheet: Sheet) -> str:
    """The table of modules, whose first column holds paths; rows fold by their depths."""
    head, rows = sheet.headings(), sheet.readable()
    are_words = [any(isinstance(row[place], str) for row in sheet.rows)
                 for place, name in enumerate(sheet.columns) if name != "bound_share"]  # fmt: skip
    kinds = ["" if is_word else ' class="number"' for is_word in are_words]
    top = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(head, kinds, strict=True))
    paths = [str(row[0]) for row in sheet.rows]
    depths = [len(tables.steps(path)) if path != tables.OUTSIDE else 1 for path in paths]
    lines = []
    for path, row, depth, below in zip(paths, rows, depths, [*depths, 0][1:], strict=True):
        cells = "".join(
            f"<td{kind}>{f'{value:,}' if isinstance(value, int) else escape(str(value))}</td>"
            for value, kind in zip(row[1:], kinds[1:], strict=True)
        )
        lines.append(_module(path, depth, has_more=below > depth) + cells + "</tr>")
    return (
        '<div class="modules"><button class="unfold">unfold all</button>'
        f'<div class="scroll" tabindex="0"><table class="tree"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></div>"
    )


def _module(path: str, depth: int, *, has_more: bool) -> str:
    """The start of the row of a module, with its name."""
    name = path if depth == 1 else tables.steps(path)[-1]
    fold = '<button class="fold" aria-label="fold"></button>' if has_more else "<i></i>"
    folded = ' class="folded"' if has_more and depth >= OPEN_DEPTH else ""
    hidden = " hidden" if depth > OPEN_DEPTH else ""
    return (
        f'<tr data-depth="{depth}"{folded}{hidden}>'
        f'<td style="--depth:{depth - 1}" title="{escape(path)}">{fold}{escape(name)}</td>'
    )


# ---- bars ----


def _key(runs: Sequence[ModelRun]) -> str:
    there = {work_of(kernel.op) for run in runs for kernel in run.kernels}
    return answer.key({work: COLORS[work] for work in WORKS if work in there})


def _parts(works: Mapping[str, Total]) -> list[answer.Part]:
    return [answer.Part(work, own.time_us, COLORS[work]) for work, own in works.items()]


# ---- layers ----

Works = Mapping[str, Total]
"""Kind of work -> the total of its launches."""


def _layers(runs: Sequence[ModelRun]) -> str:
    """Layers by kind of work; for several runs, one bar below the other, to one scale."""
    found = [tables.by_layer(run) for run in runs]
    if len(runs) > 1:
        found = [below_root(own) for own in found]
    longest_us = max((_us(works) for own in found for works in own.values()), default=0.0) or 1.0
    has_models = len(runs) == 1 and len(tables.by_root(runs[0])) > 1
    lines = []
    for layers, works in _alike(found):
        count = len(layers)
        inside = layers[0] if has_models else layers[0].partition(".")[2] or layers[0]
        first, last = inside, layers[-1].rpartition(".")[2]
        alike = f"{count} alike" if len(runs) == 1 else f"each of {count}"
        name = first if count == 1 else f"{first} to {last}, {alike}"
        summary = f"{layers[0]} to {layers[-1]}" if count > 1 else layers[0]
        bars = "".join(answer.bar(_parts(own or {}), longest_us) for own in works)
        cells = _of_run(works[0] or {}, count, runs[0]) if len(runs) == 1 else _of_runs(works)
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        lines.append(
            f'<tr><td title="{escape(summary)}">{escape(name)}</td><td class="wide">{bars}</td>'
            f"{numbers}</tr>"
        )
    own_heads = ("each", "launches", "together", "share")
    shown = own_heads if len(runs) == 1 else _heads_of_runs(len(runs))
    head = "<th>layer</th><th>kinds of work</th>"
    head += "".join(f'<th class="number">{each}</th>' for each in shown)
    return _key(runs) + (
        f'<div class="scroll" tabindex="0"><table class="layers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _us(works: Works) -> float:
    return sum((own.time_us for own in works.values()), 0.0)


def _of_run(works: Works, count: int, run: ModelRun) -> tuple[str, ...]:
    """Time and launches of a layer, the time of *count* equal layers, their share of the run."""
    us, launches = _us(works), sum(own.launches for own in works.values())
    return (span_named(us), f"{launches:,}", span_named(count * us),
            percent(count * us / run.time_us))  # fmt: skip


def _of_runs(works: Sequence[Works | None]) -> list[str]:
    """Times of a layer, and their ratios to the first."""
    times = [_us(own) if own else None for own in works]
    ratios = [us / times[0] if times[0] and us is not None else None for us in times[1:]]
    return [
        *("" if us is None else span_named(us) for us in times),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    ]


def _heads_of_runs(count: int) -> list[str]:
    first, *others = letters(count)
    return [first, *others, *(f"{letter} / {first}" for letter in others)]


def _alike(runs: Sequence[Mapping[str, Works]]) -> list[tuple[list[str], list[Works | None]]]:
    """Layers with the kinds of work of each run; equal consecutive layers of a list are joined."""
    found: list[tuple[list[str], list[Works | None]]] = []
    for layer in dict.fromkeys(chain.from_iterable(runs)):
        works = [own.get(layer) for own in runs]
        around, _, number = layer.rpartition(".")
        before = found[-1][0][-1].rpartition(".") if found else ("", "", "")
        if number.isdigit() and before[0] == around and found[-1][1] == works:
            found[-1][0].append(layer)
        else:
            found.append(([layer], works))
    return found


# ---- timelines ----


def _timelines(runs: Sequence[ModelRun], named: Sequence[Head]) -> str:
    ends_us = [run.launches[-1].end_us if run.launches else 0.0 for run in runs]
    full_us = max(1.01 * max(ends_us), 1.0)
    found = []
    for number, (run, head) in enumerate(zip(runs, named, strict=True)):
        about = ", ".join(filter(None, (head.letter, f"{run.title} on {run.device}")))
        found.append(
            frame.timeline(number, payload(run, full_us), about, "kernel, operator, module")
        )
    return frame.columns(named, found, wide=True)


def payload(run: ModelRun, full_us: float) -> dict[str, object]:
    """The launches of *run* for a timeline that ends at *full_us*, as numbers and strings."""
    kernels = {kernel: number for number, kernel in enumerate(run.kernels)}
    names: dict[str, int] = {"": 0}
    gaps, end_us = [], 0.0
    for launch in run.launches:
        gaps.append(round(launch.start_us - end_us, 6))
        end_us = launch.end_us
    return {
        "full": full_us,
        "works": list(WORKS),
        "colors": list(COLORS.values()),
        "kernels": [
            [
                *(kernel.op, kernel.template or "", WORKS.index(work_of(kernel.op))),
                *(", ".join(kernel.inputs), ", ".join(kernel.outputs), kernel.cores),
                *(kernel.time_us, kernel.launch_us, kernel.read_bytes, kernel.written_bytes),
                *(kernel.gm_bytes, kernel.bound, kernel.bound_share),
            ]
            for kernel in run.kernels
        ],
        "kernel": [kernels[launch.kernel] for launch in run.launches],
        "gap": gaps,
        "stream": [launch.stream for launch in run.launches],
        "operator": [names.setdefault(launch.operator, len(names)) for launch in run.launches],
        "module": [names.setdefault(launch.module, len(names)) for launch in run.launches],
        "graph": [names.setdefault(launch.graph, len(names)) for launch in run.launches],
        "steps": {launch.module: list(tables.steps(launch.module)) for launch in run.launches},
        "words": list(names),
    }
