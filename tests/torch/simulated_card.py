"""A simulated card for the tests here; they are skipped where torch is absent.

`torch._C` is asked for because this folder, too, would answer to the name torch.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch._C", reason="PyTorch is not installed: pip install 'npusim[torch]'")

import torch

import npusim.torch

npusim.torch.install()

import torch_npu  # noqa: E402
import torchair  # noqa: E402

__all__ = ["torch", "torch_npu", "torchair"]
