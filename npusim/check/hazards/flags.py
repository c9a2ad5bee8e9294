"""The flags by which micro-ops order the pipes of their core: who sets and who waits for which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from npusim.isa import (
    ORDERING,
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    MicroOp,
    SetFlag,
    Table,
    WaitFlag,
)

__all__ = ["Flag", "awaited", "flag_of_pair", "raised"]

Flag = tuple[str, str, int]


def flag_of_pair(op: SetFlag | WaitFlag) -> Flag:
    """The flag that *op* sets or waits for."""
    return op.src, op.dst, op.event


def _flag_of_all(op: CrossCoreSetFlag | CrossCoreWaitFlag) -> Flag | None:
    """A wait for cores of its kind also waits for its core's own set, and so orders its pipes."""
    return (op.mode, op.mode, op.event) if op.mode != "group" else None


class _Order(NamedTuple):
    """How a micro-op orders others: functions that give the flag of its own core, if any."""

    raises: Callable[[Any], Flag | None] | None = None
    awaits: Callable[[Any], Flag | None] | None = None


_ORDERS = Table(
    "hazards",
    "an order that it imposes",
    ORDERING,
    {
        SetFlag: _Order(raises=flag_of_pair),
        WaitFlag: _Order(awaits=flag_of_pair),
        CrossCoreSetFlag: _Order(raises=_flag_of_all),
        CrossCoreWaitFlag: _Order(awaits=_flag_of_all),
        Barrier: _Order(),
    },
)
_RAISES = {kind: order.raises for kind, order in _ORDERS.items() if order.raises}
_AWAITS = {kind: order.awaits for kind, order in _ORDERS.items() if order.awaits}


def raised(op: MicroOp) -> Flag | None:
    """The flag that *op* sets for a pipe of its own core, if any."""
    flag_of = _RAISES.get(type(op))
    return flag_of(op) if flag_of else None


def awaited(op: MicroOp) -> Flag | None:
    """The flag of its own core that *op* waits for, if any."""
    flag_of = _AWAITS.get(type(op))
    return flag_of(op) if flag_of else None
