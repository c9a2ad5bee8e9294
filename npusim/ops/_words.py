"""The 64-bit parameters that npu_trans_quant_param packs, as the fixpipe reads them."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT8, DType
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops._contract import Contract

__all__ = ["fixpipe_words"]

SIGNED_BIT, SHIFT_BIT = 1 << 46, 1 << 36


def fixpipe_words(contract: Contract, scale: Operand, target: DType) -> Operand:
    """*scale*, of int64 or uint64, as uint64 words for an output of *target*; raises OpError."""
    spec = TensorSpec(scale.shape, "uint64")
    if scale.array is None:
        return Operand(scale.name, spec)
    words = np.ascontiguousarray(scale.array).view(np.uint64)
    contract.require(
        not np.any(words & np.uint64(SHIFT_BIT)),
        f"{scale.name} must have bit 36 clear, which asks for a shift that npu_trans_quant_param "
        f"never does and that is not simulated; pack it with npu_trans_quant_param",
        Code.UNSUPPORTED,
    )
    contract.require(
        target is not INT8 or bool(np.all(words & np.uint64(SIGNED_BIT))),
        f"{scale.name} must have bit 46 set for an int8 output, without it the kernel writes "
        f"uint8; pack it with npu_trans_quant_param",
    )
    return Operand(scale.name, spec, words)
