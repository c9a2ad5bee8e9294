"""A kernel that a call launched: some calls of torch_npu launch another one first."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Launch"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, by what a profiler says of it."""

    op: str
    block_dim: int
    time_us: float | None
    """Task Duration: launch, the slowest core, completion; None where no time was asked for."""
    launch_us: float
    """What starting and ending it costs around the cores' own time."""
    cycles: int | None
    """Cycles of the slowest core, from its first micro-op to its last result."""
    gm_bytes: int
    """Moved from and to global memory."""
    l2_bytes: int
    """Moved from and to the L2."""
