"""The facts about a kernel that model pages show, without tensors and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from npusim.data.tensor import Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.reports.bounds import bounded_by
from npusim.reports.causes import bound_by
from npusim.run.result import Result
from npusim.trace import Launch, Trace, Trial
from npusim.trace.model import Kernel

__all__ = ["described", "kernel_of"]


@dataclass(frozen=True, eq=False)
class _Alone:
    """A kernel without those that its call launches before, as reports need it."""

    op: str
    template: str | None
    device: DeviceSpec
    trace: Trace | None
    launches: tuple[Launch, ...]
    launch_us: float
    time_us: float | None
    trials: tuple[Trial, ...]


def kernel_of(run: Result, time_us: float, launch_us: float) -> Kernel:
    """The facts about the kernel of *run*, which takes *time_us*, *launch_us* of it to launch."""
    inputs, outputs = described(run.arguments), described(run.outputs)
    trace, own = run.trace, run.launches[-1]
    own = replace(own, time_us=time_us, launch_us=launch_us)
    # The programs of the kernel alone, with its launch cost here.
    beyond_us = (run.time_us or 0.0) - time_us
    trials = tuple(replace(each, time_us=each.time_us - beyond_us) for each in run.trials)
    alone = _Alone(
        *(run.op, run.template, run.device, trace, (own,), launch_us, time_us),
        trials,
    )
    words, share = "launch and completion", 1.0
    if trace is not None and trace.cycles:
        words, share = bounded_by(alone), bound_by(alone).share
    read_bytes, written_bytes = _asked_bytes(trace)
    return Kernel(
        *(run.op, run.template, inputs, outputs, len(trace.cores) if trace else 0),
        *(time_us, launch_us, own.cycles or 0),
        *(read_bytes, written_bytes, trace.gm_bytes if trace else 0),
        *((trace.l2_hit_bytes, trace.gm_written_bytes) if trace else (0, 0)),
        *(words, min(1.0, share)),
    )


def _asked_bytes(trace: Trace | None) -> tuple[int, int]:
    """Bytes that the cores of *trace* read from and write to memory."""
    counters = [] if trace is None else list(trace.counters().values())
    by_pipe: Counter[str] = Counter()
    for own in counters:
        for pipe, counter in own.items():
            by_pipe[pipe] += counter.nbytes
    written = by_pipe["mte3"] + by_pipe["fixpipe"]
    return by_pipe.total() - written, written


def described(values: Mapping[str, object]) -> tuple[str, ...]:
    """Type and shape of each tensor among *values*, including those in lists."""
    return tuple(text for value in values.values() for text in _texts(value))


def _texts(value: object) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    if not isinstance(value, np.ndarray | Tensor | TensorSpec):
        return []
    shape = "x".join(map(str, value.shape)) or "scalar"
    layout = "ND" if isinstance(value, np.ndarray) else value.layout
    return [f"{value.dtype} {shape}" + ("" if layout == "ND" else f" {layout}")]
