"""`torchair.scope`: wishes for a part of a graph, said around it with `with`.

All streams share one line of time here, and a graph is one launch anyway, so the wishes that only
order kernels or join their launches change nothing.
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
    """Kernels inside go to another stream, which here shares the line of time."""
    return nullcontext()


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """*self*, once *dependency* is there, which it is."""
    return self


def super_kernel(scope: str, options: str = "") -> AbstractContextManager[None]:  # noqa: ARG001
    """Kernels inside are one kernel; what that saves is not simulated."""
    return nullcontext()


def deterministic(level: int) -> AbstractContextManager[None]:
    """Results do not depend on chance, which they never do here. Raises ValueError for a level
    that is not 0 to 3."""
    if level not in (0, 1, 2, 3):
        raise ValueError(
            f"torchair.scope.deterministic: level must be 0, 1, 2 or 3, not {level!r}; use one"
        )
    return nullcontext()


def op_never_timeout(enable: bool = True) -> AbstractContextManager[None]:  # noqa: ARG001
    """Kernels inside may take as long as they want, which they may here."""
    return nullcontext()


limit_core_num = refusal("torchair.scope", "limit_core_num")
data_dump = refusal("torchair.scope", "data_dump")
