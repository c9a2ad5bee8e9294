"""The program that each core runs for matmul."""

from __future__ import annotations

from typing import NoReturn

from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.tiling import Plan
from npusim.spec import DeviceSpec

__all__ = ["build"]


def build(_: DeviceSpec, __: Problem, ___: Plan) -> NoReturn:
    """Not there yet."""
    raise NotImplementedError
