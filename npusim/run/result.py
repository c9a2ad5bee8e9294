"""The result of a run: its outputs, its times, how the work was split, and the call itself."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from npusim import ops
from npusim.accuracy import Accuracy, Kind, Sizes, accuracy_of, kind_of
from npusim.check.hazards import HazardError
from npusim.chip import Arrival, Engine, L2State
from npusim.data.arguments import Arguments
from npusim.data.dtypes import Array
from npusim.data.errors import OpError
from npusim.data.json import Json
from npusim.data.tensor import Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec, FoundCode, ICache, Pipe
from npusim.kernel.program import QueueName
from npusim.run.options import Options
from npusim.run.user_kernel import OwnKernel
from npusim.timing.engines import quickest
from npusim.trace import Launch, PipeCounter, Trace, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from npusim.reports.path import CriticalPath

__all__ = ["REFUSALS", "Call", "Output", "Result", "trials_json", "without_values"]

Output = Array | Tensor | TensorSpec
"""The values, or only shape and type if a TensorSpec was passed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """The outputs, the time, and the reasons for it."""

    op: str
    device: DeviceSpec
    arguments: Arguments
    """Parameter -> its argument; arrays and tensors as their TensorSpec."""
    l2: L2State
    icache: ICache
    outputs: dict[str, Output]
    """All outputs, by their names in programs: operators call the first one `output`."""
    plan: ops.Plan | None
    """How the work was split; None if no kernel ran."""
    trace: Trace | None
    """When each micro-op ran; None without timing, or if no kernel ran."""
    timed: bool
    """Whether the time was requested."""
    engine: Engine | None = None
    """The engine that timed it; None if no kernel ran or no time was requested."""
    earlier: tuple[Result, ...] = ()
    """Kernels that torch_npu launches first: their times are part of this one's.

    Plan, trace, cycles and counters are those of the operator's own kernel.
    """
    is_own_kernel: bool = False
    """Whether the kernel is a user's function rather than an operator of npusim."""
    kernel_type: str | None = None
    """CANN's name of the kernel; None if no kernel ran."""
    call: Call | None = None
    """The call, so that it can be repeated with a change; None if no kernel ran."""
    cycles_on: CyclesOn | None = None
    """The cycles of its programs on a chip with other costs of micro-ops; None if no kernel ran or
    no time was requested."""
    found_code: FoundCode | None = None
    """Where the launch on a card found the kernel's code; None if `icache` decides."""
    cached_as: Hashable = None
    """Its key in :mod:`npusim.run.memory_cache`; None if it is not there, as for calls with values,
    and those that warned."""

    @property
    def output(self) -> Output | tuple[Output, ...]:
        """The return value of the torch_npu function: one output, or a tuple of several."""
        found = tuple(self.outputs.values())
        return found if len(found) > 1 else found[0]

    @property
    def cycles(self) -> int | None:
        """Cycles of the slowest core, from its first micro-op to its last result."""
        if not self.timed:
            return None
        return self.trace.cycles if self.trace else 0

    @property
    def template(self) -> str | None:
        """The vendor's kernel that ran, if the operator has several."""
        return self.plan.template if self.plan else None

    @property
    def reason(self) -> str | None:
        """Why that template was chosen."""
        return self.plan.reason if self.plan else None

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels that the call launches, the operator's own last; empty if none ran."""
        first = tuple(launch for run in self.earlier for launch in run.launches)
        return first if self.plan is None else (*first, self._own_launch(self.plan))

    def _launch_us_on(self, device: DeviceSpec, plan: ops.Plan) -> float:
        split = plan.block_dim, plan.is_mix, plan.reads_tiling
        # Only programs have a code size, and without timing they have not been analysed.
        runs = self.trace.code if self.trace else {}
        return device.launch_us(split, runs, self.found_code or self.icache)

    def _own_launch(self, plan: ops.Plan) -> Launch:
        launch_us = self._launch_us_on(self.device, plan)
        time_us = None
        if self.cycles is not None:
            time_us = launch_us + self.cycles / self.device.clock_hz * 1e6
        gm_bytes = self.trace.gm_bytes if self.trace else 0
        l2_bytes = self.trace.l2_bytes if self.trace else 0
        return Launch(self.op, plan.block_dim, time_us, launch_us, self.cycles, gm_bytes, l2_bytes)

    @property
    def launch_us(self) -> float:
        """Time to start and end the kernels, outside the cores' own time."""
        return sum((launch.launch_us for launch in self.launches), 0.0)

    @property
    def time_us(self) -> float | None:
        """The profiler's Task Duration: launch, the slowest core, completion; host excluded.

        The sum over all kernels, if the call launches several: see :attr:`launches`.
        """
        if not self.timed:
            return None
        return sum((launch.time_us or 0.0 for launch in self.launches), 0.0)

    def time_us_on(self, device: DeviceSpec) -> float:
        """The time of the same programs on *device*, which differs in costs of micro-ops.

        Raises ValueError for a run that was not timed or did nothing.
        """
        if self.plan is None or self.cycles_on is None:
            raise ValueError(
                f"run: a run must have been timed and have had work to do, not {self!r}; run it "
                f"with timing=True on tensors that are not empty"
            )
        before_us = sum(run.time_us_on(device) for run in self.earlier if run.cycles_on)
        launch_us = self._launch_us_on(device, self.plan)
        return before_us + launch_us + self.cycles_on(device) / device.clock_hz * 1e6

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The causes that bound it, simulated: the same programs on slightly faster chips.

        Empty if no kernel ran or no time was requested.
        """
        from npusim.reports.trials import try_causes

        return try_causes(self, self.time_us_on) if self.trace and self.trace.cycles else ()

    @property
    def kind(self) -> Kind | None:
        """The kind of comparable measured kernels; None for custom kernels, or if none ran."""
        return None if self._sort is None else self._sort[0]

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """The expected error of :attr:`time_us`, from measured kernels of its kind.

        None if no kernel ran or no time was requested.
        """
        if self.time_us is None or self.plan is None:
            return None
        if self._sort is None:
            return Accuracy(None, self.device.series, 0)
        kind, sizes = self._sort
        return accuracy_of(kind, self.time_us, sizes)

    @cached_property
    def _sort(self) -> tuple[Kind, Sizes] | None:
        if self.plan is None or self.is_own_kernel:
            return None
        return kind_of(self.op, self.device.series, self.arguments)

    @property
    def counters(self) -> dict[int, dict[Pipe, PipeCounter]]:
        """Core -> pipe -> counters."""
        return self.trace.counters() if self.trace else {}

    def critical_path(self) -> CriticalPath:
        """What determines the end: micro-ops, flags between cores, slack of pipes, last wave.

        Raises ValueError for a run that was not timed or did nothing.
        """
        from npusim.reports.path import path_of

        return path_of(self)

    def timeline(self, **options: Any) -> Axes:
        """Draw the timeline of each pipe; for *options* see `npusim.reports.timeline.timeline`.

        Raises ValueError for a run that was not timed or did nothing.
        """
        from npusim.reports.timeline import timeline  # imports matplotlib

        return timeline(self, **options)

    def to_json(self) -> Json:
        """Everything except the values and the spans, as plain numbers, strings and lists."""
        return {
            "op": self.op,
            "device": self.device.name,
            "arguments": {name: _to_json(value) for name, value in self.arguments.items()},
            "l2": _l2_json(self.l2),
            "icache": self.icache,
            "output": _to_json(without_values(self.output)),
            "template": self.template,
            "reason": self.reason,
            "plan": _to_json(asdict(self.plan)) if self.plan else None,
            "engine": self.engine,
            "time_us": self.time_us,
            "launch_us": self.launch_us,
            "cycles": self.cycles,
            "clock_hz": self.device.clock_hz,
            "accuracy": asdict(self.accuracy) if self.accuracy else None,
            "launches": [asdict(launch) for launch in self.launches],
            "gm_bytes": self.trace.gm_bytes if self.trace else 0,
            "gm_written_bytes": self.trace.gm_written_bytes if self.trace else 0,
            "l2_bytes": self.trace.l2_bytes if self.trace else 0,
            "l2_hit_bytes": self.trace.l2_hit_bytes if self.trace else 0,
            "counters": {
                str(core): {pipe: asdict(counter) for pipe, counter in pipes.items()}
                for core, pipes in self.counters.items()
            },
        }

    def _repr_html_(self) -> str:
        """Notebook display: the run in one line and, if it was timed, its timeline."""
        from npusim.reports.html import glimpse  # imports matplotlib, which a run does not need

        return glimpse(repr(self), self if self.trace is not None else None)

    def __repr__(self) -> str:
        found = " and ".join(_describe(output) for output in self.outputs.values())
        took = "not timed" if self.time_us is None else f"{self.time_us:.2f} us"
        several = len(self.launches) > 1 and self.time_us is not None
        took += f" in {len(self.launches)} launches" if several else ""
        return f"<{self.op} on {self.device.name}: {found}, {took}>"


class CyclesOn(Protocol):
    """Finds the cycles of a run's programs on a chip: :class:`npusim.run.task.CyclesOn`."""

    def __call__(self, device: DeviceSpec) -> int: ...

    def written_for(self, spec: DeviceSpec) -> CyclesOn:
        """The same for the run on *spec*, which is equal to its chip."""


REFUSALS = OpError, HazardError, ValueError, TypeError
"""Exceptions for what an operator, a chip or a custom kernel does not accept."""


class Play(Protocol):
    """Runs a call: :func:`npusim.run.call.play`."""

    def __call__(
        self,
        op: str | OwnKernel,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        device: DeviceSpec,
        options: Options,
    ) -> Result: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """A call of :func:`npusim.run`, which can be repeated with a change."""

    op: str | OwnKernel
    operator: ops.Operator
    device: DeviceSpec
    arguments: Arguments
    """Parameter -> its argument; arrays and tensors as their TensorSpec, except those whose values
    affect how the kernel is written."""
    options: Options
    play: Play
    """The function that ran it, and can run it again."""

    def __repr__(self) -> str:
        return f"<call of {self.operator.name} on {self.device.name}>"

    def timed(
        self,
        changes: Mapping[str, object] | None = None,
        device: DeviceSpec | None = None,
        deeper: tuple[QueueName, ...] = (),
    ) -> Result | None:
        """The same call for its time alone, with *changes* of its arguments or on another chip.

        Queues in *deeper* get one slot more than the kernel declares. None if such a call is
        refused, or does nothing.
        """
        # All engines give the same times.
        options = replace(self.options, values=False, timing=True, engine=quickest(), deeper=deeper)
        arguments = self.arguments | dict(changes or {})
        return self._played(self.op, arguments, device or self.device, options)

    def other(self, op: str, arguments: dict[str, object]) -> Result | None:
        """Another call on the same chip, for its time alone, with a cold L2."""
        options = replace(
            self.options, values=False, timing=True, l2="cold", icache=None, copies=None
        )
        return self._played(op, arguments, self.device, options)

    def _played(
        self,
        op: str | OwnKernel,
        arguments: dict[str, object],
        device: DeviceSpec,
        options: Options,
    ) -> Result | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self.play(op, (), arguments, device, options)
        except REFUSALS:
            return None
        return found if found.time_us else None


def trials_json(run: Result) -> Json:
    """The trials of *run*, in the format of :meth:`Result.to_json`."""
    return {"trials": [asdict(trial) for trial in run.trials]}


def without_values(value: object) -> Any:
    """Arrays and tensors as their TensorSpec, also within tuples and lists; bytes as the spec of
    their bytes; structures with their values, and everything else unchanged.
    """
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, bytes):
        return TensorSpec((len(value),), "uint8")
    if isinstance(value, tuple):
        return tuple(without_values(part) for part in value)
    if isinstance(value, list):
        return [without_values(part) for part in value]
    if isinstance(value, np.ndarray):
        # Booleans take one byte each.
        is_mask = value.dtype == np.bool_
        return TensorSpec(value.shape, "uint8" if is_mask else value.dtype.name)
    return value.spec if isinstance(value, Tensor) else value


def _plain(value: object) -> object:
    """A field of a structure, as a plain Python type."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return list(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _describe(output: Output) -> str:
    spec = without_values(output)
    return f"{spec.dtype} {spec.shape}" + ("" if spec.layout == "ND" else f" {spec.layout}")


def _l2_json(l2: L2State) -> object:
    if isinstance(l2, Arrival):
        return l2.to_json()
    return dict(l2) if isinstance(l2, Mapping) else l2


def _to_json(value: object) -> Any:
    """An argument, an output without values, or a part of a plan, as numbers, strings, lists and
    dictionaries."""
    if isinstance(value, dict):
        return {str(name): _to_json(part) for name, part in value.items()}
    if isinstance(value, range):
        return [value.start, value.stop]
    if isinstance(value, tuple | list):
        return [_to_json(part) for part in value]
    if isinstance(value, TensorSpec):
        plain = {"shape": list(value.shape), "dtype": value.dtype, "layout": value.layout}
        return plain | ({"transposed": True} if value.transposed else {})
    return value.item() if isinstance(value, np.generic) else value
