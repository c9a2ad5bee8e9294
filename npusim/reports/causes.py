"""What bounds a run: causes, the device numbers that each depends on, and the gain of each.

The critical path proposes causes; the shares that a run reports were found by simulation
(:mod:`npusim.reports.trials`): how much a chip gains that is slightly faster in this respect. A
trace alone has no chip to change, so its shares are those of the critical path.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.reports.critical_path import critical_path
from npusim.reports.subject import Subject, earlier_us, launch_us, trace_of
from npusim.trace import Known, Trace

__all__ = ["CAUSES", "Bound", "bound_by", "causes", "least_us", "path_causes"]


@dataclass(frozen=True, slots=True)
class About:
    """A cause in words."""

    short: str
    """A shorter form for where there is little room."""
    words: str
    """What delays the run."""
    numbers: tuple[str, ...]
    """The numbers of a device file it depends on; a star stands for any name. If only the product
    of several matters, one of them is listed, so that twice each is twice as fast."""


CAUSES: dict[Known, About] = {
    "gm": About(
        "global memory",
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
    "rows": About("ND to NZ", "ND-to-NZ conversion", ("gm.row_ns", "gm.part_row_ns", "l2.row_ns")),
    "memory latency": About(
        "memory latency",
        "the latency of memory",
        ("gm.read_latency_ns", "gm.write_latency_ns", "l2.read_latency_ns", "l2.write_latency_ns"),
    ),
    "copy issue": About(
        "issuing copies",
        "issuing copies",
        (
            *(f"transfer.{name}_cycles" for name in ("issue", "burst", "ragged_block")),
            *(f"cores.*.paths.{path}.startup_cycles" for path in ("gm_to_*", "*_to_gm")),
        ),
    ),
    "cube": About("cube", "the cube", ("cube.tiles_per_cycle", "cube.back_to_back_cycles")),
    "vector": About(
        "vector",
        "the vector unit",
        ("vector.classes.*.cycles_per_repeat_*", "vector.classes.*.head_cycles"),
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
        (
            *("launch.base_us", "launch.start_us", "launch.mix_us", "launch.tiling_us"),
            *("launch.tiling_turn_us", "launch.completion_us"),
            *("cores.*.code.line_ns", "cores.*.code.turn_ns"),
        ),
    ),
    "earlier": About(
        "earlier kernels", "preparation kernels, which run before the operator's own", ()
    ),
}
"""In the order of the documentation."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A cause, its time on the critical path, and the gain of making it faster."""

    cause: Known
    """Of two causes that tie, the one with more of the critical path."""
    words: str
    numbers: tuple[str, ...]
    where: tuple[tuple[str, Pipe], ...]
    """The kinds of core and pipes that it delayed, the longest delay first."""
    path_us: float
    """Its time on the critical path."""
    path_share: float
    """The same as a share of the whole time: launch, the slowest core, completion; for a trace, of
    the time of the slowest core."""
    share: float
    """The share of the whole time that it accounts for, found by simulation; for a trace, its share
    of the path."""
    second: Known | None = None
    """The other one of two causes that tie: neither gains as much alone."""

    @property
    def causes(self) -> tuple[Known, ...]:
        """The cause, or the two that tie."""
        return (self.cause,) if self.second is None else (self.cause, self.second)


def path_causes(subject: Subject) -> list[Bound]:
    """The causes on the critical path, largest first; they add up to the whole time.

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
              us, us / total, us / total)
        for cause, us in times.items()
    ]  # fmt: skip
    return sorted(found, key=lambda bound: (-bound.path_share, list(CAUSES).index(bound.cause)))


def causes(subject: Subject) -> list[Bound]:
    """What bounds *subject*, by the gain found by simulation, the largest share first.

    For a trace, the causes on its critical path. Raises ValueError for a run that was not timed or
    had nothing to do.
    """
    path = path_causes(subject)
    if isinstance(subject, Trace):
        return path
    on_path = {bound.cause: bound for bound in path}
    total_us = sum(bound.path_us for bound in path)
    found = [bound for bound in path if bound.cause == "earlier"]
    # A change that only shifts which cores request a line at once may gain more than is possible.
    around = {bound.cause: bound.path_share for bound in path if bound.cause in AROUND}
    alone: dict[str, float] = {}
    for trial in subject.trials:
        outside = sum(around[cause] for cause in around if cause not in trial.causes)
        share = min(trial.share(total_us), 1 - outside)
        first, *others = (on_path.get(cause) or _off_path(cause) for cause in trial.causes)
        if not others:
            alone[first.cause] = share
            found.append(replace(first, share=share))
        elif share - sum(alone[cause] for cause in trial.causes) >= TIES:
            found = [bound for bound in found if bound.cause not in trial.causes]
            found.append(_tied(first, others[0], share))
    return sorted(found, key=lambda bound: (-bound.share, list(CAUSES).index(bound.cause)))


AROUND: tuple[Known, ...] = ("launch", "earlier")
"""Causes outside the time of the cores, so that nothing else gains by them."""
TIES = 0.1
"""Two causes tie if both together gain this much more of the time than the sum of each alone."""


def _off_path(cause: Known) -> Bound:
    return Bound(cause, CAUSES[cause].words, CAUSES[cause].numbers, (), 0.0, 0.0, 0.0)


def _tied(first: Bound, second: Bound, share: float) -> Bound:
    return Bound(
        first.cause,
        f"{first.words} and {second.words}, which tie",
        first.numbers + second.numbers,
        first.where,
        first.path_us + second.path_us,
        first.path_share + second.path_share,
        share,
        second.cause,
    )


def bound_by(subject: Subject) -> Bound:
    """What bounds the run."""
    return causes(subject)[0]


def least_us(trace: Trace, device: DeviceSpec) -> dict[Known, float]:
    """The time that each link of *device* needs for the bytes of *trace* alone."""
    gm, l2 = device.gm, device.l2
    read_s = trace.gm_read_bytes / gm.read_bytes_per_s
    back_s = trace.gm_written_bytes / gm.write_bytes_per_s
    far_s = read_s + back_s if gm.bus == "shared" else max(read_s, back_s)
    near_s = (trace.l2_bytes - trace.l2_written_bytes) / l2.read_bytes_per_s
    written_s = trace.l2_written_bytes / l2.write_bytes_per_s
    return {"gm": 1e6 * far_s, "l2 reads": 1e6 * near_s, "l2 writes": 1e6 * written_s}
