"""A simulated card for the tests here; they are skipped where torch is absent.

`torch._C` is asked for because this folder, too, would answer to the name torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch._C", reason="PyTorch is not installed: pip install 'npusim[torch]'")

import torch

import npusim.torch

npusim.torch.install()

import torch_npu  # noqa: E402
import torchair  # noqa: E402

from npusim.torch.clock import clock  # noqa: E402

__all__ = ["recorded", "torch", "torch_npu", "torchair"]


def recorded(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What *call* gives, and the kernels it ran and those it should have, by name."""
    events = clock.record()
    found = call()
    clock.stop(events)
    return found, [event.name for event in events]
