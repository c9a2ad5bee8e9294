"""What a rule is, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from npusim.data.dtypes import DType
from npusim.devices.schema import Core, DeviceSpec
from npusim.isa import Local, MicroOp, Role, reads, writes

__all__ = ["Place", "Rule", "RuleError", "named", "names", "offsets", "operands", "types"]


class RuleError(ValueError):
    """A device does not accept a micro-op."""


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of core on a device."""

    spec: DeviceSpec
    kind: str

    @property
    def core(self) -> Core:
        return self.spec.cores[self.kind]

    @property
    def arch(self) -> str:
        return self.spec.arch


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold for micro-ops of *kinds*, and what to say when it does not."""

    kinds: tuple[type, ...]
    holds: Callable[[Any, Place], bool]
    says: Callable[[Any, Place], str]


def operands(op: MicroOp) -> tuple[Local, ...]:
    """All that *op* reads, then all that it writes."""
    return (*reads(op), *writes(op))


def named(op: MicroOp) -> tuple[tuple[Role, Local], ...]:
    """The ranges that *op* names, each with its role; `operands` are what it touches of them."""
    found: list[tuple[Role, Local]] = []
    for role in op.roles:
        operand: object = getattr(op, role.operand)
        if isinstance(operand, Local):
            found.append((role, operand))
        elif isinstance(operand, tuple):
            found += [pair for part in operand for pair in named(part)]
    return tuple(found)


def names(dtypes: Iterable[DType]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)


def types(op: MicroOp) -> str:
    return names(local.dtype for local in operands(op))


def offsets(op: MicroOp) -> str:
    return ", ".join(str(local.offset_bytes) for local in operands(op))
