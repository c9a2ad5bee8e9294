"""A run of a model as a page, as tables, and held against another one."""

from __future__ import annotations

from npusim.reports.model.compare import compared, headline_of_two
from npusim.reports.model.folder import kind, write
from npusim.reports.model.headline import coverage, headline
from npusim.reports.model.page import page
from npusim.reports.model.sheets import Sheet, sheets

__all__ = [
    "Sheet",
    "compared",
    "coverage",
    "headline",
    "headline_of_two",
    "kind",
    "page",
    "sheets",
    "write",
]
