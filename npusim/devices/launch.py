"""What a kernel costs around its micro-ops: launch, completion, and where its code lies."""

from __future__ import annotations

from typing import Literal, NamedTuple

from npusim.devices.parts import Part
from npusim.devices.ranges import Microseconds

__all__ = ["CORES_OF_A_GROUP", "CodeRun", "FoundCode", "ICache", "Launch"]

ICache = Literal["cold", "warm"]
"""Whether the kernel ran just before on the same cores: not after other kernels, as in a model; yes
in a benchmark's loop."""


class CodeRun(NamedTuple):
    """What the cores of a kind run of a kernel."""

    cores: int
    micro_ops: int
    """Places in its code that hand a micro-op or a flag to a pipe, each once however often it
    runs."""


class FoundCode(NamedTuple):
    """Where a launch finds the code of its kernel."""

    held: frozenset[str] = frozenset()
    """The kinds of core whose instruction caches hold it."""
    l2_share: float = 0.0
    """How much of it lies in the L2, where it is not held."""


CORES_OF_A_GROUP = 3
"""A cube core and its two vector cores, where a kernel starts both (Ascend C guide, 2201)."""


class Launch(Part):
    """What a kernel costs before its first and after its last micro-op; host launch excluded.

    The code that its cores fetch comes on top, which :class:`Code` has.
    """

    base_us: Microseconds
    start_us: Microseconds
    """Added for each core: they are started one after the other."""
    mix_us: Microseconds
    """Added when cube and vector cores start together."""
    tiling_us: Microseconds
    """Added when the kernel reads its tiling from global memory and sets its queues up by it."""
    tiling_turn_us: Microseconds
    """Added then for each core, each time: all read the same bytes, and are served in turn."""
    completion_us: Microseconds

    def time_us(self, cores: int, is_mix: bool = False, reads_tiling: int = False) -> float:
        """What starting and ending a kernel on *cores* costs around the cores' own time.

        Where it *is_mix*, these are cube cores with two vector cores each. *reads_tiling* is how
        often.
        """
        started = cores * (CORES_OF_A_GROUP if is_mix else 1)
        each_us = self.start_us + reads_tiling * self.tiling_turn_us
        extra_us = (self.mix_us if is_mix else 0.0) + (self.tiling_us if reads_tiling else 0.0)
        return self.base_us + started * each_us + extra_us + self.completion_us
