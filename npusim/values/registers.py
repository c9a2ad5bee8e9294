"""Registers in programs that are not computed in program order.

The scalar unit issues the contents of a register with a micro-op, which may wait in the queue of
its pipe while the register is set again. If computed later, it would read the new contents; so a
register gets a new name each time it is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from npusim.isa import MicroOp, Register, ScalarLoop

__all__ = ["renamed"]


def renamed(ops: Iterable[MicroOp]) -> list[MicroOp]:
    """*ops*, in program order, with a new register name for each assignment."""
    times: Counter[Register] = Counter()
    return [_renamed(op, times) for op in ops]


def _renamed(op: MicroOp, times: Counter[Register]) -> MicroOp:
    """*op* with the registers it refers to; *times* counts the assignments of each so far."""
    if isinstance(op, ScalarLoop):
        # Iterations set each register before they read it.
        return replace(op, body=tuple(_renamed(part, times) for part in op.body))  # type: ignore[misc]
    changes: dict[str, Register] = {}
    named = [role for role in op.roles if role.memory == "register"]
    for role in sorted(named, key=lambda role: role.is_written):
        name = getattr(op, role.operand)
        if isinstance(name, str):
            times[name] += role.is_written
            changes[role.operand] = f"{name} {times[name]}"
    return replace(op, **changes) if changes else op  # type: ignore[type-var]
