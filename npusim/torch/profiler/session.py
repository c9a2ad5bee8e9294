"""A profile: which stretches of a script are recorded, and what happened in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from torch.profiler import ProfilerAction

from npusim.data.errors import shown
from npusim.devices.schema import DeviceSpec
from npusim.torch import card
from npusim.torch.calls import Calls
from npusim.torch.clock import Event, clock
from npusim.torch.profiler.collected import Recorded, Step
from npusim.torch.profiler.settings import _ExperimentalConfig, left_out
from npusim.torch.profiler.timeline import write_timeline

__all__ = ["ProfilerAction", "profile", "schedule"]

RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(
    wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], ProfilerAction]:
    """Step -> action: *skip_first* steps, then *repeat* times wait, warm up and keep; 0: always.

    Raises ValueError for steps that make no cycle.
    """
    steps = {"wait": wait, "warmup": warmup, "repeat": repeat, "skip_first": skip_first}
    are_whole = all(isinstance(count, int) for count in (active, *steps.values()))
    if not are_whole or active < 1 or min(steps.values()) < 0:
        counts = ", ".join(f"{name}={shown(count)}" for name, count in steps.items())
        raise ValueError(
            f"torch_npu.profiler: active must be at least 1 and the rest at least 0, not "
            f"active={shown(active)}, {counts}; name whole steps"
        )
    cycle = wait + warmup + active

    def planned(step: int) -> ProfilerAction:
        at = step - skip_first
        if at < 0 or (repeat and at >= repeat * cycle) or at % cycle < wait:
            return ProfilerAction.NONE
        if at % cycle < wait + warmup:
            return ProfilerAction.WARMUP
        is_last = at % cycle == cycle - 1
        return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD

    return planned


class profile:  # noqa: N801 (torch_npu's name)
    """Keeps what runs between start and stop, or in the steps that *schedule* names.

    *on_trace_ready* is called with the profile whenever a stretch is complete. *record_shapes* and
    *with_stack* record the shapes of each operation's tensors and where it was called. What is not
    simulated, memory, modules and operations counted, warns and is left out.
    """

    def __init__(
        self,
        *,
        activities: Any = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        with_flops: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
    ) -> None:
        asked = {
            "profile_memory": profile_memory,
            "with_modules": with_modules,
            "with_flops": with_flops,
        }
        for name, is_asked in asked.items():
            if is_asked:
                left_out(f"{name}=True", LEFT_OUT[name])
        self.activities, self.experimental_config = activities, experimental_config
        self.record_shapes, self.with_stack = record_shapes, with_stack
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.step_num = 0
        self.action = ProfilerAction.NONE
        self.metadata: dict[str, str] = {}
        self.device = ""
        """The card that the recorded stretch ran on."""
        self.spec: DeviceSpec | None = None
        """Its chip."""
        self.steps: list[Step] = []
        """The steps of the recorded stretch."""
        self._calls = Calls()
        self._began_us, self._first_call = 0.0, 0

    @property
    def events(self) -> list[Event]:
        """What ran in the recorded stretch, in order."""
        return self._calls.events

    @property
    def config(self) -> _ExperimentalConfig:
        """The experimental settings."""
        return self.experimental_config or _ExperimentalConfig()

    @property
    def recorded(self) -> Recorded:
        """The record of the profile."""
        return Recorded(tuple(self.steps), tuple(self._calls.kept), tuple(self.events))

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getattr__(self, name: str) -> NoReturn:
        hint = f"; read {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(
            f"torch_npu.profiler.profile: an attribute must be one that is simulated, not "
            f"{name}{hint or '; leave it out'}"
        )

    def start(self) -> None:
        """Begin with step 0."""
        self.step_num = 0
        self.action = self._planned()
        if self.action in RECORDING:
            self._keep()

    def step(self) -> None:
        """End a step and begin the next."""
        before = self.action
        if before in RECORDING:
            self._end_step()
        self.step_num += 1
        self.action = self._planned()
        if before in RECORDING and (
            before is ProfilerAction.RECORD_AND_SAVE or self.action not in RECORDING
        ):
            self._hand_over()
            before = ProfilerAction.NONE
        if self.action in RECORDING and before not in RECORDING:
            self._keep()

    def stop(self) -> None:
        """End the profile, and pass the record to the handler."""
        if self.action in RECORDING:
            has_more = self._first_call < len(self._calls.kept)
            if self._began_us < clock.now_us or has_more or not self.steps:
                self._end_step()
            self._hand_over()
        self.action = ProfilerAction.NONE

    def export_chrome_trace(self, output_path: str) -> None:
        """Write the last record as a Chrome trace; raises RuntimeError if there is none."""
        if not self.steps:
            raise RuntimeError(
                "torch_npu.profiler: a profile must have run before it is exported, but has not; "
                "call start() and stop(), or use it in a with statement"
            )
        write_timeline(Path(output_path), self.recorded)

    def add_metadata(self, key: str, value: str) -> None:
        """Note *value* in profiler_metadata.json."""
        self.metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Note the JSON text *value* in profiler_metadata.json."""
        self.metadata[key] = json.loads(value)

    def _planned(self) -> ProfilerAction:
        if self.schedule is None:
            return ProfilerAction.RECORD
        return self.schedule(self.step_num)

    def _keep(self) -> None:
        self.device, self.spec = card.name(), card.spec()
        self.steps, self._began_us, self._first_call = [], clock.now_us, 0
        self._calls = Calls(has_shapes=self.record_shapes, has_stack=self.with_stack)
        self._calls.start()

    def _end_step(self) -> None:
        self.steps.append(Step(self.step_num, self._began_us, clock.now_us, self._first_call))
        self._began_us, self._first_call = clock.now_us, len(self._calls.kept)

    def _hand_over(self) -> None:
        self._calls.stop()
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)


LEFT_OUT = {
    "profile_memory": "operator_memory.csv and memory_record.csv",
    "with_modules": "the modules of call stacks",
    "with_flops": "numbers of operations",
}
"""Option -> the data that is not written for it."""
INSTEAD = {
    "key_averages": "op_statistic.csv and operator_details.csv, as with torch_npu itself",
    "events": "trace_view.json and kernel_details.csv, as with torch_npu itself",
    "export_stacks": "operator_details.csv of a profile with with_stack=True",
    "export_memory_timeline": "torch.npu.memory_allocated() at the places of interest",
}
"""Attribute that scripts use -> its equivalent."""
