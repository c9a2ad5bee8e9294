"""What bounds a run: the causes on its critical path, and the numbers each of them depends on.

What is named first is what would move the time: making it a little faster does, and making anything
else faster by as little does less. The shares are those of the critical path, launch and completion
included. One thing the path of one core cannot see: a link that all cores together keep busy nearly
always lets nobody else gain more than the rest of the time, so shares of others are believed up to
that only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.reports.critical_path import Cause, critical_path
from npusim.reports.subject import Subject, device_of, earlier_us, launch_us, trace_of
from npusim.trace import Trace

__all__ = ["CAUSES", "Bound", "Known", "bound_by", "causes"]

Known = Cause | Literal["launch", "earlier"]


@dataclass(frozen=True, slots=True)
class About:
    """A cause in words."""

    short: str
    """For where there is little room."""
    words: str
    """What holds the run up."""
    numbers: tuple[str, ...]
    """The numbers of a device file it depends on; a star stands for any name. Where only
    the product of several counts one is here, so that twice each is twice as fast."""


CAUSES: dict[Known, About] = {
    "gm": About(
        "GM",
        "the bandwidth of global memory",
        ("gm.read_bytes_per_s", "gm.write_bytes_per_s", "gm.run_bytes", "l2.same_line_ns"),
    ),
    "l2 reads": About(
        "L2 reads",
        "the bandwidth of the L2 for reads",
        ("l2.read_bytes_per_s",),
    ),
    "l2 writes": About(
        "L2 writes",
        "the bandwidth of the L2 for writes",
        ("l2.write_bytes_per_s",),
    ),
    "port": About(
        "own port",
        "the core's own port to memory",
        tuple(
            f"cores.*.paths.{path}.bytes_per_cycle"
            for path in ("gm_to_*", "l2_to_*", "*_to_gm", "*_to_l2")
        ),
    ),
    "rows": About("turning rows", "turning rows into fractals", ("gm.row_ns", "l2.row_ns")),
    "memory latency": About(
        "memory latency",
        "the latency of memory",
        ("gm.read_latency_ns", "gm.write_latency_ns", "l2.read_latency_ns", "l2.write_latency_ns"),
    ),
    "copy issue": About(
        "issuing copies",
        "issuing copies",
        (
            *("transfer.issue_cycles", "transfer.burst_cycles"),
            *(f"cores.*.paths.{path}.startup_cycles" for path in ("gm_to_*", "*_to_gm")),
        ),
    ),
    "cube": About("cube", "the cube", ("cube.k_per_cycle.*", "cube.back_to_back_cycles")),
    "vector": About(
        "vector",
        "the vector unit",
        ("vector.repeat_bytes", "vector.classes.*.head_cycles"),
    ),
    "buffers": About(
        "between buffers",
        "copies between the buffers of a core",
        tuple(
            f"cores.*.paths.{path}.{number}"
            for path in ("l1_to_*", "l0c_to_l1", "l0c_to_ub", "ub_to_l1", "ub_to_l0c")
            for number in ("bytes_per_cycle", "startup_cycles")
        ),
    ),
    "scalar": About(
        "scalar",
        "the scalar unit's own work",
        tuple(f"scalar.{name}_cycles" for name in ("load", "global_load", "store", "alu")),
    ),
    "pipe latency": About(
        "pipe latency",
        "the latency of cube and vector unit",
        ("vector.classes.*.tail_cycles", "cube.startup_cycles"),
    ),
    "dispatch": About("dispatch", "dispatching micro-ops", ("scalar.dispatch_cycles",)),
    "flags": About(
        "flags",
        "setting and taking flags, and barriers",
        ("sync.set_flag_cycles", "sync.wait_flag_cycles", "sync.barrier_cycles"),
    ),
    "cross-core flags": About(
        "flags between cores", "flags between cores", ("sync.cross_core_cycles",)
    ),
    "launch": About(
        "launch",
        "launch and completion",
        tuple(
            f"launch.{name}_us"
            for name in (
                *(
                    "base",
                    "per_core",
                    "warm_per_core",
                    "mix",
                    "tiling",
                    "tiling_per_core",
                    "completion",
                ),
            )
        ),
    ),
    "earlier": About("earlier kernels", "the kernels that the call launches before", ()),
}
"""In the order of the docs."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A cause, and what it took on the critical path."""

    cause: Known
    words: str
    numbers: tuple[str, ...]
    where: tuple[tuple[str, Pipe], ...]
    """The kinds of core and pipes that it held up, those it held up longest first."""
    us: float
    share: float
    """Its share of the whole time: launch, slowest core, completion; of a trace, of the core."""


def causes(subject: Subject) -> list[Bound]:
    """The causes on the critical path, what bounds the run first, then by their shares.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace, around_us, before_us = trace_of(subject), launch_us(subject), earlier_us(subject)
    cycles: Counter[Known] = Counter()
    where: dict[Known, list[tuple[str, Pipe]]] = {}
    for held in critical_path(trace):
        cycles[held.cause] += held.cycles
        where.setdefault(held.cause, []).append((held.kind, held.pipe))
    times = {cause: count / trace.clock_hz * 1e6 for cause, count in cycles.items()}
    if around_us:
        times["launch"] = around_us
    if before_us:
        times["earlier"] = before_us
    total = sum(times.values())
    found = [
        Bound(cause, CAUSES[cause].words, CAUSES[cause].numbers, tuple(where.get(cause, ())),
              us, us / total)
        for cause, us in times.items()
    ]  # fmt: skip
    found.sort(key=lambda bound: (-bound.share, list(CAUSES).index(bound.cause)))
    first = _first(found, trace, device_of(subject), total)
    return [first, *(bound for bound in found if bound is not first)]


def bound_by(subject: Subject) -> Bound:
    """What bounds the run."""
    return causes(subject)[0]


def _first(found: list[Bound], trace: Trace, device: DeviceSpec | None, total_us: float) -> Bound:
    """The cause with the largest share that no busy link makes impossible to gain."""
    kept = _least_us(trace, device)

    def gain(bound: Bound) -> float:
        if bound.cause in ("launch", "earlier"):
            return bound.share
        least = max((us for cause, us in kept.items() if cause != bound.cause), default=0.0)
        return min(bound.share, 1 - least / total_us)

    return max(found, key=gain)


def _least_us(trace: Trace, device: DeviceSpec | None) -> dict[Known, float]:
    """How long each link needs for its bytes alone: nothing but a faster one is below that."""
    if device is None:
        return {}
    gm, l2 = device.gm, device.l2
    read_s = trace.gm_read_bytes / gm.read_bytes_per_s
    back_s = trace.gm_written_bytes / gm.write_bytes_per_s
    far_s = read_s + back_s if gm.bus == "shared" else max(read_s, back_s)
    # Launch comes before all of it.
    near_s = (trace.l2_bytes - trace.l2_written_bytes) / l2.read_bytes_per_s
    written_s = trace.l2_written_bytes / l2.write_bytes_per_s
    return {"gm": 1e6 * far_s, "l2 reads": 1e6 * near_s, "l2 writes": 1e6 * written_s}
