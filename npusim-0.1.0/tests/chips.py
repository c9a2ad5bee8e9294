"""The chips that tests run on: three of them, and all behind the mark `nightly`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

THREE = ("ascend310p3", "ascend910b2", "ascend910_9391")
"""Coupled cores; split ones; and those of Atlas A3, which differ in clock and launch."""


def every(names: Iterable[str], *rest: Any) -> list[Any]:
    """A case for each chip of *names*, with *rest* if given; nightly unless of THREE."""
    return [
        pytest.param(name, *rest, marks=() if name in THREE else pytest.mark.nightly)
        for name in names
    ]
