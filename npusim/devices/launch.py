"""The cost of a kernel outside its micro-ops: launch, completion, and fetching its code."""

from __future__ import annotations

from typing import Literal, NamedTuple

from npusim.devices.parts import Part
from npusim.devices.ranges import Microseconds

__all__ = ["CORES_OF_A_GROUP", "CodeRun", "FoundCode", "ICache", "Launch"]

ICache = Literal["cold", "warm"]
"""Whether the kernel ran just before on the same cores: not after other kernels, as in a model; yes
in a benchmark's loop."""


class CodeRun(NamedTuple):
    """The part of a kernel's code that cores of a kind run."""

    cores: int
    micro_ops: int
    """Places in its code that issue a micro-op or a flag to a pipe, each counted once however often
    it runs."""


class FoundCode(NamedTuple):
    """Where a launch finds the code of its kernel."""

    held: frozenset[str] = frozenset()
    """The kinds of core whose instruction caches hold it."""
    l2_share: float = 0.0
    """The share of it in the L2, for the other kinds."""


CORES_OF_A_GROUP = 3
"""A cube core and its two vector cores, if a kernel starts both (Ascend C guide, 2201)."""


class Launch(Part):
    """The cost of a kernel before its first and after its last micro-op, without host launch.

    Fetching its code, in :class:`Code`, is added to it.
    """

    base_us: Microseconds
    start_us: Microseconds
    """Added for each core: cores are started one after the other."""
    mix_us: Microseconds
    """Added if cube and vector cores start together."""
    tiling_us: Microseconds
    """Added if the kernel reads its tiling from global memory and sets up its queues from it."""
    tiling_turn_us: Microseconds
    """Added then for each core and each read: all read the same bytes, and are served in turn."""
    completion_us: Microseconds

    def time_us(self, cores: int, is_mix: bool = False, reads_tiling: int = False) -> float:
        """Time to start and end a kernel on *cores*, outside the cores' own time.

        If it *is_mix*, these are cube cores with two vector cores each. *reads_tiling* is how often
        the tiling is read.
        """
        started = cores * (CORES_OF_A_GROUP if is_mix else 1)
        each_us = self.start_us + reads_tiling * self.tiling_turn_us
        extra_us = (self.mix_us if is_mix else 0.0) + (self.tiling_us if reads_tiling else 0.0)
        return self.base_us + started * each_us + extra_us + self.completion_us
