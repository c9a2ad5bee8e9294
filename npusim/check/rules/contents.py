"""A launch must match its declared types before anything computes with it.

Checks blocks, programs and calls in all their parts; the values of a micro-op's field follow from
its annotation, see ``isa/fields``. All other checks can then rely on the types.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakSet

import numpy as np

from npusim.check.rules.rule import RuleError
from npusim.isa import MicroOp, misfit
from npusim.kernel.program import Block, Body, Call, Line, Program
from npusim.kernel.table import Calls, TabledProgram

__all__ = ["check_blocks", "check_program", "where"]

_known: WeakSet[Program] = WeakSet()
"""Programs already checked; they never change."""


def where(program: str, index: int, line: Line | None) -> str:
    """Micro-op *index* of *program*, and the line of the kernel that wrote it."""
    written = ""
    # Lines are only used in messages and not checked elsewhere.
    if type(line) is tuple and len(line) == 2 and type(line[0]) is str:
        written = f" (line {line[1]} of {Path(line[0]).name})"
    return f"{program} #{index}{written}"


def check_blocks(who: str, blocks: object) -> None:
    """Raise RuleError unless *blocks* is a tuple of blocks whose parts have their types."""
    if type(blocks) is not tuple or not all(type(block) is Block for block in blocks):
        raise RuleError(
            f"{who}: blocks must be a tuple, each a Block, not {_shown(blocks)}; "
            f"write for example (Block(0, kind, builder.build(), bindings),)"
        )
    good: set[int] = set()
    for index, block in enumerate(blocks):
        wrong = misfit(block)
        if wrong is not None:
            raise RuleError(f"{who}: blocks[{index}].{wrong}")
        _check_program(block.program, good)


def check_program(program: Program) -> None:
    """Raise RuleError, with the location, unless *program* is made of micro-ops and calls."""
    _check_program(program, set())


def _check_program(program: Program, good: set[int]) -> None:
    """Check *program*; *good* are the addresses of bodies and micro-ops already checked."""
    if program in _known:
        return
    is_tabled = isinstance(program, TabledProgram)
    # The calls of a table are not objects until they are accessed.
    parts = () if is_tabled else (("parts", tuple),)
    for name, kind in (("name", str), *parts, ("claimed_bytes", dict), ("lines", tuple)):
        if type(getattr(program, name)) is not kind:
            raise RuleError(
                f"Program: {name} must be a {kind.__name__}, not {_shown(getattr(program, name))}; "
                f"take what Builder.build gives"
            )
    if not program.name.isprintable():
        raise RuleError(
            f"Program: name must be a printable string, not {program.name!r}; rename it"
        )
    if isinstance(program, TabledProgram):
        _check_table(program.name, program.table, good)
    else:
        _check_parts(program.name, 0, program, good)
    _known.add(program)


def _check_table(name: str, table: Calls, good: set[int]) -> None:
    """Check a program that is made of *table*."""
    body, shifts = table.body, table.shifts
    is_whole = body.ndim == 1 and shifts.shape == (body.size, len(table.names))
    if not is_whole or not body.dtype == shifts.dtype == np.int64:
        raise RuleError(
            f"{name}: a table must hold int64 numbers: a body for each call, and a shift for each "
            f"call and name, not {body.dtype} {body.shape} and {shifts.dtype} {shifts.shape}; "
            f"take what launch gives"
        )
    if body.size and not 0 <= body.min() <= body.max() < len(table.bodies):
        raise RuleError(
            f"{name}: a table must name bodies 0 to {len(table.bodies) - 1}, not {body.min()} to "
            f"{body.max()}; take what launch gives"
        )
    for each in table.bodies:
        if id(each) not in good:
            _check_parts(name, 0, each, good)
            good.add(id(each))
    for edge in (shifts.min(axis=0), shifts.max(axis=0)) if body.size else ():
        farthest = dict(zip(table.names, edge.tolist(), strict=True))
        _check_call(name, Call(table.bodies[0], farthest))


def _check_parts(name: str, start: int, owner: Program | Body, good: set[int]) -> None:
    """Check the parts of *owner*, of which the first is micro-op *start*."""
    lines = owner.lines if isinstance(owner, Program) else owner.part_lines
    for number, part in enumerate(owner.parts):
        if not isinstance(part, Call):
            if id(part) not in good:
                line = lines[number] if number < len(lines) else None
                _check_micro_op(name, start, part, line)
                good.add(id(part))
            start += 1
            continue
        _check_call(f"{name} #{start}", part)
        if id(part.body) not in good:
            _check_parts(name, start, part.body, good)
            good.add(id(part.body))
        start += len(part.body)


def _check_call(here: str, call: Call) -> None:
    wrong = misfit(call)
    for name in ("parts", "part_lines"):
        if wrong is None and type(getattr(call.body, name)) is not tuple:
            wrong = f"body.{name} must be a tuple, not {_shown(getattr(call.body, name))}; pass one"
    if wrong is not None:
        raise RuleError(f"{here}: Call: {wrong}")


def _check_micro_op(name: str, index: int, op: object, line: Line | None) -> None:
    if not isinstance(op, MicroOp):
        raise RuleError(
            f"{where(name, index, line)}: a program must consist of micro-ops and calls, not hold "
            f"{_shown(op)}; emit micro-ops"
        )
    wrong = misfit(op)
    if wrong is not None:
        raise RuleError(f"{where(name, index, line)}: {type(op).__name__}: {wrong}")


def _shown(value: object) -> str:
    """A description of *value*, or of the elements of a tuple."""
    if type(value) is tuple:
        kinds = dict.fromkeys(type(part).__name__ for part in value)
        return f"a tuple of {', '.join(kinds) or 'nothing'}"
    return repr(value) if value is None or type(value) is str else type(value).__name__
