"""What the kernels of npu_quant_matmul receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import INT32
from npusim.data.tensor import Operand
from npusim.isa.matrix import QuantMode
from npusim.kernel.product import Product
from npusim.ops import _protocol
from npusim.ops.npu_quant_matmul.choice import Form, Template

__all__ = ["Problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call, and where its epilogue runs."""

    x1: Operand
    x2: Operand
    scale: Operand | None
    """uint64 words for the fixpipe, or numbers for the vector pipe; None: nobody reads it."""
    bias: Operand | None
    pertoken_scale: Operand | None
    product: Product
    epilogue: Literal["fixpipe", "vector"]
    """Who turns int32 into the output; on 310P "fixpipe" is the copy out of L0C."""
    mode: QuantMode
    """What happens to the numbers on their way out of L0C."""
    asked: Template | None
    """The kernel that the caller names."""
    form: Form = "plain"
    """The types of matrices and scales, which decide between the kernels of versions 3 and 4."""
    offset: Operand | None = None
    """int8 times int4: what is added to each column. Groups of int4: `(groups, n)` of x2."""
    group_k: int = 0
    """k of what has scales of its own, with the kernels of version 4."""
    packs_scale: bool
    """Whether torch_npu makes the words of a float32 scale, by a launch of npu_trans_quant_param
    (op-plugin@517f2e7, QuantMatmulKernelNpuOpApi.cpp)."""

    @property
    def start(self) -> Operand | None:
        """An int32 bias, which the accumulator starts from; others are added by the epilogue."""
        return self.bias if self.bias is not None and self.bias.element is INT32 else None
