"""The tables of a report, as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from npusim.devices.schema import DeviceSpec
from npusim.reports import bounds, costs, roofline, style
from npusim.reports.causes import Bound, causes
from npusim.reports.path import CriticalPath, path_of
from npusim.reports.run_labels import argument, letters, listed, numbers_of
from npusim.reports.subject import slowest_lanes, trace_of
from npusim.trace.record import Record

__all__ = [
    "bound",
    "devices",
    "difference",
    "facts",
    "path",
    "pipes",
    "rooflines",
    "table",
    "waits",
]

Cell = str | int | float


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], marked: Sequence[bool] = ()) -> str:
    """A table; numbers are aligned to the right, *marked* rows are coloured."""

    def cell(tag: str, value: Cell, number: bool) -> str:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        kind = ' class="number"' if number else ""
        # A screen reader needs a heading that is not empty.
        tag = tag if text else "td"
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    numbers = [
        bool(rows) and all(isinstance(row[place], int) or _is_amount(row[place]) for row in rows)
        for place in range(len(head))
    ]
    top = "".join(cell("th", name, number) for name, number in zip(head, numbers, strict=True))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(cell("td", value, n) for value, n in zip(row, numbers, strict=True))
        differs = ' class="differs"' if index < len(marked) and marked[index] else ""
        lines.append(f"<tr{differs}>{cells}</tr>")
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _is_amount(value: Cell) -> bool:
    return value == "" or re.match(r"[<+-]? ?\d", str(value)) is not None


def facts(runs: Sequence[Record]) -> str:
    """The runs and their times; for several runs, how each differs from the first."""
    facts_of_runs = [_facts(run) for run in runs]
    names = dict.fromkeys(name for own in facts_of_runs for name in own)
    rows: list[list[Cell]] = []
    marked = []
    for name in names:
        (text, number), *others = (own.get(name, ("", None)) for own in facts_of_runs)
        row: list[Cell] = [name, text]
        for other, its_number in others:
            row += [other, difference(number, its_number)]
        rows.append(row)
        marked.append(any(other != text for other, _ in others))
    if len(runs) == 1:
        return table(["", "value"], rows)
    first, *rest = letters(len(runs))
    head = ["", first, *(name for own in rest for name in (own, f"{own} against {first}"))]
    return table(head, rows, marked)


MANY = 2.0
"""From this ratio on, the ratio is clearer than a difference in percent."""
MANY_WHOLE = 10.0
FROM_NOTHING = 2000.0
"""From this ratio on, the earlier value is next to nothing: in reverse it is -100.0 %."""
ALIKE = {"+0.0 %": "a little more", "-0.0 %": "a little less", "-100.0 %": "next to nothing"}
"""A difference that rounding would hide, or make -100 % -> its printed form."""


def difference(a: float | None, b: float | None) -> str:
    """The difference of *b* from *a* in percent, or as a factor if that is clearer.

    >>> difference(8.0, 9.0), difference(9.0, 8.0), difference(1.0, 15.0), difference(1.0, 3308.0)
    ('+12.5 %', '-11.1 %', '15 times', 'from next to nothing')
    """
    if a is None or b is None:
        return ""
    if a == b:
        return "same"
    if not a:
        return "new"
    ratio = b / a
    if ratio >= FROM_NOTHING:
        return "from next to nothing"
    if ratio >= MANY:
        return f"{ratio:,.0f} times" if ratio >= MANY_WHOLE else f"{ratio:.1f} times"
    percent = f"{100 * (ratio - 1):+.1f} %"
    return ALIKE.get(percent, percent) if b else percent


def _facts(run: Record) -> dict[str, tuple[str, float | None]]:
    """Name -> its text, and the number to compare, if it is a number."""
    trace, known = trace_of(run), run.facts
    found: dict[str, tuple[str, float | None]] = {
        "operator": (run.op, None),
        "chip": (f"{run.device.series} ({run.device.name})", None),
        "arguments": (
            "; ".join(f"{name} {argument(value)}" for name, value in known["arguments"].items()),
            None,
        ),
        "L2 at launch": (str(known["l2"]), None),
        "instructions at launch": (str(known["icache"]), None),
    }
    if known.get("template"):
        found["template"] = f"{known['template']}: {known.get('reason') or ''}".rstrip(": "), None
    time_us = float(known["time_us"])
    found["time"] = style.time_named(time_us), time_us
    if run.accuracy is not None:
        found["accuracy"] = str(run.accuracy), None
        if run.accuracy.nearest is not None:
            found["closest measurement"] = str(run.accuracy.nearest), None
    if len(run.launches) > 1:
        each = (f"{launch.op} {style.time_named(launch.time_us or 0)}" for launch in run.launches)
        found["launches"] = ", ".join(each), float(len(run.launches))
    for row in costs.rows(run):
        found["pipe that is active longest"] = row.pipe, None
        found[row.label] = style.time_named(row.us), row.us
    for name, nbytes in (
        ("bytes from and to global memory", trace.gm_bytes),
        ("bytes from and to the L2", trace.l2_bytes),
    ):
        found[name] = f"{nbytes:,}", float(nbytes)
    found["cores"] = str(len(trace.cores)), float(len(trace.cores))
    found["micro-ops"] = f"{trace.micro_ops:,}", float(trace.micro_ops)
    found["cycles"] = f"{trace.cycles:,} at {trace.clock_hz / 1e9:g} GHz", float(trace.cycles)
    return found


def pipes(run: Record) -> str:
    """Counters of the pipes of the slowest cores."""
    trace = trace_of(run)
    rows = [
        (
            f"{lane.cores[0]} ({lane.kind})",
            pipe,
            style.percent(counter.busy_cycles / trace.cycles),
            style.percent(works[pipe] / trace.cycles),
            counter.busy_cycles,
            counter.micro_ops,
            counter.nbytes,
        )
        for lane in slowest_lanes(trace)
        for counters, works in [(lane.counters(), lane.work_cycles())]
        for pipe, counter in sorted(counters.items(), key=lambda own: style.PIPES.index(own[0]))
    ]
    head = ["core", "pipe", "busy", "active", "busy cycles", "micro-ops", "bytes of GM and L2"]
    return "<h3>Pipes of the slowest cores</h3>" + table(head, rows)


def bound(run: Record) -> str:
    """The causes that were simulated, the gain of each, and the chip numbers it depends on."""
    kinds = {lane.kind for lane in trace_of(run).lanes}
    rows = [
        [found.words, _pipes_named(found, len(kinds) > 1), style.percent(found.share),
         style.percent(found.path_share), ", ".join(found.numbers)]
        for found in causes(run)
    ]  # fmt: skip
    head = ["cause", "pipes", "share of the time, tried", "of the critical path",
            "numbers of the chip"]  # fmt: skip
    return "<h3>What bounds it</h3>" + table(head, rows)


def _pipes_named(found: Bound, has_kinds: bool) -> str:
    if not has_kinds:
        return ", ".join(pipe for _, pipe in found.where)
    return ", ".join(f"{pipe} of {kind}" for kind, pipe in found.where)


def path(run: Record) -> str:
    """What the end depends on: micro-ops of the path, slack of pipes, and when cores finished."""
    found = path_of(run)
    parts: list[list[Cell]] = [
        [f"{part.pipe} of {part.kind}", part.name, part.micro_ops, style.time_named(part.us),
         style.percent(part.share), part.words]
        for part in found.parts[:MOST_PARTS]
    ]  # fmt: skip
    head = ["pipe", "micro-op", "on the path", "time", "share", "mostly"]
    text = "<h3>The critical path</h3>" + table(head, parts)
    if found.crossings:
        text += _crossings(found)
    us = 1e6 / trace_of(run).clock_hz
    slack: list[list[Cell]] = [
        [f"{each.core} ({each.kind})", each.pipe, style.time_named(each.cycles * us),
         style.time_named(each.median_cycles * us)]
        for each in found.slack
    ]  # fmt: skip
    head = ["core", "pipe", "minimum slack", "median slack"]
    text += "<h3>Slack</h3>" + table(head, slack)
    done: list[list[Cell]] = [
        [each.kind, len(each.done_us), each.left_out or 0,
         *map(style.time_named, (each.first_us, each.median_us, each.last_us)), each.idle]
        for each in found.finishes
    ]  # fmt: skip
    head = ["cores", "active", "unused", "first done", "half done", "all done",
            "tail imbalance: idle cores"]  # fmt: skip
    return text + "<h3>Core balance</h3>" + table(head, done)


def _crossings(found: CriticalPath) -> str:
    rows: list[list[Cell]] = [
        [style.time_named(each.set_us), f"{each.core} ({each.kind}), {each.pipe}",
         f"{each.dst_core} ({each.dst_kind}), {each.dst_pipe}", each.flag]
        for each in found.crossings[:MOST_PARTS]
    ]  # fmt: skip
    left = len(found.crossings) - len(rows)
    note = f'<p class="note">and {left:,} more</p>' if left else ""
    head = ["set at", "from core", "to core", "flag"]
    return "<h3>Flags between cores on the critical path</h3>" + table(head, rows) + note


MOST_PARTS = 12
"""The most rows of a table; the rest are small."""


def waits(run: Record) -> str:
    """Where the time of each of these pipes went."""
    rows = [
        [f"{row.core} ({row.kind})", row.pipe, row.reason, style.time_named(row.us),
         style.percent(row.share)]
        for row in bounds.rows(run)
    ]  # fmt: skip
    head = ["core", "pipe", "active, or stalled on", "time", "share"]
    return "<h3>What they did, and what stalled them</h3>" + table(head, rows)


def rooflines(run: Record) -> str:
    """The attainable and the achieved performance for each memory, pipe and path."""
    rows = [
        [row.title, row.name, f"{row.intensity:.3g}", f"{row.ops_per_s / 1e12:.3g}",
         f"{row.allowed_ops_per_s / 1e12:.3g}", style.percent(row.share)]
        for row in roofline.rows(run)
    ]  # fmt: skip
    head = ["title", "roof", "operations a byte", "TOPS", "allowed", "reached"]
    return "<h3>Rooflines</h3>" + table(head, rows)


def devices(runs: Sequence[Record]) -> str:
    """Every number of the chips, with its source; with several chips, differences are marked."""
    chips = _chips(runs)
    leaves = [numbers_of(chip) for _, chip in chips]
    names = dict.fromkeys(key for own in leaves for key in own)
    rows: list[list[Cell]] = []
    marked = []
    for key in names:
        row: list[Cell] = [key]
        for (_, chip), own in zip(chips, leaves, strict=True):
            source = chip.sources.get(key)
            texts = (source.confidence, source.text) if source else ("", "")
            row.append(_shown(own.get(key, "")))
            row += texts if len(chips) == 1 else [": ".join(filter(None, texts))]
        rows.append(row)
        marked.append(any(own.get(key) != leaves[0].get(key) for own in leaves))
    head = ["number", "value", "confidence", "source"]
    if len(chips) > 1:
        head = ["number", *(name for chip, _ in chips for name in (chip, "its source"))]
    chip_names = listed(list(dict.fromkeys(chip.name for _, chip in chips)))
    return (
        f"<details><summary>Every number of {escape(chip_names)}, with its source</summary>"
        f'<div class="keep" lang="en">{table(head, rows, marked)}</div></details>'
    )


def _chips(runs: Sequence[Record]) -> list[tuple[str, DeviceSpec]]:
    """Each chip once, with its name, and with letters of runs if other chips have the same name."""
    found: list[tuple[list[str], DeviceSpec]] = []
    for letter, run in zip(letters(len(runs)), runs, strict=True):
        known = next((own for own, chip in found if chip == run.device), None)
        if known is None:
            found.append(([letter], run.device))
        else:
            known.append(letter)
    names = [chip.name for _, chip in found]
    return [(chip.name if names.count(chip.name) == 1 else f"{chip.name} ({', '.join(own)})", chip)
            for own, chip in found]  # fmt: skip


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
