"""Accesses of micro-ops, page by page, and which of them race unless they are ordered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from npusim.check.hazards import areas
from npusim.check.hazards.aliases import NO_ALIASES, Aliases
from npusim.check.hazards.areas import Area
from npusim.devices.schema import Pipe
from npusim.isa import MicroOp, combined_as, global_operand, writes_global

__all__ = ["Access", "Key", "Touches", "clashing", "is_race", "shared_names"]

Key = tuple[str, bool, int]
"""Buffer or tensor, whether written, and page; only accesses to the same page are compared."""


def shared_names(ops: Iterable[MicroOp], aliases: Aliases = NO_ALIASES) -> set[str]:
    """Names of global memory that are written, and touched by another pipe too, maybe by an alias.

    Of several names for one tensor, the first represents all.
    """
    pipes: dict[str, set[Pipe]] = {}
    written: set[str] = set()
    for op in ops:
        place = global_operand(op)
        if place is not None:
            name, _ = aliases.place(place.name)
            pipes.setdefault(name, set()).add(op.pipe)
            if writes_global(op):
                written.add(name)
    return {name for name in written if len(pipes[name]) > 1}


class Access(NamedTuple):
    """The access of one micro-op to an area; *sequence* is its position on its pipe."""

    area: Area
    sequence: int
    is_write: bool
    op: int
    """Index of the micro-op."""
    adds: str | None = None
    """How it combines with the contents: two such accesses do not race."""

    def keys(self, is_write: bool) -> tuple[Key, ...]:
        """The keys under which it is stored, or those of writes or reads that may clash with it."""
        area = self.area
        return _keys(area.place, is_write, area.start, area.end)


GLOBAL = "gm "
"""Prefix of places in global memory, before the name of the tensor."""


@lru_cache(maxsize=4096)
def _keys(place: str, is_write: bool, start: int, end: int) -> tuple[Key, ...]:
    """The pages of a range: of 32 KiB in a buffer, of 1 MiB in global memory."""
    shift = 20 if place.startswith(GLOBAL) else 15
    pages = range(start >> shift, (end - 1 >> shift) + 1)
    return tuple((place, is_write, page) for page in pages)


class Touches(NamedTuple):
    """The accesses of a micro-op, whenever it runs."""

    areas: tuple[tuple[Area, bool, str | None], ...]
    """Each with whether it is written, and how it combines."""
    clashing: tuple[tuple[Key, int], ...]
    """Keys of accesses that may clash, and the index of the area they may clash with."""

    @staticmethod
    def of(op: MicroOp, shared: frozenset[str], aliases: Aliases) -> Touches:
        """The accesses of *op*; of global memory only *shared* names count."""
        found: list[tuple[Area, bool, str | None]] = [
            *((area, False, None) for area in areas.read(op)),
            *((area, True, None) for area in areas.written(op)),
        ]
        place = global_operand(op)
        if place is not None:
            name, base_bytes = aliases.place(place.name)
            if name in shared:
                area = areas.of_global(place, f"{GLOBAL}{name} ", base_bytes)
                found.append((area, writes_global(op), combined_as(op)))
        return Touches(tuple(found), clashing(found))


def clashing(touched: Sequence[tuple[Area, bool, str | None]]) -> tuple[tuple[Key, int], ...]:
    """Keys of accesses that may clash with those of *touched*, and with which of these.

    Everything clashes with writes of others; what is written here also clashes with their reads.
    """
    return tuple(
        (key, number)
        for of_writes in (True, False)
        for number, (area, is_write, _) in enumerate(touched)
        if of_writes or is_write
        for key in _keys(area.place, of_writes, area.start, area.end)
    )


def is_race(past: Access, access: Access) -> bool:
    """Whether two accesses, one of which writes, share bytes that they do not combine alike."""
    if past.adds is not None and past.adds == access.adds:
        return False
    a, b = past.area, access.area
    if a.end <= b.start or b.end <= a.start:
        return False
    return (a.shape is None and b.shape is None) or areas.common(a, b) is not None
