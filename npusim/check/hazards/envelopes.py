"""Walks bodies that differ only in how many bytes they touch as one, with the most bytes.

The order of micro-ops follows from pipes, flags and barriers alone, and two that touch more bytes
race wherever two that touch fewer do. So if bodies differ only in how much of a buffer each
micro-op touches, an envelope that touches everything that any of them does can replace all of them:
if it passes from some state, each of them passes. If it does not, the result is inconclusive, and
they are walked one by one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from npusim.check.hazards.accesses import Touches, clashing
from npusim.check.hazards.aliases import NO_ALIASES
from npusim.check.hazards.areas import Area
from npusim.check.hazards.flags import awaited, raised
from npusim.isa import Barrier, Fixpipe, MicroOp, Mmad
from npusim.kernel.program import Body
from npusim.kernel.table import MicroOps

__all__ = ["Envelopes"]

NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Envelopes:
    """The envelope of each body, and the accesses of its micro-ops."""

    standing: dict[Body, Body] = field(default_factory=dict)
    touches: dict[int, Touches] = field(default_factory=dict)
    """The accesses of each micro-op of an envelope, by its address: a body may contain equal ones
    whose envelopes differ. The bodies keep the objects alive."""
    of_buffers: dict[int, Touches] = field(default_factory=dict)
    """The accesses of each micro-op of the bodies themselves, without global memory."""

    @staticmethod
    def of(bodies: Iterable[Body], micro_ops: MicroOps) -> Envelopes:
        """The envelopes of the bodies without calls in *bodies*, with numbered *micro_ops*."""
        found = Envelopes()
        leaves = dict.fromkeys(leaf for each in bodies for leaf in each.leaves)
        numbers = {body: micro_ops.of(body) for body in leaves}
        touches = [Touches.of(op, NO_NAMES, NO_ALIASES) for op in micro_ops.distinct]
        kinds: dict[Hashable, int] = {}
        kind = [
            kinds.setdefault(_kind(op, each), len(kinds))
            for op, each in zip(micro_ops.distinct, touches, strict=True)
        ]
        alike: dict[Hashable, list[Body]] = {}
        for body, own in numbers.items():
            found.of_buffers.update(zip(map(id, body), map(touches.__getitem__, own), strict=True))
            alike.setdefault(tuple(map(kind.__getitem__, own)), []).append(body)
        for group in alike.values():
            found.standing.update(dict.fromkeys(group, group[0]))
            for op, *touched in zip(group[0], *map(numbers.__getitem__, group), strict=True):
                # One object may occur at several places of a body, or of several bodies.
                before = found.touches.get(id(op))
                each = [touches[number] for number in dict.fromkeys(touched)]
                found.touches[id(op)] = _joined([*each, before] if before else each)
        return found


def _kind(op: MicroOp, touches: Touches) -> Hashable:
    """The properties of *op*, with its accesses *touches*, that matter for order."""
    places = tuple((area.place, is_write, adds) for area, is_write, adds in touches.areas)
    on = op.on if isinstance(op, Barrier) else None
    unit = op.unit_flag if isinstance(op, Mmad | Fixpipe) else None
    return type(op), op.pipe, on, unit, awaited(op), raised(op), places


def _joined(touched: list[Touches]) -> Touches:
    """The union of *touched*, which touch the same places."""
    first, *others = dict.fromkeys(touches.areas for touches in touched)
    if not others:
        return touched[0]
    found = []
    for number, (area, is_write, adds) in enumerate(first):
        each = {area, *(areas[number][0] for areas in others)}
        if len(each) > 1:
            area = Area(area.place, min(x.start for x in each), max(x.end for x in each))
        found.append((area, is_write, adds))
    return Touches(tuple(found), clashing(found))
