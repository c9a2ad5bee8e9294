"""The page of a run of a model, or of two side by side, which opens from disk.

Launches of one call share their kernel, names stand there once, and starts are gaps between
launches: thousands of launches are some tens of kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from npusim.reports import frame
from npusim.reports.model import tables
from npusim.reports.model.compare import compared, headline_of_two
from npusim.reports.model.headline import headline, not_timed
from npusim.reports.model.sheets import Sheet, sheets
from npusim.reports.model.tables import Total
from npusim.reports.model.works import COLORS, WORKS, work_of
from npusim.reports.style import percent, span_named
from npusim.reports.tables import table
from npusim.trace.model import ModelRun

__all__ = ["page", "payload"]

MOST_ROWS = 300
"""Of a table on a page; its file has all."""
OPEN_DEPTH = 4
"""Modules further inside are folded away at first."""
SHARED, OWN = "npusim.reports", "npusim.reports.model"


def page(runs: Sequence[ModelRun]) -> str:
    """The page of one run, or of two that are compared."""
    if len(runs) > 1:
        told = headline_of_two(*runs)
        parts = _of_two(runs)
    else:
        told = headline(runs[0])
        parts = _of_one(runs[0])
    first, *rest = (f'<p class="finding">{escape(line)}</p>' for line in told)
    body = first + "".join(rest) + frame.sections(parts)
    shared = "".join(frame.text_of(SHARED, f"{name}.js") for name in ("link", "zoom"))
    script = shared + frame.text_of(OWN, "page.js")
    styles = frame.text_of(SHARED, "page.css") + frame.text_of(OWN, "page.css")
    title = " against ".join(f"{run.title} on {run.device}" for run in runs)
    return frame.document(title, styles, script, body)


def _of_one(run: ModelRun) -> dict[str, tuple[str, str]]:
    known = sheets(run)
    return {
        "work": ("Kinds of work", _key(runs := [run]) + _shares(runs) + _shown(known["works"])),
        "timeline": ("Timeline", _timelines(runs)),
        "layers": ("Layers", _layers(run, _longest_layer_us(runs))),
        "operators": ("Operators", _shown(known["operators"])),
        "modules": ("Modules", _modules(known)),
        "kernels": ("Kernels", _shown(known["kernels"])),
        "missing": ("Not timed", _missing(run)),
    }


def _of_two(runs: Sequence[ModelRun]) -> dict[str, tuple[str, str]]:
    both = compared(*runs)
    known = [sheets(run) for run in runs]
    longest_us = _longest_layer_us(runs)
    layers = [_layers(run, longest_us) for run in runs]
    missing = [_missing(run) for run in runs]
    return {
        "work": ("Kinds of work", _key(runs) + _shares(runs) + _shown(both["works"])),
        "timeline": ("Timelines", _timelines(runs)),
        "layers": ("Layers", _beside(layers)),
        "operators": ("Operators", _shown(both["operators"])),
        "modules": ("Modules", _modules(both)),
        "kernels": ("Kernels", "".join(_lettered(_shown(own["kernels"]) for own in known))),
        "missing": ("Not timed", "".join(_lettered(missing))),
    }


def _lettered(parts: Iterable[str]) -> list[str]:
    return [f"<h3>{letter}</h3>{part}" for letter, part in zip("AB", parts, strict=False)]


def _beside(parts: Sequence[str]) -> str:
    cells = "".join(f"<div>{part}</div>" for part in _lettered(parts))
    return f'<div class="runs two">{cells}</div>'


# ---- tables ----


def _shown(sheet: Sheet) -> str:
    rows = sheet.readable()
    if not rows:
        return '<p class="note">nothing</p>'
    more = len(rows) - MOST_ROWS
    note = f'<p class="note">and {more:,} more in {sheet.name}.csv</p>' if more > 0 else ""
    return table(sheet.headings(), rows[:MOST_ROWS]) + note


def _missing(run: ModelRun) -> str:
    """What is not timed, by name; the tree of modules tells where it is."""
    if not run.not_timed:
        return '<p class="note">Every kernel that a card would run is timed.</p>'
    note = "A card would run these as kernels too; here they took no time, and are in no sum."
    ranked = sorted(not_timed(run).items(), key=lambda item: (-item[1], item[0]))
    return f'<p class="note">{note}</p>{table(["operator", "times"], ranked)}'


def _modules(known: Mapping[str, Sheet]) -> str:
    """All layers of a list together, and then each by itself."""
    return (
        '<p class="note">A module holds what runs in its forward and in those below.</p>'
        f"{_tree(known['roles'])}<details><summary>Each layer by itself</summary>"
        f"{_tree(known['modules'])}</details>"
    )


def _tree(sheet: Sheet) -> str:
    """The table of modules, whose first column are paths: rows with depths, by which they fold."""
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
    """The beginning of the row of a module, with its name."""
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
    marks = (
        f'<span><i class="swatch" style="background:{COLORS[work]}"></i>{work}</span>'
        for work in WORKS
        if work in there
    )
    return f'<p class="key">{"".join(marks)}</p>'


def _bar(parts: Sequence[tuple[str, float]], full_us: float) -> str:
    """A bar of kinds of work and their times, as long as its share of *full_us*."""
    pieces = "".join(
        f'<i style="width:{100 * us / full_us:.4f}%;background:{COLORS[work]}" '
        f'title="{work}: {span_named(us)}"></i>'
        for work, us in parts
        if us
    )
    return f'<div class="stack">{pieces}</div>'


def _shares(runs: Sequence[ModelRun]) -> str:
    """A bar for each run, to one scale."""
    longest_us = max((run.time_us for run in runs), default=0.0) or 1.0
    letters = ["", ""] if len(runs) == 1 else ["A", "B"]
    return "".join(
        f'<div class="share"><b>{letter}</b>'
        f"{_bar([(w, own.time_us) for w, own in tables.by_work(run).items()], longest_us)}"
        f"<span>{span_named(run.time_us)}</span></div>"
        for run, letter in zip(runs, letters, strict=False)
    )


def _longest_layer_us(runs: Sequence[ModelRun]) -> float:
    found = [sum(own.time_us for own in works.values())
             for run in runs for works in tables.by_layer(run).values()]  # fmt: skip
    return max(found, default=0.0) or 1.0


def _layers(run: ModelRun, longest_us: float) -> str:
    lines = []
    for layers, works in _alike(run):
        us = sum(own.time_us for own in works.values())
        launches = sum(own.launches for own in works.values())
        bar = _bar([(work, own.time_us) for work, own in works.items()], longest_us)
        first, count = layers[0].partition(".")[2] or layers[0], len(layers)
        last = layers[-1].rpartition(".")[2]
        name = first if count == 1 else f"{first} to {last}, {count} alike"
        cells = (span_named(us), f"{launches:,}", span_named(count * us),
                 percent(count * us / run.time_us))  # fmt: skip
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        told = f"{layers[0]} to {layers[-1]}" if count > 1 else layers[0]
        lines.append(
            f'<tr><td title="{escape(told)}">{escape(name)}</td><td class="wide">{bar}</td>'
            f"{numbers}</tr>"
        )
    heads = ("each", "launches", "together", "share")
    head = "<th>layer</th><th>kinds of work</th>"
    head += "".join(f'<th class="number">{each}</th>' for each in heads)
    return (
        f'<div class="scroll" tabindex="0"><table class="layers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _alike(run: ModelRun) -> list[tuple[list[str], dict[str, Total]]]:
    """Layers with their kinds of work; those of a list that are alike and in a row are one."""
    found: list[tuple[list[str], dict[str, Total]]] = []
    for layer, works in tables.by_layer(run).items():
        around, _, number = layer.rpartition(".")
        before = found[-1][0][-1].rpartition(".") if found else ("", "", "")
        if number.isdigit() and before[0] == around and found[-1][1] == works:
            found[-1][0].append(layer)
        else:
            found.append(([layer], works))
    return found


# ---- timelines ----


def _timelines(runs: Sequence[ModelRun]) -> str:
    ends_us = [run.launches[-1].end_us if run.launches else 0.0 for run in runs]
    full_us = max(1.01 * max(ends_us), 1.0)
    found = []
    for number, run in enumerate(runs):
        about, search = f"{run.title} on {run.device}", "kernel, operator, module"
        found.append(frame.timeline(number, payload(run, full_us), about, search))
    return "".join(_lettered(found)) if len(runs) > 1 else found[0]


def payload(run: ModelRun, full_us: float) -> dict[str, Any]:
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
