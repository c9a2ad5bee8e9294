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
from npusim.kernel.table import MicroOps

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
    def of(bodies: Iterable[Body], micro_ops: MicroOps) -> Envelopes:
        """Those of the bodies without calls that *bodies* are made of, *micro_ops* by number."""
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
                # One object may stand at several places of a body, or of several bodies.
                before = found.touches.get(id(op))
                each = [touches[number] for number in dict.fromkeys(touched)]
                found.touches[id(op)] = _joined([*each, before] if before else each)
        return found


def _kind(op: MicroOp, touches: Touches) -> Hashable:
    """What of *op*, which *touches* so much of buffers, decides about order."""
    places = tuple((area.place, is_write, adds) for area, is_write, adds in touches.areas)
    on = op.on if isinstance(op, Barrier) else None
    unit = op.unit_flag if isinstance(op, Mmad | Fixpipe) else None
    return type(op), op.pipe, on, unit, awaited(op), raised(op), places


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
