"""`torch_npu.op_plugin.atb._atb_ops`: the operators of ATB, which are there from the beginning."""

from __future__ import annotations

from npusim.torch.refusals import others_of

__all__ = ["_register_atb_extensions"]


def _register_atb_extensions() -> None:
    """Nothing is left to do."""


__getattr__ = others_of("torch_npu.op_plugin.atb._atb_ops")
