"""Bodies that do the same with more or fewer bytes are walked as one, with the most of each.

Which micro-op comes before which follows from pipes, flags and barriers alone, and two that touch
more bytes race wherever two that touch fewer do. So where bodies differ in nothing but how much of
a buffer each micro-op touches, a body that touches at each place all that any of them does stands
for all: if it passes from some state, each of them passes. If it does not, that says nothing, and
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

__all__ = ["Envelopes"]

NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Envelopes:
    """For each body the one that stands for it, and what the micro-ops of these touch at most."""

    standing: dict[Body, Body] = field(default_factory=dict)
    touches: dict[int, Touches] = field(default_factory=dict)
    """What a micro-op of such a body touches, by its address: a body may have equal ones, which
    differ in what the other bodies touch there. The bodies keep them."""
    of_buffers: dict[int, Touches] = field(default_factory=dict)
    """What each micro-op of all bodies touches itself, global memory apart."""

    @staticmethod
    def of(bodies: Iterable[Body]) -> Envelopes:
        """Those of the bodies without calls that *bodies* are made of."""
        found = Envelopes()
        alike: dict[Hashable, list[Body]] = {}
        known: dict[MicroOp, tuple[Hashable, Touches]] = {}
        for body in dict.fromkeys(leaf for each in bodies for leaf in each.leaves):
            for op in body:
                if op not in known:
                    known[op] = _kind(op)
                found.of_buffers[id(op)] = known[op][1]
            alike.setdefault(tuple([known[op][0] for op in body]), []).append(body)
        for group in alike.values():
            found.standing.update(dict.fromkeys(group, group[0]))
            touches = [[known[op][1] for op in body] for body in group]
            for op, *touched in zip(group[0], *touches, strict=True):
                # One object may stand at several places of a body, or of several bodies.
                before = found.touches.get(id(op))
                found.touches[id(op)] = _joined([*touched, before] if before else touched)
        return found


def _kind(op: MicroOp) -> tuple[Hashable, Touches]:
    """What of *op* decides about order, and what it touches of buffers."""
    touches = Touches.of(op, NO_NAMES, NO_ALIASES)
    places = tuple((area.place, is_write, adds) for area, is_write, adds in touches.areas)
    on = op.on if isinstance(op, Barrier) else None
    unit = op.unit_flag if isinstance(op, Mmad | Fixpipe) else None
    return (type(op), op.pipe, on, unit, awaited(op), raised(op), places), touches


def _joined(touched: list[Touches]) -> Touches:
    """All bytes of *touched*, which touch the same places."""
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
