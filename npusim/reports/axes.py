"""Axes that a notebook displays as a picture."""

from __future__ import annotations

from io import BytesIO

from matplotlib.axes import Axes

__all__ = ["ShownAxes"]

NOTEBOOK_DPI = 96
"""A CSS pixel is 1/96 of an inch (W3C, CSS Values and Units 4, 6.2)."""


class ShownAxes(Axes):
    """The only axes of a picture."""

    def _repr_png_(self) -> bytes:
        """The whole picture, with its titles."""
        file = BytesIO()
        self.get_figure().savefig(file, format="png", dpi=NOTEBOOK_DPI)  # type: ignore[union-attr]
        return file.getvalue()
