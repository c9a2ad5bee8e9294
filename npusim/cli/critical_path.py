"""The critical path as `npusim run --critical-path` prints it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from npusim.cli.screen import RemarkedTable, table
from npusim.reports.path import MOST_PARTS, CriticalPath

__all__ = ["path_tables"]


def path_tables(path: CriticalPath) -> Group:
    """Micro-ops of the path, flags between cores on it, slack, and when cores were done."""
    tables: list[RenderableType] = [_parts(path), _slack(path), _finishes(path)]
    if path.crossings:
        tables.insert(1, _crossings(path))
    return Group(*(part for each in tables for part in (Text(), each)))


def _parts(path: CriticalPath) -> RemarkedTable:
    headings = "critical path", "micro-op", "count", "us", "share"
    listing = RemarkedTable(*headings, numbers=slice(2, None))
    for part in path.parts[:MOST_PARTS]:
        share = f"{100 * part.share:.1f} %"
        numbers = str(part.micro_ops), f"{part.us:.2f}", share
        cells = f"{part.pipe} of {part.kind}", part.name, *numbers
        listing.add_row(*cells, remark=f"mostly {part.words}" if round(part.us, 2) else "")
    return listing


def _crossings(path: CriticalPath) -> Table:
    listing = table("from core", "to core", "flag", "set at us")
    for each in path.crossings[:MOST_PARTS]:
        listing.add_row(
            f"{each.core} ({each.kind}), {each.pipe}",
            f"{each.dst_core} ({each.dst_kind}), {each.dst_pipe}",
            each.flag,
            f"{each.set_us:.2f}",
        )
    return _right(listing, 3)


def _slack(path: CriticalPath) -> Table:
    listing = table("core", "pipe", "minimum slack, cycles", "median slack")
    for each in path.slack:
        numbers = str(each.cycles), str(each.median_cycles)
        listing.add_row(f"{each.core} ({each.kind})", each.pipe, *numbers)
    return _right(listing, 2, 3)


def _finishes(path: CriticalPath) -> Table:
    names = "core balance", "active", "unused", "first done us", "half done us", "all done us"
    listing = table(*names, "tail imbalance")
    for each in path.finishes:
        times = (f"{us:.2f}" for us in (each.first_us, each.median_us, each.last_us))
        listing.add_row(
            each.kind, str(len(each.done_us)), str(each.left_out or 0), *times, str(each.idle)
        )
    return _right(listing, *range(1, 7))


def _right(listing: Table, *columns: int) -> Table:
    for number in columns:
        listing.columns[number].justify = "right"
    return listing
