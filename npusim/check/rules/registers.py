"""Registers must be set before they are read, in program order of the scalar unit."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from npusim.check.rules.contents import where
from npusim.check.rules.rule import RuleError
from npusim.isa import MICRO_OPS, Register, registers_read, registers_set
from npusim.kernel.program import Body, Call, Program

__all__ = ["check_registers"]


Uses = tuple[dict[Register, int], set[Register]]
"""Registers that are read before they are set, with the micro-op; and all that are set."""
_USES: WeakKeyDictionary[Body, Uses] = WeakKeyDictionary()
_WITHOUT = {kind for kind in MICRO_OPS if all(role.memory != "register" for role in kind.roles)}
"""Micro-ops without registers: the majority, recognised quickly."""


def check_registers(program: Program) -> None:
    """Raise RuleError for the first micro-op of *program* that reads an unset register.

    The scalar unit issues the contents of a register with the micro-op, so program order counts.
    """
    known: set[Register] = set()
    # Registers that a body has set stay set, so its reads are valid when it runs again.
    for start, body in program.first_calls:
        needed, left = _uses(body)
        for register, index in needed.items():
            if register not in known:
                line = body.lines[index] if body.lines else None
                raise RuleError(
                    f"{where(program.name, start + index, line)}: {body.ops[index]}: a register "
                    f"must be set before it is read, but nobody has set {register!r}; load it with "
                    f"ScalarLoad or compute it with ScalarAlu first"
                )
        known |= left


def _uses(body: Body) -> Uses:
    """The register uses of *body*, found once."""
    found = _USES.get(body)
    if found is None:
        found = _USES[body] = _of_calls(body.calls) if body.calls else _of_leaf(body)
    return found


def _of_calls(calls: tuple[Call, ...]) -> Uses:
    needed: dict[Register, int] = {}
    left: set[Register] = set()
    start = 0
    for call in calls:
        reads, sets = _uses(call.body)
        for register, index in reads.items():
            if register not in left:
                needed.setdefault(register, start + index)
        left |= sets
        start += len(call.body)
    return needed, left


def _of_leaf(body: Body) -> Uses:
    needed: dict[Register, int] = {}
    left: set[Register] = set()
    for index, op in enumerate(body):
        if type(op) in _WITHOUT:
            continue
        for register in registers_read(op):
            if register not in left:
                needed.setdefault(register, index)
        left.update(registers_set(op))
    return needed, left
