"""What a profile is asked for: taken as scripts give it, though simulated time needs none of it.

Names and values: Ascend/pytorch, torch_npu/profiler/experimental_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = [
    "AiCMetrics",
    "ExportType",
    "ProfilerActivity",
    "ProfilerLevel",
    "supported_activities",
]


class ProfilerActivity(Enum):
    """What to look at."""

    CPU = 0
    NPU = 1


def supported_activities() -> set[ProfilerActivity]:
    return set(ProfilerActivity)


class ProfilerLevel(Enum):
    """How much to collect; here it is always the same."""

    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(Enum):
    """Which counters of the cores to collect; here none are written."""

    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"
    AiCoreNone = "ACL_AICORE_NONE"


class ExportType(Enum):
    """In which form to leave the results."""

    Text = "text"
    Db = "db"


@dataclass(kw_only=True)
class _ExperimentalConfig:
    """Further settings; only `export_type` must be one that is written here: text."""

    profiler_level: ProfilerLevel = ProfilerLevel.Level0
    aic_metrics: AiCMetrics = AiCMetrics.AiCoreNone
    l2_cache: bool = False
    msprof_tx: bool = False
    data_simplification: bool = True
    record_op_args: bool = False
    op_attr: bool = False
    gc_detect_threshold: float | None = None
    export_type: Any = ExportType.Text

    def __post_init__(self) -> None:
        wanted = self.export_type if isinstance(self.export_type, list) else [self.export_type]
        if ExportType.Db in wanted:
            raise ValueError(
                "torch_npu.profiler: export_type must be ExportType.Text, not ExportType.Db; "
                "leave it out"
            )
