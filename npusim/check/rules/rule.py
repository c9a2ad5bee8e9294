"""The definition of a rule, and conditions shared by several rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from npusim.data.dtypes import DType
from npusim.devices.schema import Core, DeviceSpec
from npusim.isa import Local, MicroOp, Register, Role, reads, writes

__all__ = [
    "Place",
    "Rule",
    "RuleError",
    "fits",
    "named",
    "names",
    "offsets",
    "operands",
    "sizes",
    "types",
]


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
    """A condition for micro-ops of *kinds*, and the message if it does not hold."""

    kinds: tuple[type, ...]
    holds: Callable[[Any, Place], bool]
    says: Callable[[Any, Place], str]


def operands(op: MicroOp) -> tuple[Local, ...]:
    """All ranges that *op* reads, then all that it writes."""
    return (*reads(op), *writes(op))


def named(op: MicroOp) -> tuple[tuple[Role, Local], ...]:
    """The ranges that *op* names, each with its role; `operands` are the parts it touches."""
    found: list[tuple[Role, Local]] = []
    for role in op.roles:
        operand: object = getattr(op, role.operand)
        if isinstance(operand, Local):
            found.append((role, operand))
        elif isinstance(operand, tuple):
            for part in operand:
                found += [(role, part)] if isinstance(part, Local) else named(part)
    return tuple(found)


def names(dtypes: Iterable[DType]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)


def types(op: MicroOp) -> str:
    return names(local.dtype for local in operands(op))


def sizes(op: MicroOp) -> str:
    """Element count and type of each operand of *op*."""
    return ", ".join(f"{local.count} {local.dtype.name}" for local in operands(op))


def offsets(op: MicroOp) -> str:
    return ", ".join(str(local.offset_bytes) for local in operands(op))


def fits(scalar: float | Register, dtype: DType) -> bool:
    """Whether *dtype* can represent *scalar*, rounded if it is a float."""
    if isinstance(scalar, str):
        return True
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return not isfinite(scalar) or bool(np.isfinite(np.array(scalar).astype(dtype.numpy)))
    limits = np.iinfo(dtype.numpy)
    return isfinite(scalar) and scalar == int(scalar) and limits.min <= scalar <= limits.max
