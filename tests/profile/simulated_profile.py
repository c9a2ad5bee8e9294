"""A profile of a script on the simulated card."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim.torch


def torch_folder(where: Path) -> None:
    """Leave what the profiler of torch_npu writes about a few operations."""
    torch = pytest.importorskip("torch")
    npusim.torch.install(device="ascend910b2")
    import torch_npu
    from torch_npu import profiler

    x, weight = torch.ones(64, 256).half().npu(), torch.ones(512, 256).half().npu()
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(where))):
        y = torch.nn.functional.linear(x, weight)
        y = torch_npu.npu_swiglu(y)
        y, _ = torch_npu.npu_rms_norm(y, torch.ones(256).half().npu())
        y = torch.softmax((y + 1).float(), -1)
