"""A profile: which stretches of a script are kept, and what happened in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npusim.data.errors import shown
from npusim.torch import card
from npusim.torch.clock import Event, clock
from npusim.torch.trace import trace_events

__all__ = ["ProfilerAction", "Step", "profile", "schedule"]

ProfilerAction = torch.profiler.ProfilerAction
KEPT = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(
    wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], Any]:
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

    def planned(step: int) -> Any:
        at = step - skip_first
        if at < 0 or (repeat and at >= repeat * cycle) or at % cycle < wait:
            return ProfilerAction.NONE
        if at % cycle < wait + warmup:
            return ProfilerAction.WARMUP
        is_last = at % cycle == cycle - 1
        return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD

    return planned


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script, in simulated time."""

    number: int
    start_us: float
    end_us: float


class profile:  # noqa: N801 (torch_npu's name)
    """Keeps what runs between start and stop, or in the steps that *schedule* names.

    *on_trace_ready* is called with the profile whenever a stretch is complete. What else torch_npu
    takes changes nothing here.
    """

    def __init__(
        self,
        *,
        activities: Any = None,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,  # noqa: ARG002
        profile_memory: bool = False,  # noqa: ARG002
        with_stack: bool = False,  # noqa: ARG002
        with_flops: bool = False,  # noqa: ARG002
        with_modules: bool = False,  # noqa: ARG002
        experimental_config: Any = None,
    ) -> None:
        self.activities, self.experimental_config = activities, experimental_config
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.step_num = 0
        self.action = ProfilerAction.NONE
        self.metadata: dict[str, str] = {}
        self.device = ""
        """The card that the kept stretch ran on."""
        self.events: list[Event] = []
        """What ran in the kept stretch, in order."""
        self.steps: list[Step] = []
        """Its steps."""
        self._began_us = 0.0

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin with step 0."""
        self.step_num = 0
        self.action = self._planned()
        if self.action in KEPT:
            self._keep()

    def step(self) -> None:
        """End a step and begin the next."""
        before = self.action
        if before in KEPT:
            self.steps.append(Step(self.step_num, self._began_us, clock.now_us))
            self._began_us = clock.now_us
        self.step_num += 1
        self.action = self._planned()
        if before in KEPT and (before is ProfilerAction.RECORD_AND_SAVE or self.action not in KEPT):
            self._hand_over()
            before = ProfilerAction.NONE
        if self.action in KEPT and before not in KEPT:
            self._keep()

    def stop(self) -> None:
        """End; what is kept so far is handed over."""
        if self.action in KEPT:
            if self._began_us < clock.now_us or not self.steps:
                self.steps.append(Step(self.step_num, self._began_us, clock.now_us))
            self._hand_over()
        self.action = ProfilerAction.NONE

    def export_chrome_trace(self, output_path: str) -> None:
        """Write what was kept last as a Chrome trace; raises RuntimeError if nothing was."""
        if not self.steps:
            raise RuntimeError(
                "torch_npu.profiler: a profile must have run before it is exported, but has not; "
                "call start() and stop(), or use it in a with statement"
            )
        content = {"traceEvents": trace_events(self.events, self.device)}
        Path(output_path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def add_metadata(self, key: str, value: str) -> None:
        """Note *value* in profiler_metadata.json."""
        self.metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Note what the JSON text *value* says."""
        self.metadata[key] = json.loads(value)

    def _planned(self) -> Any:
        if self.schedule is None:
            return ProfilerAction.RECORD
        return self.schedule(self.step_num)

    def _keep(self) -> None:
        self.device, self.steps, self._began_us = card.name(), [], clock.now_us
        self.events = clock.record()

    def _hand_over(self) -> None:
        clock.stop(self.events)
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)
