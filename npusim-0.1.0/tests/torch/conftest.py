"""Tests of PyTorch, which -m torch asks for: each begins with the same card."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import npusim.torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(autouse=True)
def card() -> None:
    """Where PyTorch is there: an Atlas A2, and random numbers that are the same for each test."""
    if "simulated_card" in sys.modules:
        npusim.torch.install(device="ascend910b2")
        sys.modules["torch"].manual_seed(7)
