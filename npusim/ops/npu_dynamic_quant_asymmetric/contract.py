"""What npu_dynamic_quant_asymmetric accepts: what npu_dynamic_quant does, on Atlas A2 and A3."""

from __future__ import annotations

from npusim.ops._support import A2_A3
from npusim.ops.npu_dynamic_quant.contract import SUPPORT as SYMMETRIC
from npusim.ops.npu_dynamic_quant.contract import Problem, check

__all__ = ["SUPPORT", "Problem", "check"]

SUPPORT = tuple(row for row in SYMMETRIC if row.on == A2_A3)
