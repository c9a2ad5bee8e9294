"""A report: one HTML file that opens from disk and needs no network.

It holds the pictures of one run, or of several side by side, as SVG; a timeline to pan, zoom and
click; a roofline; tables; and every number of the chip with its source. The interactive parts are
`link.js` and `words.js`, as on every page, `zoom.js`, `lanes.js`, `details.js` and `page.js`, and
for the roofline `plot.js`, `roofs.js` and `roofline.js`; the styles are `page.css` and
`roofline.css`. Data are packed into the page (zlib, base64).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from npusim.reports import bounds, first_screen, frame, overview, roofline, roofline_chart, timeline
from npusim.reports.advice import Advised, section
from npusim.reports.frame import columns
from npusim.reports.gallery import PICTURES, figures
from npusim.reports.run_labels import Head, heads, titled
from npusim.reports.subject import Timed, longest_us, named, trace_of
from npusim.reports.svg import svg_of
from npusim.reports.tables import bound, devices, facts, path, pipes, rooflines, waits
from npusim.reports.timeline_data import has_details, payload
from npusim.trace.record import Record
from npusim.trace.summary import WORDS, Level

if TYPE_CHECKING:
    from npusim.chip import Progress, Stage

__all__ = ["glimpse", "report"]

SECTIONS = {
    "timeline": "Timeline",
    "roofline": "Roofline",
    "pictures": "Pictures",
    "advice": "What to change",
    "numbers": "Numbers",
    "tables": "Tables",
    "device": "The chip",
}
FOLDED = ("advice", "numbers", "tables", "device")
"""Sections of lists and tables, which are initially closed."""
CORES = (
    '<input class="cores" placeholder="all cores; or 0, 3-5, aic" aria-label="cores to show">'
    '<button data-act="fold">Collapse</button>'
)
HERE = "npusim.reports"
SUMMARISED = (
    "Most of this timeline is summarised: one bar per loop iteration, as high as the share of the "
    "time that its pipe is active. Zoom in, and its instructions appear."
)
JOINED = f"This timeline is {WORDS}. --level full shows all."
SHOWN = tuple(picture for picture in PICTURES if picture not in roofline.PICTURES)
"""The pictures of a page, which has one interactive roofline instead of the static ones."""
SCRIPTS = ("zoom", "lanes", "details", "plot", "roofs", "roofline", "page")


def report(
    runs: Sequence[Record],
    level: Level | None = None,
    progress: Progress | None = None,
    advice: Sequence[Sequence[Advised] | str] = (),
) -> str:
    """The page of one run, or of several that are compared with the first.

    *advice* is the advice for each run, or a sentence that says why there is none; without it, the
    page has no advice. *level* selects whether the timelines show every micro-op ("full") or a
    "summary", which is the default if there are too many. *progress* is called with the stages
    "timelines" and "pictures".
    Raises ValueError for no run, and for one that was not timed or had nothing to do.
    """
    if not runs:
        raise ValueError("reports: one run at least must be given, not none; run the operator")
    for run in runs:
        trace_of(run)
    report_progress = progress or _unheard
    names = heads(runs)
    sections = {
        "numbers": facts(runs),
        "timeline": columns(names, _timelines(runs, names, level, report_progress), wide=True),
        "roofline": roofline_chart.section(runs, _whose(runs, names)),
        "pictures": _pictures(runs, names, report_progress),
        "tables": columns(names, [_tables(run) for run in runs]),
        "device": devices(runs),
    }
    if len(runs) == 1:
        top = first_screen.of_run(runs[0], advice[0] if advice else None)
    else:
        top = overview.of_runs(runs, names)
        if advice:
            sections["advice"] = columns(names, [section(own) for own in advice])
    shown = {key: (name, sections[key]) for key, name in SECTIONS.items() if key in sections}
    body = top + frame.sections(shown, FOLDED)
    script = "".join(frame.text_of(HERE, f"{name}.js") for name in SCRIPTS)
    styles = frame.text_of(HERE, "page.css") + frame.text_of(HERE, "roofline.css")
    return frame.document(titled(runs), styles, script, body)


def glimpse(line: str, run: Timed | None) -> str:
    """A run as a notebook shows it: *line* as text, then a timeline and what bounds the run."""
    text = f"<p><code>{escape(line)}</code></p>"
    if run is None:
        return text
    shown = (timeline.PICTURE, bounds.PICTURE)
    return text + "".join(svg_of(each, picture.name) for picture, each in figures(run, (), shown))


def _whose(runs: Sequence[Record], names: Sequence[Head]) -> list[str]:
    """The name of each of *runs* in a chart: what distinguishes it from the others, or its call."""
    return [head.who or named(run) for run, head in zip(runs, names, strict=True)]


# ---- timelines ----


def _unheard(_: Stage, __: float) -> None:
    """Ignore the progress of a page."""


def _timelines(
    runs: Sequence[Record], names: Sequence[Head], level: Level | None, report_progress: Progress
) -> list[str]:
    found = []
    for number, (run, head) in enumerate(zip(runs, names, strict=True)):
        report_progress("timelines", number / len(runs))
        about = ", ".join(filter(None, (head.letter, named(run))))
        found.append(_timeline(run, number, about, longest_us(runs), level))
    return found


def _timeline(run: Record, number: int, about: str, end_us: float, level: Level | None) -> str:
    """The timeline of *run*, up to *end_us*, which is the same for all runs that are compared."""
    data = payload(trace_of(run), run.code, level) | {"end_us": end_us}
    note = ""
    if data["level"] == "summary":
        note = f'<p class="note">{SUMMARISED if has_details(data) else JOINED}</p>'
    return note + frame.timeline(number, data, about, "mnemonic, buffer, tensor", CORES)


# ---- pictures ----


def _pictures(runs: Sequence[Record], names: Sequence[Head], report_progress: Progress) -> str:
    headings: dict[str, str] = {}
    drawn: list[dict[str, str]] = []
    for number, run in enumerate(runs):
        drawn.append({})
        others = [other for other in runs if other is not run]
        for picture, figure in figures(run, others, SHOWN):
            share = (SHOWN.index(picture) + 1) / len(SHOWN)
            report_progress("pictures", (number + share) / len(runs))
            headings[picture.name] = picture.heading
            svg = svg_of(figure, f"{picture.name}{number}")
            label = ", ".join(filter(None, (names[number].letter, picture.heading)))
            start = f'<svg role="img" aria-label="{escape(label)}"'
            svg = svg.replace("<svg", start, 1)
            drawn[number][picture.name] = f'<figure tabindex="0">{svg}</figure>'
    nothing = '<p class="note">does not apply</p>'
    return "".join(
        f"<h3>{escape(heading)}</h3>{columns(names, [own.get(name, nothing) for own in drawn])}"
        for name, heading in headings.items()
    )


# ---- tables ----


def _tables(run: Record) -> str:
    return bound(run) + path(run) + pipes(run) + waits(run) + rooflines(run)
