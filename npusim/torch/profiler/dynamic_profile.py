"""`torch_npu.profiler.dynamic_profile`: a profile started by a file while a script runs.

::

    dynamic_profile.init("folder")
    for batch in batches:
        model(batch)
        dynamic_profile.step()

Whenever `folder/profiler_config.json` is new or has changed, a profile of its `warmup` and `active`
steps begins at its `start_step`, and is written to its `prof_dir`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.torch.profiler.folder import tensorboard_trace_handler
from npusim.torch.profiler.session import profile, schedule
from npusim.torch.refusals import others_of

__all__ = ["init", "set_state", "start", "step"]

CONFIG = "profiler_config.json"


@dataclass(slots=True)
class _State:
    """The state of the dynamic profile."""

    file: Path | None = None
    seen_ns: int = 0
    """The modification time of the file that was read last."""
    step: int = 0
    config: dict[str, Any] | None = None
    """The configuration whose first step has not come yet."""
    running: profile | None = None
    left: int = 0
    """Steps until the profile ends."""


_state = _State()


def init(path: str) -> None:
    """Watch for the file in the folder *path*. Raises RuntimeError if that is not a folder."""
    if not Path(path).is_dir():
        raise RuntimeError(
            f"torch_npu.profiler.dynamic_profile: path must be a folder, not {path!r}; make it"
        )
    _state.file, _state.seen_ns = Path(path) / CONFIG, 0


def set_state(state_step: dict[str, int]) -> None:
    """Count steps from `cur_step` of *state_step* on."""
    _state.step = state_step.get("cur_step", 0)


def start(config_path: str | None = None) -> None:
    """Begin a profile at once, configured by the given file, or by that of :func:`init`.

    Raises RuntimeError without a file, and while another profile runs.
    """
    file = Path(config_path) if config_path else _state.file
    if file is None or not file.is_file() or _state.running is not None:
        came = "another profile runs" if _state.running else f"there is none at {file}"
        raise RuntimeError(
            "torch_npu.profiler.dynamic_profile: start() must find a file of options and no other "
            f"profile, but {came}; write the file, and wait until the other profile has ended"
        )
    _begin(json.loads(file.read_text(encoding="utf-8")))


def step() -> None:
    """Note that a step has ended."""
    _state.step += 1
    _look()
    if _state.running is not None:
        _state.running.step()
        _state.left -= 1
        if not _state.left:
            _state.running.stop()
            _state.running = None
    elif _state.config is not None and _state.step >= _state.config.get("start_step", 0):
        _begin(_state.config)


def _look() -> None:
    """Read the file if it is new."""
    if _state.file is None or not _state.file.is_file():
        return
    changed_ns = _state.file.stat().st_mtime_ns
    if changed_ns != _state.seen_ns:
        _state.seen_ns = changed_ns
        _state.config = json.loads(_state.file.read_text(encoding="utf-8"))


def _begin(config: dict[str, Any]) -> None:
    warmup, active = int(config.get("warmup", 0)), int(config.get("active", 1))
    _state.running = profile(
        schedule=schedule(wait=0, warmup=warmup, active=active, repeat=1),
        on_trace_ready=tensorboard_trace_handler(config.get("prof_dir", "./")),
        record_shapes=bool(config.get("record_shapes")),
        with_stack=bool(config.get("with_stack")),
    )
    _state.left, _state.config = warmup + active, None
    _state.running.start()


__getattr__ = others_of("torch_npu.profiler.dynamic_profile")
