"""What npu_group_quant accepts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, INT64, Array, DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, alike

__all__ = ["SUPPORT", "Problem", "check"]

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
TARGETS = {"int8": INT8, "qint8": INT8, "quint4x2": INT4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: `x` is `(rows, columns)`, `scale` `(groups, columns)`."""

    x: Operand
    scale: Operand
    group_index: Operand
    offset: Operand | None
    target: DType

    @property
    def rows(self) -> int:
        return self.x.shape[0]

    @property
    def columns(self) -> int:
        return self.x.shape[1]

    @property
    def ends(self) -> Array:
        """`(groups,)`: the row after each group's last; spread evenly when only time counts."""
        if self.group_index.array is not None:
            return self.group_index.array.astype(np.int64)
        groups = self.group_index.shape[0]
        return -(-np.arange(1, groups + 1) * self.rows // groups)

    def fault(self) -> str | None:
        """What is wrong with the values of group_index, in the order in which the kernel looks."""
        ends = self.ends
        if np.any(np.diff(ends) < 0):
            must = "group_index must not decrease"
        elif ends[0] < 0:
            must = "group_index must not be negative"
        elif ends[-1] != self.rows:
            must = f"group_index must end with the number of rows of x, {self.rows}"
        else:
            return None
        shown = ends.tolist() if ends.size <= 8 else [*ends[:4].tolist(), "...", ends[-1].item()]
        came = ", ".join(str(end) for end in shown)
        return f"{must}, not be [{came}]; pass the end row of each group, in order"


SUPPORT = alike(
    FLOATS,
    *("scale", "offset"),
    on=A2_A3,
    x=FLOATS,
    group_index=(INT32, INT64),
    dst_dtype=tuple(TARGETS),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    tokens, scales = contract.operand("x"), contract.operand("scale")
    index, point = contract.operand("group_index"), contract.optional("offset")
    _check_shapes(contract, tokens, scales, index, point)
    dtype = contract.value("dst_dtype")
    target = INT8 if dtype is None else TARGETS[contract.choice("dst_dtype")]
    output = TensorSpec(tokens.shape, "int8")
    if target is INT4:
        contract.require(
            tokens.shape[1] % 8 == 0,
            f"the last dimension of x must be a multiple of 8 with dst_dtype='quint4x2', "
            f"not {tokens.shape[1]}; pad x and scale",
        )
        output = TensorSpec((tokens.shape[0], tokens.shape[1] // 8), "int32")
    return Problem(
        inputs=present(tokens, scales, index, point),
        outputs={"output": output},
        x=tokens,
        scale=scales,
        group_index=index,
        offset=point,
        target=target,
    )


def _check_shapes(
    contract: Contract, tokens: Operand, scales: Operand, index: Operand, point: Operand | None
) -> None:
    """x `(rows, columns)`, scale `(groups, columns)`, group_index `(groups,)`, one offset."""
    for operand, rank in ((tokens, 2), (scales, 2), (index, 1)):
        contract.require(
            len(operand.shape) == rank,
            f"{operand.name} must have {rank} dimension{'s' * (rank > 1)}, not shape "
            f"{operand.shape}; reshape it",
        )
    contract.require(
        scales.shape[0] > 0,
        f"scale must have at least one row, not shape {scales.shape}; add one, and its end to "
        f"group_index",
    )
    contract.require(
        scales.shape[1] == tokens.shape[1],
        f"scale must have as many columns as x, {tokens.shape[1]}, not {scales.shape[1]}; "
        f"pass a scale for each column",
    )
    contract.require(
        index.shape[0] == scales.shape[0],
        f"group_index must have one entry for each row of scale, {scales.shape[0]}, "
        f"not {index.shape[0]}; pass the end row of each group",
    )
    if point is not None:
        contract.require(
            point.shape in ((), (1,)),
            f"offset must be one number, of shape () or (1,), not {point.shape}; pass one",
        )
