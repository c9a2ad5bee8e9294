"""What is raised when an order is not certain, or never comes about."""

from __future__ import annotations

from npusim.kernel.program import Program

__all__ = ["DeadlockError", "RaceError", "deadlock"]


class RaceError(RuntimeError):
    """Two micro-ops touch the same bytes in an order that nothing decides."""


class DeadlockError(RuntimeError):
    """A pipe waits for a flag that nobody will set."""


def deadlock(program: Program, waiting: list[int]) -> str:
    """What to say when the micro-ops with these indices wait for ever."""
    ops = program.ops
    stuck = "; ".join(f"{ops[index].pipe} at #{index}: {ops[index]}" for index in sorted(waiting))
    return (
        f"{program.name}: every awaited flag must be set, but these wait for ever: {stuck}; "
        f"set the flag on its source pipe before"
    )
