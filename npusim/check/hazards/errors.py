"""Errors for an order that is not certain, or never comes about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from npusim.check.hazards.aliases import Aliases
from npusim.isa import SetFlag
from npusim.kernel.program import Program

__all__ = [
    "Clash",
    "DeadlockError",
    "FlagError",
    "HazardError",
    "RaceError",
    "complain",
    "deadlock",
    "forgiving",
    "left_over",
    "race",
    "still_up",
]


class HazardError(RuntimeError):
    """The result of a program depends on more than the program."""


class RaceError(HazardError):
    """Two micro-ops access the same bytes without an order between them."""


class DeadlockError(HazardError):
    """A pipe waits for a flag that is never set."""


class FlagError(HazardError):
    """A flag is set that is never waited for, or more often than the chip can count."""


_report: ContextVar[Callable[[HazardError], None] | None] = ContextVar("report", default=None)


@contextmanager
def forgiving(report: Callable[[HazardError], None]) -> Iterator[None]:
    """Within the context, pass errors of :func:`complain` to *report* instead of raising them."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def complain(error: HazardError) -> None:
    """Raise *error*, of a kind that the vendor's own kernels also have, or report it within
    :func:`forgiving`.
    """
    report = _report.get()
    if report is None:
        raise error
    report(error)


class Clash(NamedTuple):
    """A micro-op that is not ordered with a later one."""

    op: int
    """Its index."""
    where: str
    """The first bytes that both touch."""


def race(program: Program, clashes: list[Clash], index: int, aliases: Aliases) -> str:
    """The message for *clashes*, the last one first, with micro-op *index*.

    A flag or a barrier after each of them removes all races with earlier micro-ops.
    """
    ops, numbered = program.ops, program.numbered
    last, *others = clashes
    a, b = ops[last.op], ops[index]
    must = "a barrier" if a.pipe == b.pipe else "a flag"
    remedy = f"set a flag from {a.pipe} to {b.pipe} after the first and await it before the second"
    if a.pipe == b.pipe:
        remedy = f"put a barrier of the {a.pipe} pipe between them"
    for other in others:
        pipe = ops[other.op].pipe
        remedy += (
            f", and a barrier of the {pipe} pipe after {numbered(other.op)}"
            if pipe == b.pipe
            else f", and one from {pipe} to {b.pipe} after {numbered(other.op)}"
            if a.pipe != b.pipe
            else f", and set a flag from {pipe} to {b.pipe} after {numbered(other.op)} and await "
            f"it before {numbered(index)}"
        )
    named = f" ({aliases})" if aliases.names and last.where.startswith("gm ") else ""
    return (
        f"{program.name}: micro-ops that touch the same bytes must be ordered by {must}, "
        f"not {numbered(last.op)} {a.pipe}: {a} and {numbered(index)} {b.pipe}: {b} at "
        f"{last.where}{named}; {remedy}"
    )


def deadlock(program: Program, waiting: list[int]) -> str:
    """The message if the micro-ops with these indices wait forever."""
    ops = program.ops
    stuck = "; ".join(
        f"{ops[index].pipe} at {program.numbered(index)}: {ops[index]}" for index in sorted(waiting)
    )
    return (
        f"{program.name}: every awaited flag must be set, but these wait for ever: {stuck}; "
        f"set the flag on its source pipe before"
    )


def left_over(program: Program, raisers: Iterable[Sequence[int]]) -> str:
    """The message if flags are still set at the end; *raisers* of each are the surplus sets."""
    ops, found = program.ops, []
    for indices in sorted(raisers, key=min):
        first = indices[0]
        often = f", and {len(indices) - 1} more of it" if len(indices) > 1 else ""
        found.append(f"{ops[first].pipe} at {program.numbered(first)}: {ops[first]}{often}")
    return (
        f"{program.name}: every flag that is set must be awaited, but nobody awaits these: "
        f"{'; '.join(found)}; await each as often as it is set, or set it less often"
    )


def still_up(program: Program, index: int) -> str:
    """The message if set *index* precedes the wait for the set before it."""
    op = program.ops[index]
    assert isinstance(op, SetFlag)
    before = max(number for number in range(index) if program.ops[number] == op)
    return (
        f"{program.name}: a flag that is set must be awaited before it is set again, but "
        f"{program.numbered(index)} {op.pipe}: {op} comes before a wait for "
        f"{program.numbered(before)}; await it in between, or use "
        f"another event"
    )
