"""A run of a model as a page and as tables, and the comparison of several runs."""

from __future__ import annotations

from npusim.reports.model.compare import compared, headline_of
from npusim.reports.model.folder import kind, write
from npusim.reports.model.headline import coverage, headline
from npusim.reports.model.page import page
from npusim.reports.model.sheets import Sheet, sheets

__all__ = [
    "Sheet",
    "compared",
    "coverage",
    "headline",
    "headline_of",
    "kind",
    "page",
    "sheets",
    "write",
]
