"""What npu_swiglu_quant accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, Array, DType
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, Row, required

__all__ = ["SUPPORT", "Problem", "check"]

TARGETS = {"int8": INT8, "quint4x2": INT4}
LARGEST = {INT8: 127, INT4: 7}
"""What the largest number of a row becomes."""
MAX_COLUMNS = 8192
"""Of x (op-plugin, and the document of aclnn)."""
MAX_GROUPS = 1024
STATIC, DYNAMIC = 0, 1
"""quant_mode."""
ENDS, COUNTS = 0, 1
"""group_list_type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: x is `(rows, 2 x columns)` to the kernel, y `(rows, columns)`."""

    x: Operand
    smooth_scales: Operand
    """`(groups, columns)`, or `(groups,)` with quant_mode 0."""
    offsets: Operand | None
    """Like the smooth scales, with quant_mode 0."""
    group_index: Operand | None
    target: DType
    activate_left: bool
    is_dynamic: bool
    holds_counts: bool
    """Whether group_index has the rows of each group, and not the row after its last."""

    @property
    def rows(self) -> int:
        return prod(self.x.shape[:-1])

    @property
    def columns(self) -> int:
        """Of y: half of those of x."""
        return self.x.shape[-1] // 2

    @property
    def groups(self) -> int:
        return self.smooth_scales.shape[0]

    @property
    def largest(self) -> int:
        """What the largest number of a row becomes."""
        return LARGEST[self.target]

    @property
    def group_of(self) -> Array:
        """`(rows,)`: the first group that ends after each row, `groups` behind the last one.

        Evenly for time alone; without a group_index there is one group.
        """
        rows, index = np.arange(self.rows), self.group_index
        if index is None:
            return np.zeros(self.rows, np.int64)
        if index.array is None:
            return np.asarray(rows * self.groups // self.rows)
        ends = index.array.astype(np.int64)
        ends = np.cumsum(ends) if self.holds_counts else ends
        return np.asarray(np.searchsorted(np.maximum.accumulate(ends), rows, side="right"))


SUPPORT = (
    Row(
        on=A2_A3,
        x=(FLOAT16, BFLOAT16, FLOAT32),
        # The kernel reads an address that is not there without them.
        smooth_scales=required(FLOAT32),
        offsets=FLOAT32,
        group_index=INT32,
        quant_mode=(STATIC, DYNAMIC),
        group_list_type=(ENDS, COUNTS),
        dst_type=tuple(TARGETS),
    ),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    tokens = contract.operand("x")
    _check_columns(contract, tokens)
    mode, kind = contract.integer("quant_mode"), contract.integer("group_list_type")
    left = contract.boolean("activate_left")
    name = "int8" if contract.value("dst_type") is None else contract.choice("dst_type")
    target = TARGETS[name]
    columns = tokens.shape[-1] // 2
    contract.require(
        target is INT8 or columns % 2 == 0,
        f"the last dimension of x must be a multiple of 4 with dst_type='quint4x2', not "
        f"{2 * columns}; pad both halves",
    )
    smooth, points = contract.operand("smooth_scales"), contract.optional("offsets")
    index = contract.optional("group_index")
    _check_index(contract, index)
    _check_smooth(contract, tokens, smooth, index, is_dynamic=mode == DYNAMIC)
    _check_offsets(contract, smooth, points, is_dynamic=mode == DYNAMIC)
    points = None if mode == DYNAMIC else points
    whole = (*tokens.shape[:-1], columns if target is INT8 else columns // 2)
    return Problem(
        inputs=present(tokens, smooth, points, index),
        outputs={
            "output": TensorSpec(whole, "int8"),
            "scale": TensorSpec(tokens.shape[:-1], "float32"),
        },
        x=tokens,
        smooth_scales=smooth,
        offsets=points,
        group_index=index,
        target=target,
        activate_left=left,
        is_dynamic=mode == DYNAMIC,
        holds_counts=kind == COUNTS,
    )


def _check_columns(contract: Contract, x: Operand) -> None:
    contract.require(
        len(x.shape) >= 2, f"x must have at least two dimensions, not shape {x.shape}; reshape it"
    )
    columns = x.shape[-1]
    contract.require(
        columns % 2 == 0,
        f"the last dimension of x must be even, to be cut in half, not {columns}; pad both halves",
    )
    contract.require(
        columns <= MAX_COLUMNS,
        f"the last dimension of x must be at most {MAX_COLUMNS}, not {columns}; call npu_swiglu "
        f"and npu_dynamic_quant",
    )
    contract.require(
        columns > 0 or prod(x.shape[:-1]) == 0,
        f"the last dimension of x must not be empty where x has rows, not shape {x.shape}; drop "
        f"the rows",
    )


def _check_index(contract: Contract, index: Operand | None) -> None:
    if index is None:
        return
    contract.require(
        len(index.shape) == 1 and 1 <= index.shape[0] <= MAX_GROUPS,
        f"group_index must have shape (groups,) with 1 to {MAX_GROUPS} of them, not {index.shape}; "
        f"pass an entry for each group",
        Code.TILING_ERROR,
    )


def _check_smooth(
    contract: Contract, x: Operand, smooth: Operand, index: Operand | None, *, is_dynamic: bool
) -> None:
    groups = index.shape[0] if index is not None else 1
    known = [(groups, x.shape[-1] // 2)] + [(groups,)] * (not is_dynamic)
    contract.require(
        smooth.shape in known,
        f"smooth_scales must have shape {' or '.join(map(str, known))} with quant_mode="
        f"{int(is_dynamic)}, not {smooth.shape}; pass the scales of each group",
        Code.TILING_ERROR,
    )


def _check_offsets(
    contract: Contract, smooth: Operand, offsets: Operand | None, *, is_dynamic: bool
) -> None:
    if is_dynamic:
        if offsets is not None:
            contract.warn(
                "offsets should be None with quant_mode=1, where no kernel reads them; leave them "
                "out"
            )
        return
    came = offsets.shape if offsets is not None else None
    contract.require(
        came == smooth.shape,
        f"offsets must have the shape of smooth_scales, {smooth.shape}, with quant_mode=0, not "
        f"{came}; pass an offset for each scale",
    )
