"""Simulated times compared with times measured on silicon.

Rows are read from a CSV file, simulated without values, and summarised by family: the rows of one
source that were measured in one way on one kind of chip.

``silicon.csv`` ships with npusim: 3,553 kernels, each with a source. Its times are medians of the
profiler's Task Duration, or of events around a replayed graph, which include gaps; measurements of
one shape in different sources differ by 8 to 20 %, so no model can come closer to all of them.
"""

from npusim.validation.errors import Family, families
from npusim.validation.measure import Result, measure, measured
from npusim.validation.rows import Row, RowError, read
from npusim.validation.samples import sample

__all__ = [
    "Family",
    "Result",
    "Row",
    "RowError",
    "families",
    "measure",
    "measured",
    "read",
    "sample",
]
