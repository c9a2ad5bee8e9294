"""Which engine times a launch. All give the same times, cycle for cycle."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.timing import simpy_engine
from npusim.timing.memory import L2
from npusim.timing.pipes import Code
from npusim.trace import LaneTrace

__all__ = ["ENGINES", "VARIABLE", "Engine", "EngineError", "engine_named", "simulate"]

Engine = Literal["simpy", "compiled"]
"""What times a launch.

simpy     processes of SimPy, in Python: what the times are is defined there
compiled  the same in C, ten times faster, where a C compiler was found when npusim was installed
"""
ENGINES: tuple[Engine, ...] = get_args(Engine)
VARIABLE = "NPUSIM_ENGINE"
"""The environment variable that says what is taken where a call says nothing."""


class EngineError(ValueError):
    """An engine that there is not, or not here."""


def engine_named(name: str | None) -> Engine:
    """The engine called *name*; None asks the environment, and is SimPy's where that is silent.

    Raises EngineError if there is none of that name, or if it was not built.
    """
    who = "run: engine" if name is not None else f"run: {VARIABLE}"
    word = name if name is not None else os.environ.get(VARIABLE) or "simpy"
    for engine in ENGINES:
        if engine == word:
            break
    else:
        raise EngineError(f"{who} must be one of {', '.join(ENGINES)}, not {word!r}; use one")
    if engine == "compiled":
        from npusim.timing.compiled import is_built

        if not is_built():
            raise EngineError(
                f"{who} must be an engine that there is, not {word!r}, which was not built when "
                f"npusim was installed; install a C compiler, then npusim again, or use 'simpy'"
            )
    return engine


def simulate(
    groups: Sequence[tuple[Block, ...]],
    codes: Sequence[Code],
    cache: L2,
    spec: DeviceSpec,
    engine: Engine,
    progress: Callable[[float], None] | None = None,
    *,
    every_core: bool = False,
) -> tuple[tuple[LaneTrace, ...], int]:
    """Do what :func:`npusim.timing.simpy_engine.simulate` does, by *engine*."""
    if engine == "simpy":
        return simpy_engine.simulate(groups, codes, cache, spec, progress, every_core)
    from npusim.timing.compiled.run import simulate

    return simulate(groups, codes, cache, spec, progress)
