"""Base of micro-ops: frozen records that declare their pipe, the roles of operands and their work.

Code that needs the bytes a micro-op touches (races, rules, costs, traces) calls the functions
below, which read the declaration. A class without one is refused at definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from npusim.isa.operands import Global, Local, Register

if TYPE_CHECKING:
    from npusim.devices.schema import Pipe
    from npusim.isa.work import Work

__all__ = [
    "MicroOp",
    "Role",
    "Table",
    "combined_as",
    "copied_place",
    "declared",
    "ends",
    "global_operand",
    "moved",
    "reads",
    "registers_read",
    "registers_set",
    "writes",
    "writes_global",
]


@dataclass(frozen=True, slots=True)
class Role:
    """How a micro-op uses one of its operands. An operand that is None, or no range, is unused.

    The roles of a class are in the order in which :func:`reads` and :func:`writes` give them.
    """

    operand: str
    """Name of the field."""
    access: Literal["read", "written", "updated"]
    """Updated is read and written."""
    memory: Literal["local", "global", "register"] = "local"
    """A buffer, global memory or a register; an operand that allows several has a role for each."""
    touched: str | None = None
    """Attribute with the bytes touched: a Local, several, or None; by default the operand itself.

    For registers it holds their names, a tuple."""
    combined: str | None = None
    """Attribute that says how it combines with global memory, None where it overwrites."""

    @property
    def is_read(self) -> bool:
        return self.access != "written"

    @property
    def is_written(self) -> bool:
        return self.access != "read"

    @property
    def attribute(self) -> str:
        """The attribute with the bytes touched."""
        return self.operand if self.touched is None else self.touched


class MicroOp:
    """Base of all micro-ops, which are frozen dataclasses and final."""

    __slots__ = ()

    roles: ClassVar[tuple[Role, ...]]
    instructions: ClassVar[int] = 1
    """How many instructions it takes in the queue of its pipe."""
    _reads: ClassVar[Callable[[Any], tuple[Local, ...]]]
    _writes: ClassVar[Callable[[Any], tuple[Local, ...]]]
    _global_role: ClassVar[Role | None]
    _registers_read: ClassVar[tuple[str, ...]]
    """Attributes that hold them."""
    _registers_set: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:
        # At run time a field, a class variable or a property; a property here would be a default.

        @property
        def pipe(self) -> Pipe:
            """The pipe that executes it."""

        @property
        def work(self) -> Work:
            """The work that counts for it."""

    def __init_subclass__(cls) -> None:
        """Check the declaration of *cls* and derive what it touches; raises TypeError.

        A dataclass with slots is created twice, and checked twice.
        """
        super().__init_subclass__()
        _check(cls)
        cls._reads = _ranges(role.attribute for role in cls.roles if _is_local_read(role))
        cls._writes = _ranges(role.attribute for role in cls.roles if _is_local_write(role))
        cls._global_role = next((role for role in cls.roles if role.memory == "global"), None)
        named = [role for role in cls.roles if role.memory == "register"]
        cls._registers_read = tuple(role.attribute for role in named if role.is_read)
        cls._registers_set = tuple(role.attribute for role in named if role.is_written)
        _DECLARED[f"{cls.__module__}.{cls.__qualname__}"] = cls


_DECLARED: dict[str, type[MicroOp]] = {}


def declared() -> tuple[type[MicroOp], ...]:
    """All micro-ops defined so far, each once."""
    return tuple(_DECLARED.values())


# ---- queries of a declaration ----


def reads(op: MicroOp) -> tuple[Local, ...]:
    """The ranges that *op* reads in the buffers of its core."""
    return op._reads()


def writes(op: MicroOp) -> tuple[Local, ...]:
    """The ranges that *op* writes in the buffers of its core."""
    return op._writes()


def global_operand(op: MicroOp) -> Global | None:
    """The operand of *op* in global memory; None if it stays inside the core."""
    role = op._global_role
    if role is None:
        return None
    place = getattr(op, role.operand)
    return place if isinstance(place, Global) else None


def copied_place(op: MicroOp) -> Global | None:
    """The operand of a copy in global memory; None if *op* is not a copy.

    The scalar unit reads single elements through its own cache, which does not count as a copy.
    """
    return None if op.pipe == "scalar" else global_operand(op)


def writes_global(op: MicroOp) -> bool:
    """Whether *op* writes global memory."""
    role = op._global_role
    return role is not None and role.is_written and isinstance(getattr(op, role.operand), Global)


def combined_as(op: MicroOp) -> str | None:
    """How *op* combines with the contents of global memory, if the order of two does not matter.

    It is the type for additions, or `max` or `min` and the type; None if it does not combine.
    """
    role = op._global_role
    if role is None or role.combined is None or not isinstance(getattr(op, role.operand), Global):
        return None
    found: str | None = getattr(op, role.combined)
    return found


def registers_read(op: MicroOp) -> tuple[Register, ...]:
    """The registers that *op* reads before setting them itself."""
    return _registers(op, op._registers_read)


def registers_set(op: MicroOp) -> tuple[Register, ...]:
    """The registers that *op* sets."""
    return _registers(op, op._registers_set)


def _registers(op: MicroOp, attributes: tuple[str, ...]) -> tuple[Register, ...]:
    found: list[Register] = []
    for attribute in attributes:
        operand: object = getattr(op, attribute)
        if isinstance(operand, str):
            found.append(operand)
        elif isinstance(operand, tuple):
            found += operand
    return tuple(found)


def moved(op: MicroOp, nbytes: int) -> MicroOp:
    """*op* with its range of global memory shifted by *nbytes*."""
    role, place = op._global_role, global_operand(op)
    if role is None or place is None or not nbytes:
        return op
    further = replace(place, offset_bytes=place.offset_bytes + nbytes)
    return replace(op, **{role.operand: further})  # type: ignore[type-var]


def ends(op: MicroOp) -> tuple[str, str]:
    """The source and destination memory of the bytes that *op* moves: buffer names, or `gm`.

    With several operands in buffers, the first one decides.
    """
    if global_operand(op) is None:
        return reads(op)[0].buffer, writes(op)[0].buffer
    return (reads(op)[0].buffer, "gm") if writes_global(op) else ("gm", writes(op)[0].buffer)


# ---- tables with an entry for each micro-op ----

Entry = TypeVar("Entry")


class Table(dict[type[MicroOp], Entry], Generic[Entry]):
    """The entry that one part of the simulator has for each micro-op.

    Raises TypeError on creation if one of *kinds* is missing, and on access to a micro-op without
    an entry. *who* names the table, *what* an entry.
    """

    def __init__(
        self,
        who: str,
        what: str,
        kinds: Iterable[type[MicroOp]],
        entries: Mapping[type[MicroOp], Entry],
    ) -> None:
        super().__init__(entries)
        self._who, self._what = who, what
        missing = [kind.__name__ for kind in kinds if kind not in self]
        if missing:
            raise self._lacks(", ".join(missing))

    def __missing__(self, kind: type[MicroOp]) -> Entry:
        raise self._lacks(kind.__name__)

    def _lacks(self, names: str) -> TypeError:
        return TypeError(
            f"{self._who}: every micro-op must have {self._what}, but there is none for {names}; "
            f"add it next to the others"
        )


# ---- checking a declaration ----

_OPERAND = re.compile(r"\b(Local|Global|Register)\b")


def _check(cls: type[MicroOp]) -> None:
    """Raise TypeError unless *cls* declares everything that a micro-op must."""
    name = f"isa.{cls.__name__}"
    if cls.__bases__ != (MicroOp,):
        above = ", ".join(base.__name__ for base in cls.__bases__)
        raise TypeError(
            f"{name}: a micro-op must inherit from MicroOp alone, not from {above}; "
            f"write a separate class"
        )
    annotations = {
        field: str(kind)
        for field, kind in vars(cls).get("__annotations__", {}).items()
        if "ClassVar" not in str(kind)
    }
    missing = [x for x in ("pipe", "roles", "work") if x not in vars(cls) and x not in annotations]
    if missing:
        raise TypeError(
            f"{name}: a micro-op must declare its pipe, the roles of its operands and its work, "
            f"but lacks {', '.join(missing)}; add it as the classes of npusim.isa do"
        )
    known = {role.operand for role in cls.roles}
    idle = [field for field, kind in annotations.items() if _OPERAND.search(kind)]
    idle = [field for field in idle if field not in known]
    if idle:
        raise TypeError(
            f"{name}: each operand must have a role, but there is none for {', '.join(idle)}; "
            f"add Role({idle[0]!r}, ...) to its roles"
        )
    unknown = sorted(known - set(annotations))
    if unknown:
        raise TypeError(
            f"{name}: each role must be that of a field, but there is no {', '.join(unknown)}; "
            f"name one of {', '.join(annotations) or 'its fields'}"
        )
    far = [role.operand for role in cls.roles if role.memory == "global"]
    if len(far) > 1:
        raise TypeError(
            f"{name}: one operand at most may be in global memory, not {', '.join(far)}; "
            f"make it two micro-ops"
        )


def _is_local_read(role: Role) -> bool:
    return role.memory == "local" and role.is_read


def _is_local_write(role: Role) -> bool:
    return role.memory == "local" and role.is_written


def _ranges(attributes: Iterable[str]) -> Callable[[MicroOp], tuple[Local, ...]]:
    """A function that collects the ranges in *attributes* of a micro-op in one tuple."""
    # Race detection calls this for every micro-op of every body, so the usual cases come first.
    names = tuple(attributes)
    if not names:
        return lambda _: ()
    get = attrgetter(*names)
    if len(names) == 1:

        def one(op: MicroOp) -> tuple[Local, ...]:
            found: Any = get(op)
            return (found,) if type(found) is Local else _flat((found,))

        return one

    def several(op: MicroOp) -> tuple[Local, ...]:
        found: tuple[Any, ...] = get(op)
        for each in found:
            if type(each) is not Local:
                return _flat(found)
        return found

    return several


def _flat(found: tuple[object, ...]) -> tuple[Local, ...]:
    """The ranges among *found*, where some are None and others are tuples of ranges."""
    ranges: list[Local] = []
    for each in found:
        if isinstance(each, tuple):
            ranges += each
        elif isinstance(each, Local):
            ranges.append(each)
    return tuple(ranges)
