"""The 64-bit words that npu_trans_quant_param packs, where a caller hands them to an operator."""

from __future__ import annotations

from npusim.data.tensor import Operand
from npusim.ops._contract import Contract

__all__ = ["INT8_FLAG", "require_words"]

SHIFT_BITS = 0x1F << 32
"""Shift and its switch in a packed word; npu_trans_quant_param leaves them 0."""
INT8_FLAG = 1 << 46
"""The bit that says int8, and not uint8."""


def require_words(contract: Contract, operand: Operand, flag: int = 0) -> None:
    """Refuse words with which the fixpipe does something else than the operator means.

    They must have *flag*, and no shift.
    """
    if operand.array is None:
        return
    words = operand.array.astype("int64")
    bad = words[(words & (SHIFT_BITS | flag)) != flag]
    contract.require(
        bad.size == 0,
        f"{operand.name} must come from npu_trans_quant_param if it is {operand.element}, "
        f"not be {bad.flat[0] if bad.size else 0}; pack it",
    )
