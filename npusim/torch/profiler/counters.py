"""Utilisation of the pipes of a kernel's cores, in the columns of the metric PipeUtilization.

Names and order: Ascend/msprof, docs (op_summary), by product line. Assumed: `total_cycles` is the
sum over cores, and a time is the mean over cores. Values that are not simulated are N/A.
"""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.trace import LaneTrace, Trace
from npusim.trace.lanes import busy_us

__all__ = ["columns", "counters"]

MISSING = "N/A"
NAMES: dict[Pipe, str] = {"vector": "vec", "cube": "mac"}
"""Pipe -> its name in profilers, if that differs."""
WHOLE: tuple[Pipe, ...] = ("vector", "cube", "scalar", "mte1", "mte2", "mte3")
"""The pipes of a core with both units, on Atlas inference."""
OF_KIND: dict[str, tuple[Pipe, ...]] = {
    "aic": ("cube", "scalar", "mte1", "mte2", "fixpipe"),
    "aiv": ("vector", "scalar", "mte2", "mte3"),
}


def columns(spec: DeviceSpec) -> tuple[str, ...]:
    """The columns for *spec*."""
    if spec.arch == "2002":
        return ("aicore_time(us)", "total_cycles", *_names("", WHOLE), "cube_utilization(%)")
    first = ("aicore_time(us)", "aic_total_cycles", *_names("aic_", OF_KIND["aic"]))
    second = ("aiv_time(us)", "aiv_total_cycles", *_names("aiv_", OF_KIND["aiv"]))
    return (*first, *second, "cube_utilization(%)")


def _names(prefix: str, pipes: tuple[Pipe, ...]) -> tuple[str, ...]:
    words = [NAMES.get(pipe, pipe) for pipe in pipes]
    names = [f"{prefix}{word}_{what}" for word in words for what in ("time(us)", "ratio")]
    return (*names, f"{prefix}icache_miss_rate")


def counters(spec: DeviceSpec, trace: Trace | None, time_us: float) -> list[str]:
    """The cells for a kernel on *spec* that takes *time_us*."""
    lanes = trace.lanes if trace else ()
    if spec.arch == "2002":
        cells = _block(spec, list(lanes), WHOLE)
    else:
        cells = []
        for kind, pipes in OF_KIND.items():
            cells += _block(spec, [lane for lane in lanes if lane.kind == kind], pipes)
    cube = [lane for lane in lanes if spec.arch == "2002" or lane.kind == "aic"]
    used = sum(lane.last_end * len(lane.cores) for lane in cube)
    possible = spec.clock_hz * time_us / 1e6 * _cube_cores(spec)
    return [*cells, f"{100 * used / possible:.3f}" if possible else "0.000"]


def _block(spec: DeviceSpec, lanes: list[LaneTrace], pipes: tuple[Pipe, ...]) -> list[str]:
    """Time, cycles, and the time and ratio of each pipe, for the cores of *lanes*."""
    count = sum(len(lane.cores) for lane in lanes)
    total = sum(lane.last_end * len(lane.cores) for lane in lanes)
    mean_us = total / count / spec.clock_hz * 1e6 if count else 0.0
    cells = [f"{mean_us:.3f}", str(total)]
    busy = busy_us(lanes, spec.clock_hz)
    for pipe in pipes:
        time_us = busy.get(pipe, 0.0)
        cells += [f"{time_us:.3f}", f"{time_us / mean_us if mean_us else 0.0:.3f}"]
    return [*cells, MISSING]


def _cube_cores(spec: DeviceSpec) -> int:
    return sum(core.count for core in spec.cores.values() if "cube" in core.pipes)
