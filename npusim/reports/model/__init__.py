"""A run of a model as a page, as tables, and held against another one."""

from __future__ import annotations

from npusim.reports.model.headline import headline

__all__ = ["headline"]
