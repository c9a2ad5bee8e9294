"""Which micro-ops a device accepts: rows of (kinds, what must hold, what to say when it does not).

A row's predicate gets the micro-op and the :class:`Place` it would run on; a false answer becomes a
:class:`RuleError` that names the micro-op, what must hold, what came and what to do.
"""

from __future__ import annotations

from npusim.check.rules import copies, matrix, scalar, sync, vector
from npusim.check.rules.rule import Place, Rule, RuleError, operands
from npusim.check.rules.vector import CASTS
from npusim.devices.schema import Core
from npusim.isa import (
    MICRO_OPS,
    Barrier,
    BroadcastToL0c,
    Local,
    MicroOp,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Table,
    Trap,
)
from npusim.kernel.program import Body, Program

__all__ = ["CASTS", "Place", "RuleError", "check"]

UNRESTRICTED = (BroadcastToL0c, ScalarLoad, ScalarStore, ScalarAlu, Trap, Barrier)
"""What every core accepts that has its pipe and its operands' buffers."""


def _in_bounds(local: Local, core: Core) -> bool:
    size = getattr(core, f"{local.buffer}_bytes", None)
    return size is not None and 0 <= local.offset_bytes < local.end_bytes <= size


def _bounds_text(op: MicroOp, place: Place) -> str:
    core = place.core
    bad = next(local for local in operands(op) if not _in_bounds(local, core))
    size = getattr(core, f"{bad.buffer}_bytes", None)
    have = f"the {size} bytes of {bad.buffer}" if size else f"a buffer that {place.kind} has"
    return f"each operand must be a range within {have}, not {bad}; claim it with the builder"


IN_BOUNDS = Rule(
    MICRO_OPS,
    lambda op, at: all(_in_bounds(local, at.core) for local in operands(op)),
    _bounds_text,
)
"""Of every micro-op, whatever else holds for it."""
RULES = (
    *copies.RULES,
    *vector.RULES,
    *matrix.RULES,
    *scalar.RULES,
    *sync.RULES,
)
ROWS: Table[tuple[Rule, ...]] = Table(
    "rules.ROWS",
    "rules, or stand in UNRESTRICTED",
    MICRO_OPS,
    {
        kind: tuple(rule for rule in RULES if kind in rule.kinds)
        for kind in {kind: None for rule in RULES for kind in rule.kinds}
    }
    | dict.fromkeys(UNRESTRICTED, ()),
)


def check(program: Program, place: Place) -> None:
    """Raise RuleError for the first micro-op of *program* that *place* does not accept.

    Bodies that calls share are looked at once, without their shifts, on which no rule depends; a
    micro-op's number is the one of its first call.
    """
    known: set[Body] = set()
    seen: set[MicroOp] = set()
    start = 0
    for call in program.calls:
        if call.body not in known:
            known.add(call.body)
            for index, op in enumerate(call.body, start):
                if op not in seen:
                    seen.add(op)
                    _check(program.name, index, op, place)
        start += len(call.body)


def _check(name: str, index: int, op: MicroOp, place: Place) -> None:
    if op.pipe not in place.core.pipes:
        raise RuleError(
            f"{name} #{index}: {op}: its pipe must be one of {place.kind}'s, which are "
            f"{', '.join(place.core.pipes)}, not {op.pipe}; run it on another kind of core"
        )
    for rule in (IN_BOUNDS, *ROWS[type(op)]):
        if not rule.holds(op, place):
            raise RuleError(f"{name} #{index}: {op}: {rule.says(op, place)}")
