"""The interactive roofline of a page: all roofs and points of its runs on one pair of axes.

`plot.js` zooms and writes, `roofs.js` has the words, `roofline.js` draws. This module prepares
their data: rows of :mod:`npusim.reports.roofline`, and the device numbers behind each roof.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from npusim.data.dtypes import dtype_named
from npusim.data.json import Json
from npusim.devices.schema import DeviceSpec
from npusim.reports import frame, style
from npusim.reports.limits import Limit
from npusim.reports.roofline import TITLES, Row, rows, slug
from npusim.reports.run_labels import letters
from npusim.reports.subject import Timed, named

__all__ = ["payload", "section"]

KEYS = (
    ("zoom", ("Ctrl + wheel", "W", "S")),
    ("move", ("drag", "A", "D")),
    ("next one", ("&larr;", "&rarr;")),
    ("from a point to its roof, and back", ("&uarr;", "&darr;")),
    ("tell", ("Enter", "click")),
    ("all", ("0", "double click")),
    ("clear", ("Esc",)),
)
"""The actions on the chart, and their keys while it has the focus."""


def section(runs: Sequence[Timed], names: Sequence[str] = ()) -> str:
    """The chart of all *runs*, labelled A, B, C if there are several, as markup with its data.

    *names* distinguish several runs; the default is operator and chip.
    Raises ValueError for a run that was not timed or had nothing to do.
    """
    data = payload(runs, names)
    if not data["rows"]:
        return '<p class="note">does not apply: nothing was computed, or nothing was moved</p>'
    options = "".join(
        f'<option value="{name}">{escape(title)}</option>' for name, title in data["titles"]
    )
    about = escape(", ".join(dict.fromkeys(run["name"] for run in data["runs"])))
    return (
        f'<div class="roofline" data-source="roofs" data-about="{about}"><div class="bar">'
        f'<label>roofs of <select>{options}<option value="all">all</option></select></label>'
        '<button data-act="in" aria-label="zoom in">+</button>'
        '<button data-act="out" aria-label="zoom out">&minus;</button>'
        '<button data-act="all">all</button><span class="where"></span></div>'
        '<noscript><p class="note">This chart needs scripts; a table below has the numbers.</p>'
        '</noscript><div class="plot"></div><div class="legend"></div>'
        '<div class="details" aria-live="polite"></div>'
        f"{frame.keys('keysroofs', KEYS)}</div>{frame.packed('roofs', data)}"
    )


def payload(runs: Sequence[Timed], names: Sequence[str] = ()) -> Json:
    """The data of *runs* and their *names* for the page, as plain numbers and strings."""
    known = _Known()
    found = []
    for number, run in enumerate(runs):
        chip = known.chip(run.device)
        for row in rows(run):
            limits = known.limit(chip, row.slanted, "B/s"), known.limit(chip, row.flat, *_flat(row))
            found.append([number, slug(row.title), row.name, *limits, row.intensity, row.ops_per_s])
    titles = {row[1] for row in found}
    return {
        "runs": [
            {"letter": letter, "name": name, "chip": known.chip(run.device)}
            for letter, name, run in zip(
                letters(len(runs)), names or map(named, runs), runs, strict=True
            )
        ],
        "titles": [[slug(title), title] for title in TITLES if slug(title) in titles],
        "chips": known.chips,
        "limits": known.limits,
        "rows": found,
        "looks": [_look(place) for place in range(len(style.MANY_COLORS))],
    }


def _flat(row: Row) -> tuple[str, str]:
    """The unit of a flat part, and the name of its peak."""
    if row.unit == "vector":
        return "OPS", f"the vector unit's peak for elements of {row.elements}"
    unit = "FLOPS" if dtype_named(row.elements).is_float else "OPS"
    return unit, f"the cube's peak for {row.elements}"


class _Known:
    """Chips and limits, each stored once and referred to by its index."""

    def __init__(self) -> None:
        self.chips: list[Json] = []
        self.limits: list[Json] = []
        self._specs: list[DeviceSpec] = []
        self._places: dict[tuple[int, Limit], int] = {}

    def chip(self, spec: DeviceSpec) -> int:
        """The index of the chip *spec*."""
        if spec not in self._specs:
            self._specs.append(spec)
            self.chips.append({"name": spec.name, "numbers": {}})
        return self._specs.index(spec)

    def limit(self, chip: int, limit: Limit, unit: str, words: str = "") -> int:
        """The index of a *limit* of a chip; *words* describe it next to its rows."""
        if (chip, limit) not in self._places:
            self._places[chip, limit] = len(self.limits)
            for term in limit.terms:
                for key, value in term.numbers:
                    source = self._specs[chip].sources.get(key)
                    self.chips[chip]["numbers"][key] = [value, *reversed(source or ("", ""))]
            terms = [[term.factor, [key for key, _ in term.numbers]] for term in limit.terms]
            own = {"chip": chip, "per_s": limit.per_s, "unit": unit, "words": words}
            self.limits.append(own | {"terms": terms})
        return self._places[chip, limit]


def _look(place: int) -> list[str]:
    """A colour for a light background, the same for a dark one, and a marker."""
    color, marker = style.look(place)
    return [style.seen_on(color, LIGHT), style.seen_on(color, DARK), marker]


LIGHT, DARK = "#ffffff", "#191919"
"""The background of a page, as in page.css."""
