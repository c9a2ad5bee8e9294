"""`torch_npu.profiler`: the kernels that ran on the card and their simulated times.

::

    with torch_npu.profiler.profile(
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("result")
    ) as prof:
        for batch in batches:
            model(batch)
            prof.step()

writes `result/<worker>_<time>_ascend_pt/ASCEND_PROFILER_OUTPUT` with `trace_view.json`,
`kernel_details.csv`, `op_statistic.csv`, `operator_details.csv` and `step_trace_time.csv`, which
the vendor's msprof-analyze reads (tried: `compare`, `advisor` and `cluster` of 26.2.0). Kernels
have the names and types that CANN gives them. Operations are those that reach the card, so
`aten::linear` appears as `aten::addmm`. The host takes no simulated time: its durations are 0, and
so is the free time of the card between kernels. Memory, communication, ranges of the script and
calls of CANN's own functions are not written.
"""

from __future__ import annotations

from npusim.torch.profiler.folder import tensorboard_trace_handler
from npusim.torch.profiler.session import ProfilerAction, profile, schedule
from npusim.torch.profiler.settings import (
    AiCMetrics,
    ExportType,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    supported_activities,
    supported_ai_core_metrics,
    supported_export_type,
    supported_profiler_level,
)
from npusim.torch.refusals import others_of

__all__ = [
    "AiCMetrics",
    "ExportType",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]


__getattr__ = others_of("torch_npu.profiler")
