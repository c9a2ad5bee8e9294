"""The folder that a profile leaves, named and filled as torch_npu's profiler does."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from npusim.torch import trace
from npusim.torch.profiler.session import profile
from npusim.torch.profiler.tables import write_kernels, write_statistic, write_steps

__all__ = ["tensorboard_trace_handler"]

RESULTS = "ASCEND_PROFILER_OUTPUT"


def tensorboard_trace_handler(
    dir_name: str | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,  # noqa: ARG001
) -> Callable[[profile], None]:
    """An `on_trace_ready` that writes into `dir_name/<worker>_<time>_ascend_pt`.

    Without *analyse_flag* it leaves only the notes on the profile. Raises OSError where the folder
    cannot be written.
    """

    def leave(prof: profile) -> None:
        folder = _new_folder(Path(dir_name or "."), worker_name)
        notes = {"rank_id": -1, "device": prof.device, "simulated": True}
        _write_json(folder / "profiler_info.json", notes)
        _write_json(folder / "profiler_metadata.json", prof.metadata)
        if analyse_flag:
            _fill(folder / RESULTS, prof)

    return leave


def _new_folder(parent: Path, worker_name: str | None) -> Path:
    worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
    moment_ms = time.time_ns() // 1_000_000
    while True:
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(moment_ms // 1000))
        folder = parent / f"{worker}_{stamp}{moment_ms % 1000:03d}_ascend_pt"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            # Two profiles within a millisecond: the later one takes the next name.
            moment_ms += 1
        else:
            return folder


def _fill(folder: Path, prof: profile) -> None:
    folder.mkdir()
    trace.write(prof.events, folder, prof.device)
    write_kernels(folder / "kernel_details.csv", prof.events, prof.steps)
    write_statistic(folder / "op_statistic.csv", prof.events)
    write_steps(folder / "step_trace_time.csv", prof.events, prof.steps)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
