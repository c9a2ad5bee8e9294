"""`torch_npu.testing`: the tools with which torch_npu's own tests are written."""

from __future__ import annotations

from npusim.torch.testing import common_distributed, common_utils, decorator, testcase
from npusim.torch.testing.common_utils import SupportedDevices, create_common_tensor
from npusim.torch.testing.testcase import TestCase, run_tests

__all__ = [
    "SupportedDevices",
    "TestCase",
    "common_distributed",
    "common_utils",
    "create_common_tensor",
    "decorator",
    "run_tests",
    "testcase",
]
