"""How a call is to be run: the keyword parameters of :func:`npusim.run`."""

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
"""The environment variable that names a folder for times where a call names none."""

SWITCHES = ("values", "timing", "every_core", "byte_exact")


class Launching(Protocol):
    """A launch on a card, from what it finds to what it leaves."""

    l2: Arrival
    found: dict[str, Any]
    """What a result says of where it finds its code, once it has ended."""

    def ended(self, trace: Trace, outputs: Mapping[str, Output]) -> dict[str, Output]:
        """Leave what *trace* leaves; *outputs* as tensors of the card."""


class Surroundings(Protocol):
    """What a launch finds on a card, and leaves there."""

    def launch(
        self, kernel: Hashable, problem: Problem, plan: Plan, arguments: Arguments
    ) -> Launching:
        """*kernel* is about to run for *problem*, a call with *arguments*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a call is to be run: the keyword parameters of :func:`npusim.run`, as they were given."""

    values: bool = True
    timing: bool = True
    l2: L2State = "cold"
    icache: ICache | None = None
    every_core: bool = False
    engine: EngineChoice = "auto"
    cache: str | os.PathLike[str] | Literal[False] | None = None
    """The folder for times; None for the one that the environment names, False for none, which is
    no argument of :func:`npusim.run`."""
    byte_exact: bool = False
    cube_order: CubeOrder = "k16"
    deeper: tuple[QueueName, ...] = ()
    """Queues of the kernel that get a slot more than it declares, to see what that would give; no
    parameter of :func:`npusim.run`."""

    is_checked: bool = True
    """Whether programs are checked before they are timed, as those of measured kernels need not be:
    their times are none of what a check is for; no parameter of :func:`npusim.run`."""
    card: Surroundings | None = None
    """The card whose caches pass from launch to launch, in place of *l2* and *icache*; no parameter
    of :func:`npusim.run`."""
    copies: tuple[EarlierCall, ...] | None = None
    """What copies operands that are views, where they are given as shapes alone; no parameter of
    :func:`npusim.run`."""

    def check(self, progress: object) -> None:
        """Raise ValueError or TypeError for what a run does not take, *progress* included."""
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
