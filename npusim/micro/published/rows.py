"""Kernels and their published times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from npusim.chip import L2State
from npusim.devices.schema import DeviceSpec, ICache
from npusim.kernel.launch import Kernel
from npusim.micro.launch import task_us
from npusim.trace import Trace

__all__ = ["Row", "Table"]


class Row(NamedTuple):
    """A kernel and its published time."""

    id: str
    """Its row among the measured times; empty for kernels that are named by their shape."""
    variant: str
    measured_us: float
    write: Callable[[DeviceSpec], Kernel]
    span: Literal["task", "core"] = "task"
    """Whether the task was timed, or only its slowest core (aic_time)."""
    reads_tiling: bool = False
    """Whether it reads its tiling from global memory before it starts."""


class Table(NamedTuple):
    """Rows of one source, measured on one chip."""

    title: str
    device: str
    l2: L2State
    """The vendor's profiler is assumed to clear it before a kernel: a B of 63 MB comes no faster
    than from global memory (m0846), and a matrix read four times has a hit rate of 0.005 %."""
    rows: tuple[Row, ...]
    icache: ICache = "warm"

    def time_us(self, row: Row, kernel: Kernel, spec: DeviceSpec, trace: Trace) -> float:
        """The simulated time that corresponds to *row*; *trace* is that of its *kernel*."""
        if row.span == "task":
            tiling, icache = row.reads_tiling, self.icache
            return task_us(kernel, spec, trace, reads_tiling=tiling, icache=icache)
        start_us = spec.launch.tiling_us if row.reads_tiling else 0.0
        return start_us + trace.cycles / spec.clock_hz * 1e6
