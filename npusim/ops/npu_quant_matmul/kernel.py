"""The program that each core runs for npu_quant_matmul."""

from __future__ import annotations

from typing import NoReturn

from npusim.ops.npu_quant_matmul.contract import Problem
from npusim.ops.npu_quant_matmul.tiling import Plan
from npusim.spec import DeviceSpec

__all__ = ["build"]


def build(_: DeviceSpec, __: Problem, ___: Plan) -> NoReturn:
    """Not there yet."""
    raise NotImplementedError
