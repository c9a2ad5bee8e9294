"""What npu_dynamic_quant accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT4, INT8, INT32, Array, DType
from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Row, alike
from npusim.ops.npu_dynamic_quant.choice import Template, asked_for

__all__ = ["SUPPORT", "Problem", "check"]

TARGETS = {"int8": INT8, "quint4x2": INT4}
LARGEST = {INT8: 127, INT4: 7}
"""What the largest number of a row becomes."""
INT4_PER_INT32 = 8
MAX_GROUPS = 1024
"""Of smooth scales (aclnn_dynamic_quant_v2.cpp)."""
COLUMNS_310P = 32
"""The kernels of 310P take rows of whole blocks of int8 (dynamic_quant_tiling_310P.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: `x` is `(rows, columns)` to the kernel."""

    x: Operand
    smooth_scales: Operand | None
    """`(columns,)`, or `(groups, columns)` with a group_index; None where no kernel reads them."""
    group_index: Operand | None
    """`(groups,)`: the row after each group's last."""
    target: DType
    """int8 or int4."""
    asked: Template | None
    """The kernel that the caller named."""
    is_symmetric: bool = True
    """Whether rows have no offset."""

    @property
    def rows(self) -> int:
        return prod(self.x.shape[:-1])

    @property
    def columns(self) -> int:
        return self.x.shape[-1]

    @property
    def groups(self) -> int:
        """Groups of rows with smooth scales of their own; 0 without a group_index."""
        return self.group_index.shape[0] if self.group_index is not None else 0

    @property
    def op(self) -> str:
        """The operator's name."""
        return "npu_dynamic_quant" if self.is_symmetric else "npu_dynamic_quant_asymmetric"

    @property
    def largest(self) -> int:
        """What the largest number of a row becomes."""
        return LARGEST[self.target]

    @property
    def group_of(self) -> Array:
        """`(rows,)`: the group of each row, the first that ends after it; evenly for time alone."""
        assert self.group_index is not None
        rows, groups = np.arange(self.rows), self.groups
        if self.group_index.array is None:
            return np.asarray(rows * groups // self.rows)
        ends = np.maximum.accumulate(self.group_index.array.astype(np.int64))
        return np.asarray(np.searchsorted(ends, rows, side="right"))


SUPPORT = (
    *alike(
        (FLOAT16, BFLOAT16),
        *("x", "smooth_scales"),
        on=A2_A3,
        group_index=INT32,
        dst_type=("int8", "quint4x2"),
    ),
    Row(
        on=ATLAS_INFERENCE,
        x=FLOAT16,
        smooth_scales=FLOAT16,
        group_index=INT32,
        dst_type=("int8",),
    ),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    is_symmetric = contract.op == "npu_dynamic_quant"
    is_310p = contract.spec.series in ATLAS_INFERENCE
    tokens, smooth = contract.operand("x"), contract.optional("smooth_scales")
    index = contract.optional("group_index")
    _check_rows(contract, tokens)
    _check_modes(contract)
    if is_310p:
        _warn_of_unread(contract, smooth, index)
        smooth = index = None
    _check_smooth(contract, tokens, smooth, index)
    if index is not None:
        _check_index(contract, tokens, index)
    target, output = _check_target(contract, tokens)
    groups = index.shape[0] if index is not None else 0
    traits = tokens.shape[-1], smooth is not None, target is INT4, groups
    numbers = ("scale",) if is_symmetric else ("scale", "offset")
    of_rows = {name: TensorSpec(tokens.shape[:-1], "float32") for name in numbers}
    return Problem(
        inputs=present(tokens, smooth, index),
        outputs={"output": output} | of_rows,
        x=tokens,
        smooth_scales=smooth,
        group_index=index,
        target=target,
        asked=asked_for(contract, contract.value("template"), *traits, is_symmetric=is_symmetric),
        is_symmetric=is_symmetric,
    )


def _check_rows(contract: Contract, x: Operand) -> None:
    contract.require(
        len(x.shape) >= 2,
        f"x must have at least two dimensions, not shape {x.shape}; reshape it",
    )
    columns, is_310p = x.shape[-1], contract.spec.series in ATLAS_INFERENCE
    contract.require(
        columns > 0 or prod(x.shape[:-1]) == 0,
        f"the last dimension of x must not be empty where x has rows, not shape {x.shape}; "
        f"drop the rows",
    )
    contract.require(
        not is_310p or columns % COLUMNS_310P == 0,
        f"the last dimension of x must be a multiple of {COLUMNS_310P} on {contract.spec.series}, "
        f"not {columns}; pad it",
        Code.TILING_ERROR,
    )


def _check_modes(contract: Contract) -> None:
    """Newer parameters, which only later chips have a use for."""
    quant_mode, dst_type_max = contract.value("quant_mode"), contract.value("dst_type_max")
    modes = ("pertoken", "pertensor", "perchannel")
    if quant_mode is not None:
        contract.choice("quant_mode", modes)
    contract.require(
        quant_mode in (None, "pertoken"),
        f"quant_mode must be pertoken, not {quant_mode!r}, which only Ascend950 has; leave it out",
        Code.INNER_ERROR,
    )
    is_number = isinstance(dst_type_max, int | float) and not isinstance(dst_type_max, bool)
    contract.require(
        dst_type_max is None or is_number,
        f"dst_type_max must be a number, not {shown(dst_type_max)}; leave it out",
    )
    contract.require(
        not dst_type_max,
        f"dst_type_max must be 0.0, not {shown(dst_type_max)}: only Ascend950 takes another "
        f"largest number; leave it out",
        Code.INNER_ERROR,
    )


def _warn_of_unread(contract: Contract, *operands: Operand | None) -> None:
    """310P takes these and reads none of them (op-plugin's document calls them reserved)."""
    for operand in present(*operands):
        contract.warn(
            f"{operand.name} should be None on Atlas inference, where no kernel reads it; leave it "
            f"out"
        )


def _check_smooth(
    contract: Contract, x: Operand, smooth: Operand | None, index: Operand | None
) -> None:
    columns = x.shape[-1]
    if smooth is None:
        contract.require(
            index is None,
            "smooth_scales must be given with a group_index, not None; pass a row for each group",
        )
        return
    if index is None:
        contract.require(
            smooth.shape == (columns,),
            f"smooth_scales must have shape ({columns},) like the last dimension of x, not "
            f"{smooth.shape}; pass a scale for each column",
        )
        return
    contract.require(
        len(index.shape) == 1 and 1 <= index.shape[0] <= MAX_GROUPS,
        f"group_index must have shape (groups,) with 1 to {MAX_GROUPS} of them, not {index.shape}; "
        f"pass the end row of each group",
        Code.TILING_ERROR,
    )
    wanted = (index.shape[0], columns)
    contract.require(
        smooth.shape == wanted,
        f"smooth_scales must have shape {wanted}, a row for each group, not {smooth.shape}; "
        f"pass a scale for each group and column",
        Code.TILING_ERROR,
    )


def _check_index(contract: Contract, x: Operand, index: Operand) -> None:
    """The kernel looks for the group of a row, and past the last entry if there is none."""
    rows = prod(x.shape[:-1])
    if index.array is not None:
        most = index.array.max()
        contract.require(
            most >= rows,
            f"group_index must end with the number of rows of x, {rows}, not with {most}; "
            f"pass the end row of each group",
        )


def _check_target(contract: Contract, x: Operand) -> tuple[DType, TensorSpec]:
    """What comes out, and its tensor: int4 is packed eight to an int32."""
    name = "int8" if contract.value("dst_type") is None else contract.choice("dst_type")
    if TARGETS[name] is INT8:
        return INT8, TensorSpec(x.shape, "int8")
    contract.require(
        x.shape[-1] % INT4_PER_INT32 == 0,
        f"the last dimension of x must be a multiple of {INT4_PER_INT32} with "
        f"dst_type='quint4x2', not {x.shape[-1]}; pad it",
    )
    return INT4, TensorSpec((*x.shape[:-1], x.shape[-1] // INT4_PER_INT32), "int32")
