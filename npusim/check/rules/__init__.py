"""The micro-ops that a device accepts: rows of (kinds, condition, message).

A row's predicate gets the micro-op and the :class:`Place` where it would run; if it is false, a
:class:`RuleError` names the micro-op, the condition, the value found and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from npusim.check.rules import (
    copies,
    fractals,
    matrix,
    overlap,
    rearranging,
    reductions,
    scalar,
    selection,
    sorting,
    strides,
    sync,
    vector,
)
from npusim.check.rules.contents import check_blocks, check_program, where
from npusim.check.rules.kinds import VECTOR
from npusim.check.rules.registers import check_registers
from npusim.check.rules.rule import Place, Rule, RuleError, named, operands
from npusim.check.rules.vector_dtypes import CASTS
from npusim.data.integers import align_up
from npusim.devices.schema import Core
from npusim.isa import (
    BLOCK_BYTES,
    MICRO_OPS,
    Barrier,
    Local,
    MicroOp,
    Role,
    ScalarAlu,
    Table,
    Trap,
)
from npusim.kernel.program import Body, Line, Program
from npusim.kernel.table import MicroOps

__all__ = ["CASTS", "Accepted", "Place", "RuleError", "check", "check_blocks"]

UNRESTRICTED = (ScalarAlu, Trap, Barrier)
"""Accepted by every core that has the pipe and the buffers of the operands."""


def _in_bounds(local: Local, core: Core) -> bool:
    size: int | None = getattr(core, f"{local.buffer}_bytes")
    if size is None or local.nbytes > size:
        return False  # with strides of 0 the latter end where they begin
    return 0 <= local.offset_bytes < local.end_bytes <= size


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


def _outside(op: MicroOp) -> tuple[Role, Local, Local] | None:
    """The first operand of *op* that touches more than it names: its role, operand and range."""
    for role, operand in named(op):
        touched = None if role.touched is None else getattr(op, role.touched)
        if isinstance(touched, Local):
            # Copies fill their last block, and claims are whole blocks.
            unit = BLOCK_BYTES if role.is_written else 1
            end = operand.offset_bytes + align_up(operand.nbytes, unit)
            if touched.offset_bytes < operand.offset_bytes or touched.end_bytes > end:
                return role, operand, touched
    return None


def _outside_text(op: MicroOp, _: Place) -> str:
    found = _outside(op)
    assert found is not None
    role, operand, touched = found
    return (
        f"{role.operand} must hold the {touched.nbytes} bytes that are {role.access}, "
        f"{touched}, not be {operand}; name more or move less"
    )


IN_OPERAND = Rule(MICRO_OPS, lambda op, _: _outside(op) is None, _outside_text)
"""No micro-op touches more than its operands name."""
SOLID = Rule(
    MICRO_OPS,
    lambda op, _: type(op) in VECTOR or not any(local.is_strided for _, local in named(op)),
    lambda op, _: (
        f"operands must be without strides, which vector instructions on ub alone have, not "
        f"{', '.join(str(local) for _, local in named(op))}; take the pieces one by one"
    ),
)
"""All other micro-ops have operands without strides."""
FIRST = (IN_BOUNDS, SOLID)
"""Rules that apply to every micro-op."""
RULES = (
    *copies.RULES,
    *vector.RULES,
    *rearranging.RULES,
    *selection.RULES,
    *reductions.RULES,
    *strides.RULES,
    *overlap.RULES,
    *sorting.RULES,
    *matrix.RULES,
    *fractals.RULES,
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


@dataclass(slots=True)
class Accepted:
    """What a kind of core is known to accept: bodies, and numbered *micro_ops*."""

    micro_ops: MicroOps = field(default_factory=MicroOps)
    bodies: set[Body] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)


def check(program: Program, place: Place, known: Accepted | None = None) -> None:
    """Raise RuleError for the first micro-op of *program* that *place* does not accept.

    Shared bodies are checked once, without their shifts, on which no rule depends; a micro-op's
    index is that of its first call. What is *known* to be accepted there is skipped; the rest is
    added to it.
    """
    check_program(program)
    if place.kind not in place.spec.cores:
        raise RuleError(
            f"{program.name}: a block must run on a kind of core that {place.spec.name} has, one "
            f"of {', '.join(place.spec.cores)}, not {place.kind}; take one of these"
        )
    check_registers(program)
    known = known or Accepted()
    if known.bodies.issuperset(program.leaves):
        return
    for start, body in program.first_leaves:
        if body in known.bodies:
            continue
        known.bodies.add(body)
        for index, number in enumerate(known.micro_ops.of(body)):
            if number not in known.numbers:
                known.numbers.add(number)
                line = body.lines[index] if body.lines else None
                _check(program.name, start + index, body.ops[index], place, line)


def _check(name: str, index: int, op: MicroOp, place: Place, line: Line | None) -> None:
    if op.pipe not in place.core.pipes:
        raise RuleError(
            f"{where(name, index, line)}: {op}: its pipe must be one of {place.kind}'s, which are "
            f"{', '.join(place.core.pipes)}, not {op.pipe}; run it on another kind of core"
        )
    for rule in (*FIRST, *ROWS[type(op)], IN_OPERAND):
        if not rule.holds(op, place):
            raise RuleError(f"{where(name, index, line)}: {op}: {rule.says(op, place)}")
