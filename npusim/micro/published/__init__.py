"""Kernels with published times, as far as the publication describes them."""

from __future__ import annotations

from npusim.micro.published.copies import ADD, ALIKE, REORDER, TO_L1, TO_UB
from npusim.micro.published.elementwise import CASTS, MAXIMA
from npusim.micro.published.pipes import PIPES_US, mean_pipes_us
from npusim.micro.published.products import PRODUCTS
from npusim.micro.published.rows import Row, Table

__all__ = ["PIPES_US", "TABLES", "Row", "Table", "find", "mean_pipes_us"]

TABLES = (ADD, TO_UB, TO_L1, ALIKE, REORDER, CASTS, MAXIMA, *PRODUCTS)


def find(row: str) -> tuple[Table, Row] | None:
    """The table and the row with that id, if it is here."""
    for table in TABLES:
        for found in table.rows:
            if found.id == row:
                return table, found
    return None
