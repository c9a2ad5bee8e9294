"""The engines that can time a launch. All give the same times, cycle for cycle."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache as once
from typing import TYPE_CHECKING, Literal, get_args

from npusim.data.errors import SlowEngineWarning, callers_level
from npusim.timing.compiled import is_built

if TYPE_CHECKING:
    from npusim.devices.schema import DeviceSpec
    from npusim.kernel.program import Block
    from npusim.timing.memory import L2
    from npusim.timing.pipes import Code
    from npusim.trace import LaneTrace

__all__ = [
    "ENGINES",
    "VARIABLE",
    "Engine",
    "EngineChoice",
    "EngineError",
    "engine_named",
    "quickest",
    "simulate",
]

Engine = Literal["simpy", "compiled"]
"""The engine that times a launch.

simpy     processes of SimPy, in Python: the reference for all times
compiled  the same in C, ten times faster, if a C compiler was found when npusim was installed
"""
EngineChoice = Literal["auto", "simpy", "compiled"]
"""The engine that a call requests: by name, or auto, which is the one that the environment names,
else compiled if it was built, else simpy."""
ENGINES: tuple[EngineChoice, ...] = get_args(EngineChoice)
VARIABLE = "NPUSIM_ENGINE"
"""The environment variable that selects the engine for auto."""


class EngineError(ValueError):
    """The engine requested does not exist or was not built."""


def engine_named(choice: str = "auto") -> Engine:
    """The engine that *choice* selects here.

    Raises EngineError if there is none of that name, or it was not built. The first time that auto
    falls back to SimPy, it warns with SlowEngineWarning.
    """
    who = "run: engine"
    if choice == "auto":
        who, choice = f"run: {VARIABLE}", os.environ.get(VARIABLE) or "auto"
    if choice not in ENGINES:
        raise EngineError(f"{who} must be one of {', '.join(ENGINES)}, not {choice!r}; use one")
    if choice == "simpy":
        return "simpy"
    if is_built():
        return "compiled"
    if choice == "compiled":
        raise EngineError(
            f"{who} must be an engine that there is, not {choice!r}, which was not built when "
            f"npusim was installed; install a C compiler, then npusim again, or use 'auto'"
        )
    _warn_of_simpy()
    return "simpy"


def quickest() -> Engine:
    """The fastest engine available, for callers without a preference."""
    return "compiled" if is_built() else "simpy"


@once
def _warn_of_simpy() -> None:
    """Warn how slow SimPy is, and how to get the compiled engine."""
    warnings.warn(
        "run: the compiled engine was not built when npusim was installed, and SimPy takes ten "
        "times as long or more for the same times; install a C compiler, then npusim again, or "
        f"set {VARIABLE}=simpy to read this no more",
        SlowEngineWarning,
        stacklevel=callers_level(),
    )


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
    """Run :func:`npusim.timing.simpy_engine.simulate`, or its equivalent, by *engine*."""
    if engine == "simpy":
        from npusim.timing import simpy_engine  # imports SimPy, which the compiled engine avoids

        return simpy_engine.simulate(groups, codes, cache, spec, progress, every_core)
    from npusim.timing.compiled.run import simulate

    return simulate(groups, codes, cache, spec, progress)
