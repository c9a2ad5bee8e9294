"""`torch_npu.profiler`: what ran on the card and for how long, in simulated time.

::

    with torch_npu.profiler.profile(
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("result")
    ) as prof:
        for batch in batches:
            model(batch)
            prof.step()

leaves `result/<worker>_<time>_ascend_pt/ASCEND_PROFILER_OUTPUT` with `trace_view.json`,
`kernel_details.csv`, `op_statistic.csv` and `step_trace_time.csv`. Plain torch operations are in
the trace as "not simulated"; the tables hold kernels only, and the same columns at every level.
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
    "tensorboard_trace_handler",
]


__getattr__ = others_of("torch_npu.profiler")
