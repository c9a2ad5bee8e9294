"""Settings of a profile, by the names that scripts use.

Names and values: Ascend/pytorch, torch_npu/profiler/experimental_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from warnings import warn

from npusim.data.errors import callers_level

__all__ = [
    "AiCMetrics",
    "ExportType",
    "ProfilerActivity",
    "ProfilerLevel",
    "left_out",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
]


class ProfilerActivity(Enum):
    """The devices to profile."""

    CPU = 0
    NPU = 1


def supported_activities() -> set[ProfilerActivity]:
    return set(ProfilerActivity)


class ProfilerLevel(Enum):
    """How much to write about each kernel: above Level0 also its task, stream and counters."""

    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


def supported_profiler_level() -> set[ProfilerLevel]:
    return set(ProfilerLevel)


class AiCMetrics(Enum):
    """The counters of the cores to write; only PipeUtilization is simulated."""

    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"
    AiCoreNone = "ACL_AICORE_NONE"


def supported_ai_core_metrics() -> set[AiCMetrics]:
    return set(AiCMetrics)


class ExportType(Enum):
    """The format of the results."""

    Text = "text"
    Db = "db"


def supported_export_type() -> set[ExportType]:
    return set(ExportType)


def left_out(asked: str, what: str) -> None:
    """Warn that *asked* is accepted, but *what* is not written."""
    warn(
        f"torch_npu.profiler: what is asked for must be simulated to be written, but {asked} is "
        f"not: {what} are left out",
        UserWarning,
        stacklevel=callers_level(),
    )


@dataclass(kw_only=True)
class _ExperimentalConfig:
    """Experimental settings. Raises ValueError for an `export_type` other than text.

    Above Level0 the default counters are those of PipeUtilization (assumed). Settings that are not
    simulated cause a warning and have no effect.
    """

    profiler_level: ProfilerLevel = ProfilerLevel.Level0
    aic_metrics: AiCMetrics = AiCMetrics.AiCoreNone
    l2_cache: bool = False
    msprof_tx: bool = False
    mstx: bool = False
    mstx_domain_include: list[str] | None = None
    mstx_domain_exclude: list[str] | None = None
    data_simplification: bool = True
    record_op_args: bool = False
    op_attr: bool = False
    host_sys: object = None
    sys_io: bool = False
    sys_interconnection: bool = False
    gc_detect_threshold: float | None = None
    export_type: object = ExportType.Text

    def __post_init__(self) -> None:
        wanted = self.export_type if isinstance(self.export_type, list) else [self.export_type]
        if ExportType.Db in wanted:
            raise ValueError(
                "torch_npu.profiler: export_type must be ExportType.Text, not ExportType.Db; "
                "leave it out"
            )
        for name, what in LEFT_OUT.items():
            if getattr(self, name):
                left_out(f"{name}={getattr(self, name)}", what)
        if self.aic_metrics not in (AiCMetrics.PipeUtilization, AiCMetrics.AiCoreNone):
            left_out(f"aic_metrics={self.aic_metrics}", "its counters")

    @property
    def is_detailed(self) -> bool:
        """Whether kernels are listed with their tasks and counters."""
        return self.profiler_level in (ProfilerLevel.Level1, ProfilerLevel.Level2)

    @property
    def has_counters(self) -> bool:
        """Whether the utilisation of the pipes is reported."""
        known = (AiCMetrics.PipeUtilization, AiCMetrics.AiCoreNone)
        return self.is_detailed and self.aic_metrics in known


LEFT_OUT = {
    "l2_cache": "hits and misses of the L2",
    "msprof_tx": "marks and ranges",
    "mstx": "marks and ranges",
    "record_op_args": "arguments of operations",
    "op_attr": "attributes of operations",
    "host_sys": "numbers of the host",
    "sys_io": "numbers of the network",
    "sys_interconnection": "numbers of the links between cards",
    "gc_detect_threshold": "collections of garbage",
}
"""Setting -> the data that is not written for it."""
