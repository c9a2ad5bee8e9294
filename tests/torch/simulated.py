"""torch with the simulated card in it. Where torch is absent, the module that asks is skipped."""

from __future__ import annotations

import pytest

try:
    from torch.version import __version__  # noqa: F401
except ImportError:
    pytest.skip("torch is not installed: pip install npusim[torch]", allow_module_level=True)

import npusim.torch

npusim.torch.install()

import torch  # noqa: E402
import torch_npu  # noqa: E402
import torchair  # noqa: E402

__all__ = ["torch", "torch_npu", "torchair"]
