"""In which formats commands write, as they are typed."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["MapFormat", "PageFormat", "RowFormat"]


class MapFormat(StrEnum):
    """How the map of a layout is written."""

    TEXT = "text"
    CSV = "csv"
    MD = "md"
    JSON = "json"
    SVG = "svg"
    PNG = "png"
    HTML = "html"


class PageFormat(StrEnum):
    """How a report is written."""

    HTML = "html"
    PNG = "png"
    SVG = "svg"
    PDF = "pdf"


class RowFormat(StrEnum):
    """How the rows of a sweep are printed."""

    TEXT = "text"
    CSV = "csv"
    JSON = "json"
