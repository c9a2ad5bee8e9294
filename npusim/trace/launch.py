"""A kernel that a call launched; some calls of torch_npu launch another kernel first."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Launch"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel, with the figures that a profiler gives."""

    op: str
    block_dim: int
    time_us: float | None
    """Task Duration: launch, the slowest core, completion; None if it was not timed."""
    launch_us: float
    """The part of it for starting and completing, outside the cores' own time."""
    cycles: int | None
    """Cycles of the slowest core, from its first micro-op to its last result."""
    gm_bytes: int
    """Bytes moved from and to global memory."""
    l2_bytes: int
    """Bytes moved from and to the L2."""
