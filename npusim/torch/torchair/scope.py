"""`torchair.scope`: context managers with hints for a part of a graph.

All streams share one timeline here, and a graph is one launch anyway, so hints that only order
kernels or join their launches have no effect.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from npusim.torch.refusals import refusal

__all__ = [
    "data_dump",
    "deterministic",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]


def npu_stream_switch(
    stream_tag: str,  # noqa: ARG001
    stream_priority: int = 0,  # noqa: ARG001
    enable_inner_parallel: bool = True,  # noqa: ARG001
) -> AbstractContextManager[None]:
    """Kernels inside run on another stream, which shares the timeline here."""
    return nullcontext()


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """*self*, after *dependency* is ready, which it always is here."""
    return self


def super_kernel(scope: str, options: str = "") -> AbstractContextManager[None]:  # noqa: ARG001
    """Kernels inside are fused into one kernel; the time that this saves is not simulated."""
    return nullcontext()


def deterministic(level: int) -> AbstractContextManager[None]:
    """Make results deterministic, which they always are here. Raises ValueError for a level that is
    not 0 to 3."""
    if level not in (0, 1, 2, 3):
        raise ValueError(
            f"torchair.scope.deterministic: level must be 0, 1, 2 or 3, not {level!r}; use one"
        )
    return nullcontext()


def op_never_timeout(enable: bool = True) -> AbstractContextManager[None]:  # noqa: ARG001
    """Disable the timeout of kernels inside; there is none here."""
    return nullcontext()


limit_core_num = refusal("torchair.scope", "limit_core_num")
data_dump = refusal("torchair.scope", "data_dump")
