"""The output folder of a profile, with the names and files of torch_npu's profiler."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch

from npusim.torch.profiler.session import profile
from npusim.torch.profiler.settings import AiCMetrics, ProfilerActivity
from npusim.torch.profiler.tables import (
    write_kernels,
    write_operations,
    write_statistic,
    write_steps,
)
from npusim.torch.profiler.timeline import write_timeline

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
        rank = _rank()
        suffix = "" if rank is None else f"_{rank}"
        _write_json(folder / f"profiler_info{suffix}.json", _notes(prof, rank))
        _write_json(folder / "profiler_metadata.json", prof.metadata)
        if analyse_flag:
            _fill(folder / RESULTS, prof)

    return leave


def _rank() -> int | None:
    """The number of this process among those that work together; None where it is alone."""
    distributed = torch.distributed
    is_one_of_many = distributed.is_available() and distributed.is_initialized()
    return distributed.get_rank() if is_one_of_many else None


def _notes(prof: profile, rank: int | None) -> dict[str, object]:
    """How the profile was made, where the vendor's tools look for it."""
    config = prof.config
    asked = list(ProfilerActivity) if prof.activities is None else list(prof.activities)
    metrics = PIPES if config.has_counters else config.aic_metrics
    common = {
        "activities": [str(each) for each in asked],
        "record_shapes": prof.record_shapes,
        "with_stack": prof.with_stack,
    }
    further = {
        "_profiler_level": config.profiler_level.value,
        "_aic_metrics": metrics.value,
        "_export_type": ["text"],
    }
    return {
        "config": {"common_config": common, "experimental_config": further},
        "rank_id": -1 if rank is None else rank,
        "device": prof.device,
        "simulated": True,
    }


PIPES = AiCMetrics.PipeUtilization


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
    recorded, config = prof.recorded, prof.config
    assert prof.spec is not None
    write_timeline(folder / "trace_view.json", recorded)
    write_kernels(folder / "kernel_details.csv", recorded, prof.spec, config)
    write_statistic(folder / "op_statistic.csv", recorded)
    write_operations(folder / "operator_details.csv", recorded)
    write_steps(folder / "step_trace_time.csv", recorded)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
