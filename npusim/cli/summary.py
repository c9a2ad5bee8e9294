"""The summary of a run that `npusim run` prints."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from npusim.cli.quantities import bytes_named, hz_named
from npusim.cli.screen import table
from npusim.data.tensor import Tensor, TensorSpec
from npusim.run import Output, Run
from npusim.trace import Trace

__all__ = ["summary"]

FIRST_VALUES = 12


def summary(run: Run) -> Group:
    """The lines and the table that `npusim run` prints."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    lines.add_row("operator", run.op)
    lines.add_row("chip", " = ".join((run.device.name, *run.device.aliases)))
    for name, output in run.outputs.items():
        lines.add_row(name, _output(output))
    if run.template is not None:
        reason = "" if run.reason is None else f": {run.reason}"
        lines.add_row("template", f"{run.template}{reason}")
    lines.add_row("time", _time(run))
    parts: list[RenderableType] = [lines]
    if run.trace is not None:
        facts = run.to_json()
        lines.add_row(
            "memory",
            f"{bytes_named(facts['gm_bytes'])} moved past the L2, "
            f"{bytes_named(facts['l2_bytes'])} from and to the L2",
        )
        lines.add_row("cores", _cores(run.trace))
        parts += [Text(), _pipes(run)]
    return Group(*parts)


def _output(output: Output) -> str:
    layout = "ND" if isinstance(output, np.ndarray) else output.layout
    described = f"{output.dtype} {output.shape}" + (f" {layout}" if layout != "ND" else "")
    if isinstance(output, TensorSpec):
        return f"{described}, without values"
    values = output.numpy() if isinstance(output, Tensor) else output
    first = " ".join(str(value) for value in values.reshape(-1)[:FIRST_VALUES].tolist())
    more = " ..." if values.size > FIRST_VALUES else ""
    return f"{described}: {first}{more}".rstrip()


def _time(run: Run) -> str:
    if run.time_us is None:
        return "not asked for"
    if run.trace is None:
        return "0 us, for no kernel ran"
    cores_us = run.time_us - run.launch_us
    return (
        f"{run.time_us:.2f} us = {run.launch_us:.2f} us launch and completion + {cores_us:.2f} us "
        f"slowest core ({run.cycles} cycles at {hz_named(run.device.clock_hz)})"
    )


def _cores(trace: Trace) -> str:
    slowest, count = trace.slowest, len(trace.cores)
    name = f"core {slowest.cores[0]} ({slowest.kind})"
    return f"{name} alone" if count == 1 else f"{count}, of which {name} is the slowest"


def _pipes(run: Run) -> RenderableType:
    """How busy the pipes of the slowest core were."""
    assert run.trace is not None
    listing = table("pipe", "busy", "cycles", "micro-ops", "bytes moved")
    for column in listing.columns[1:]:
        column.justify = "right"
    for pipe, counter in run.trace.slowest.counters().items():
        share = 100 * counter.busy_cycles / run.trace.cycles
        numbers = (counter.busy_cycles, counter.micro_ops, counter.nbytes)
        listing.add_row(pipe, f"{share:.1f} %", *(str(number) for number in numbers))
    return listing
