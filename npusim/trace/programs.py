"""Programs as JSON, and back, with every value checked against the micro-op's declaration."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from npusim.data.dtypes import BUFFER_DTYPES, DType
from npusim.data.json import Json
from npusim.isa import MICRO_OPS, Global, Local, MicroOp, Padding
from npusim.kernel.program import Body, Call, Line, Program, short_line
from npusim.trace.archive import DamageError
from npusim.trace.lanes import LaneTrace, Trace

__all__ = ["Count", "LaneRow", "Name", "Tree", "described", "lane_row", "named", "programs_of"]

MAX_LETTERS = 1000
"""Most characters of a name, or of a line of code."""
MAX_SIZE = 1 << 48
"""Most for sizes, offsets and counts: far above any tensor."""
MAX_NUMBER = 1 << 256
"""Most for a mask of lanes; a scalar register holds less."""
MAX_FLOAT = 1 << 128
"""Integers that are still finite when rounded to fp32."""

SIGNED = ("step_bytes", "stride_bytes", "pitch_bytes", "block_stride", "repeat_stride")
"""Fields of micro-ops that may be negative; what a chip accepts is up to its rules."""

_DTYPES = {dtype.name: dtype for dtype in BUFFER_DTYPES}
_KNOWN: dict[str, type] = {kind.__name__: kind for kind in (*MICRO_OPS, Local, Global, Padding)}


def named(text: str) -> str:
    """*text* if it is printable; raises ValueError for control characters or excess length."""
    if not text.isprintable() or len(text) > MAX_LETTERS:
        raise ValueError(
            f"record: a name must be at most {MAX_LETTERS} printable characters, not "
            f"{text[:40]!r}; rename it"
        )
    return text


Name = Annotated[str, AfterValidator(named)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Shift = Annotated[int, Field(ge=-MAX_SIZE, le=MAX_SIZE)]


class _Row(BaseModel):
    """A part of the text of `trace.npz`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ProgramRow(_Row):
    """A program: indices of its bodies, each with its shifts."""

    name: Name
    calls: list[tuple[Count, dict[Name, Shift]]]
    claimed_bytes: dict[Name, Count]


class LaneRow(_Row):
    """Cores that ran a program identically, with the fields of :class:`LaneTrace`."""

    cores: list[Count] = Field(min_length=1)
    groups: list[Count]
    kind: Name
    program: Count
    gm_bytes: Annotated[float, Field(ge=0, le=MAX_SIZE, allow_inf_nan=False)]
    l2_bytes: Count
    l2_hit_bytes: Count
    l2_written_bytes: Count
    copy_count: Count
    """Number of copies with known delays: all of them, or 0."""


class Tree(_Row):
    """Everything except the times."""

    clock_hz: Count
    gm_written_bytes: Count
    bodies: list[tuple[list[object], list[object]]]
    """Micro-ops, and the line of the kernel that wrote each."""
    programs: list[ProgramRow]
    code: list[tuple[str, Count, str]]
    """File, line number and text of those lines."""
    lanes: list[LaneRow]


# ---- to JSON ----


def described(trace: Trace) -> Json:
    """Programs and lanes; bodies shared by calls are written once.

    Raises ValueError for a name that is not printable.
    """
    bodies: dict[Body, int] = {}
    written: list[Any] = []
    programs: dict[Program, object] = {}
    lines: dict[Line, str] = {}
    for lane in trace.lanes:
        if lane.program in programs:
            continue
        for call in lane.program.calls:
            body = call.body
            if body not in bodies:
                bodies[body] = len(written)
                written.append([list(map(_to_json, body)), list(map(short_line, body.lines))])
                lines |= {short_line(line): _text(line) for line in body.lines}
        programs[lane.program] = {
            "name": named(lane.program.name),
            "calls": [[bodies[call.body], call.shifts] for call in lane.program.calls],
            "claimed_bytes": lane.program.claimed_bytes,
        }
    numbers = {program: number for number, program in enumerate(programs)}
    return {
        "clock_hz": trace.clock_hz,
        "gm_written_bytes": int(trace.gm_written_bytes),
        "bodies": written,
        "programs": list(programs.values()),
        "code": [[*line, text] for line, text in lines.items()],
        "lanes": [lane_row(lane, numbers[lane.program]) for lane in trace.lanes],
    }


def lane_row(lane: LaneTrace, program: int) -> dict[str, object]:
    """The :class:`LaneRow` of *lane*, whose program has index *program*."""
    numbers = {
        name: getattr(lane, name)
        for name in LaneRow.model_fields
        if name not in ("program", "copy_count")
    }
    numbers |= {"copy_count": len(lane.copies.index)}
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in (numbers | {"program": program}).items()
    }


def _text(line: Line) -> str:
    return linecache.getline(*line).strip()


def _to_json(value: object) -> object:
    """A micro-op, or a part of one, as lists that begin with its type."""
    if isinstance(value, DType):
        return ["DType", value.name]
    if isinstance(value, tuple):
        return ["tuple", *map(_to_json, value)]
    if is_dataclass(value):
        parts = (_to_json(getattr(value, field.name)) for field in fields(value))
        return [type(value).__name__, *parts]
    if isinstance(value, str):
        return named(value)
    return value.item() if isinstance(value, np.generic) else value


# ---- from JSON ----


def programs_of(tree: Tree) -> list[Program]:
    """The programs of *tree*; raises DamageError for an invalid micro-op or body."""
    bodies = [_body(ops, lines) for ops, lines in tree.bodies]
    found = []
    for row in tree.programs:
        if any(number >= len(bodies) for number, _ in row.calls):
            raise DamageError(f"program {row.name!r} must call bodies that are there")
        calls = tuple(Call(bodies[number], shifts) for number, shifts in row.calls)
        found.append(Program(row.name, calls, row.claimed_bytes))
    return found


def _body(ops: list[object], lines: list[object]) -> Body:
    micro_ops = tuple(map(_micro_op, ops))
    if lines and len(lines) != len(ops):
        raise DamageError("every micro-op of a body must have its line, or none")
    return Body(micro_ops, tuple(map(_line, lines)))


def _line(value: object) -> Line:
    match value:
        case [str(file), int(number)]:
            return file, number
        case _:
            raise DamageError(f"a line of code must be a file and a number, not {_cut(value)}")


def _micro_op(value: object) -> MicroOp:
    found = _from_json(value)
    if not isinstance(found, MicroOp):
        raise DamageError(f"a body must hold micro-ops, not {_cut(value)}")
    return found


def _from_json(value: object) -> object:
    """The inverse of `_to_json`."""
    match value:
        case ["DType", str(name)]:
            if name not in _DTYPES:
                raise DamageError(f"a type must be known, not {_cut(name)}")
            return _DTYPES[name]
        case ["tuple", *parts]:
            return tuple(map(_from_json, parts))
        case [str(name), *parts] if name in _KNOWN:
            return _made(name, [_from_json(part) for part in parts])
        case bool() | int() | float() | str() | None:
            return value
        case _:
            raise DamageError(f"a micro-op must be one that is known, not {_cut(value)}")


def _made(name: str, parts: Sequence[Any]) -> object:
    declared = _declared(name)
    if len(parts) != len(declared):
        raise DamageError(f"{name} must have {len(declared)} parts, not {len(parts)}")
    for (field, kind), part in zip(declared, parts, strict=True):
        if not _fits(part, kind) or (kind is int and part < 0 and field not in SIGNED):
            raise DamageError(f"{field} of {name} must be what it declares, not {_cut(part)}")
    try:
        return _KNOWN[name](*parts)
    except (ValueError, TypeError) as error:
        raise DamageError(str(error)) from None


@cache
def _declared(name: str) -> tuple[tuple[str, Any], ...]:
    """Fields of a micro-op or operand with their types."""
    kind = _KNOWN[name]
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _fits(value: Any, kind: Any) -> bool:
    """Whether *value* is of type *kind*, one of the types that micro-ops declare."""
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin in (Union, UnionType):
        # A number in a union of types is the value of a register.
        is_number = type(value) is int and abs(value) <= MAX_NUMBER
        return any(is_number if each is int else _fits(value, each) for each in get_args(kind))
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(part, get_args(kind)[0]) for part in value)
    if kind is int:
        return type(value) is int and abs(value) <= MAX_SIZE
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) <= MAX_FLOAT)
    if kind is str:
        return isinstance(value, str) and value.isprintable() and len(value) <= MAX_LETTERS
    return isinstance(value, kind) if kind is not type(None) else value is None


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
