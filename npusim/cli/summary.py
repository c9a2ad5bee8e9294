"""The summary of a run that `npusim run` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from npusim.cli.quantities import bytes_named, hz_named
from npusim.cli.screen import table
from npusim.data.tensor import Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.reports import bounds
from npusim.reports.style import PIPES
from npusim.run.result import Output, Result
from npusim.trace import LaneTrace, Trace

__all__ = ["summary"]

FIRST_VALUES = 12


def summary(run: Result, settings: Sequence[str] = ()) -> Group:
    """The lines that `npusim run` prints, and a table for each kind of core.

    *settings* are the numbers of the chip that were changed, as they were typed.
    """
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    lines.add_row("operator", run.op)
    lines.add_row("chip", _chip(run.device))
    if settings:
        lines.add_row("set", ", ".join(settings))
    for name, output in run.outputs.items():
        lines.add_row(name, _output(output))
    if run.template is not None:
        reason = "" if run.reason is None else f": {run.reason}"
        lines.add_row("template", f"{run.template}{reason}")
    lines.add_row("time", _time(run))
    if run.trace is not None and len(run.launches) > 1:
        lines.add_row("", f"{run.launches[-1].time_us:.2f} us {run.op} = {_parts(run)}")
    if run.engine is not None:
        lines.add_row("engine", run.engine)
    if run.accuracy is not None:
        lines.add_row("accuracy", str(run.accuracy))
        if run.accuracy.nearest is not None:
            lines.add_row("", f"closest measurement: {run.accuracy.nearest}")
    parts: list[RenderableType] = [lines]
    if run.trace is not None:
        lines.add_row("why", bounds.finding(run))
        lines.add_row(
            "memory",
            f"{bytes_named(run.trace.gm_bytes)} from and to global memory, "
            f"{bytes_named(run.trace.l2_bytes)} from and to the L2",
        )
        lines.add_row("cores", _cores(run.trace))
        counts = _counts(run.trace)
        for lane in run.trace.slowest_of_kinds:
            parts.append(Text())
            if len(counts) > 1:
                parts.append(Text(_slowest(lane, counts[lane.kind]), "bold"))
            parts.append(_pipes(lane, run.trace))
    return Group(*parts)


def _chip(device: DeviceSpec) -> str:
    """The series and the vendor's name of the chip: `Atlas A2 (Ascend 910B2)`."""
    spelled = [alias for alias in device.aliases if alias.lower() == device.name.lower()]
    return f"{device.series} ({(spelled or [device.name])[0].replace('Ascend', 'Ascend ')})"


def _output(output: Output) -> str:
    layout = "ND" if isinstance(output, np.ndarray) else output.layout
    described = f"{output.dtype} {output.shape}" + (f" {layout}" if layout != "ND" else "")
    if isinstance(output, TensorSpec):
        return f"{described}, without values"
    values = output.numpy() if isinstance(output, Tensor) else output
    first = " ".join(str(value) for value in values.reshape(-1)[:FIRST_VALUES].tolist())
    more = " ..." if values.size > FIRST_VALUES else ""
    return f"{described}: {first}{more}".rstrip()


def _time(run: Result) -> str:
    if run.time_us is None:
        return "not asked for"
    if run.trace is None:
        return "0 us, for no kernel ran"
    if len(run.launches) > 1:
        parts = " + ".join(f"{launch.time_us:.2f} us {launch.op}" for launch in run.launches)
        return f"{run.time_us:.2f} us in {len(run.launches)} launches = {parts}"
    return f"{run.time_us:.2f} us = {_parts(run)}"


def _parts(run: Result) -> str:
    """What the time of the operator's own kernel consists of."""
    own = run.launches[-1]
    assert own.time_us is not None
    cores_us = own.time_us - own.launch_us
    return (
        f"{own.launch_us:.2f} us launch and completion + {cores_us:.2f} us slowest core "
        f"({own.cycles} cycles at {hz_named(run.device.clock_hz)})"
    )


def _counts(trace: Trace) -> Counter[str]:
    """Kind of core -> how many took part."""
    found: Counter[str] = Counter()
    for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
        found[lane.kind] += len(lane.cores)
    return found


def _cores(trace: Trace) -> str:
    slowest, counts = trace.slowest, _counts(trace)
    name = f"core {slowest.cores[0]} ({slowest.kind})"
    if counts.total() == 1:
        return f"{name} alone"
    kinds = " and ".join(f"{count} {kind}" for kind, count in counts.items())
    every = f"{counts.total()}: {kinds}" if len(counts) > 1 else str(counts.total())
    return f"{every}, of which {name} is the slowest"


def _slowest(lane: LaneTrace, count: int) -> str:
    of = f", the slowest of {count}" if count > 1 else ""
    return f"core {lane.cores[0]}{of} ({lane.kind})"


def _pipes(lane: LaneTrace, trace: Trace) -> RenderableType:
    """How busy the pipes of the cores of *lane* were."""
    listing = table("pipe", "busy", "active", "busy cycles", "micro-ops", "bytes moved")
    for column in listing.columns[1:]:
        column.justify = "right"
    counters, works = lane.counters(), lane.work_cycles()
    for pipe in (pipe for pipe in PIPES if pipe in counters):
        counter = counters[pipe]
        shares = (100 * count / trace.cycles for count in (counter.busy_cycles, works[pipe]))
        numbers = (counter.busy_cycles, counter.micro_ops, counter.nbytes)
        listing.add_row(pipe, *(f"{share:.1f} %" for share in shares), *map(str, numbers))
    return listing
