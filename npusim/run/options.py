"""Options of a call: the keyword parameters of :func:`npusim.run`."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np

from npusim.chip import Arrival, EngineChoice, L2State
from npusim.data.arguments import Arguments
from npusim.data.errors import shown
from npusim.data.product import CubeOrder
from npusim.devices.schema import ICache
from npusim.kernel.program import QueueName
from npusim.ops import Plan, Problem
from npusim.run.views import EarlierCall
from npusim.trace import Trace

if TYPE_CHECKING:
    from npusim.run.result import Output

__all__ = ["CACHE_VARIABLE", "Launching", "Options", "Surroundings"]

CACHE_VARIABLE = "NPUSIM_CACHE"
"""The environment variable with the folder for times, if a call gives none."""

SWITCHES = ("values", "timing", "every_core", "byte_exact")


class Launching(Protocol):
    """A launch on a card, from the state it finds to the state it leaves."""

    l2: Arrival
    found: dict[str, Any]
    """Fields of a result about where it finds its code, set when it has ended."""

    def ended(self, trace: Trace, outputs: Mapping[str, Output]) -> dict[str, Output]:
        """Record the state that *trace* leaves; return *outputs* as tensors of the card."""


class Surroundings(Protocol):
    """The state of a card, which launches find and leave."""

    def launch(
        self, kernel: Hashable, problem: Problem, plan: Plan, arguments: Arguments
    ) -> Launching:
        """Prepare the launch of *kernel* for *problem*, a call with *arguments*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a call: the keyword parameters of :func:`npusim.run`, as given."""

    values: bool = True
    timing: bool = True
    l2: L2State = "cold"
    icache: ICache | None = None
    every_core: bool = False
    engine: EngineChoice = "auto"
    cache: str | os.PathLike[str] | Literal[False] | None = None
    """The folder for times; None for the one in the environment, False for none, which
    :func:`npusim.run` does not accept."""
    byte_exact: bool = False
    cube_order: CubeOrder = "k16"
    deeper: tuple[QueueName, ...] = ()
    """Queues of the kernel that get one slot more than declared, to find the effect; not a
    parameter of :func:`npusim.run`."""

    is_checked: bool = True
    """Whether programs are checked before they are timed; those of measured kernels need not be,
    since their times are not what a check is for; not a parameter of :func:`npusim.run`."""
    card: Surroundings | None = None
    """The card whose caches pass from launch to launch, instead of *l2* and *icache*; not a
    parameter of :func:`npusim.run`."""
    copies: tuple[EarlierCall, ...] | None = None
    """Kernels that copy operands that are views, if they are given as shapes alone; not a parameter
    of :func:`npusim.run`."""

    def check(self, progress: object) -> None:
        """Raise ValueError or TypeError for invalid options, *progress* included."""
        cube_order: object = self.cube_order
        switches = self.values, self.timing, self.every_core, self.byte_exact
        orders = get_args(CubeOrder)
        if not isinstance(cube_order, str) or cube_order not in orders:
            raise ValueError(
                f"run: cube_order must be one of {', '.join(orders)}, not {shown(cube_order)}; "
                f"use one of these"
            )
        for name, value in zip(SWITCHES, switches, strict=True):
            if not isinstance(value, bool | np.bool_):
                raise TypeError(
                    f"run: {name} must be True or False, not {shown(value)}; pass one of them"
                )
        if progress is not None and not callable(progress):
            raise TypeError(
                f"run: progress must be a function of a stage and a share, not {shown(progress)}; "
                f"leave it out"
            )
