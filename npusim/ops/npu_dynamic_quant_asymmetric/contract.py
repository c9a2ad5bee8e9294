"""What npu_dynamic_quant_asymmetric accepts: what npu_dynamic_quant does, on Atlas A2 and A3."""

from __future__ import annotations

from typing import Any

from npusim.data.errors import Code
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops.npu_dynamic_quant.contract import Problem, checked

__all__ = ["Problem", "check"]


def check(
    spec: DeviceSpec,
    x: Any,
    *,
    smooth_scales: Any = None,
    group_index: Any = None,
    dst_type: Any = None,
    quant_mode: Any = "pertoken",
    dst_type_max: Any = 0.0,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("npu_dynamic_quant_asymmetric", spec)
    contract.require(
        spec.series != "Atlas inference",
        f"the chip must be of Atlas A2 or Atlas A3, not {spec.name} of {spec.series}, which "
        f"documents no such kernel; use npu_dynamic_quant",
        Code.UNSUPPORTED,
    )
    given = x, smooth_scales, group_index, dst_type, quant_mode, dst_type_max, template
    return checked(contract, *given, is_symmetric=False)
