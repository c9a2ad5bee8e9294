"""What npu_dequant_swiglu_quant accepts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, INT64
from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._swiglu_quant import check_halves
from npusim.ops._vocabulary import A2_A3, Row, alike, present, required

__all__ = ["SUPPORT", "Problem", "check", "max_columns"]

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
LARGEST = float(np.finfo(np.float32).max)
"""The largest attribute that fp32 holds."""
RESERVED_BYTES = 1124
"""Bytes of the unified buffer not used for tiles: 1024 and 32, and 68 for a row of any length."""
COLUMN_UNIT = 128
"""Columns of x with a group_index. The tiling asks for 64; but where half a row is no multiple of
64, the kernel finds the largest magnitude of a row at a wrong place (assumed, from its step)."""


class Gate(NamedTuple):
    """The attributes of SwiGLU, as fp32."""

    mode: int
    """1: the halves are alternate elements; 1 and 2: with limit and bias; 0: no group_index."""
    limit: float
    alpha: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x is `(rows, 2 x columns)` to the kernel, y `(rows, columns)`."""

    x: Operand
    weight_scale: Operand | None
    """`(2 x columns,)`, with groups `(groups, 2 x columns)`; None if no kernel reads it."""
    activation_scale: Operand | None
    """`(rows,)`"""
    bias: Operand | None
    quant_scale: Operand | None
    quant_offset: Operand | None
    group_index: Operand | None
    """`(groups,)` row counts, or `(groups, 2)` groups and their row counts."""
    activate_left: bool
    is_dynamic: bool
    gate: Gate

    @property
    def rows(self) -> int:
        return prod(self.x.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of y: half of those of x."""
        return self.x.shape[-1] // 2

    @property
    def groups(self) -> int:
        """0 without a group_index."""
        return self.group_index.shape[0] if self.group_index is not None else 0

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Groups and their row counts, in the order of the rows; an even split for timing alone."""
        index = self.group_index
        assert index is not None
        if index.array is None:
            each, more = divmod(self.rows, self.groups)
            return tuple((group, each + (group < more)) for group in range(self.groups))
        pairs = index.array.reshape(self.groups, -1).tolist()
        if len(index.shape) == 1:
            return tuple((group, count) for group, (count,) in enumerate(pairs))
        return tuple((group, count) for group, count in pairs)


def max_columns(ub_bytes: int, *, bias: bool, is_static: bool, interleaved: bool) -> int:
    """Columns of y in the longest row for which the kernel for groups has room.

    An element of y takes 8 bytes of x, 16 of fp32, 1 of y and 12 of its scales; 8 for a bias, 4 for
    offsets, and 5 if the halves are gathered from alternate elements.
    """
    each = 37 + 8 * bias + 4 * is_static + 5 * interleaved
    return (ub_bytes - RESERVED_BYTES) // each // 32 * 32


INTEGERS: dict[str, Any] = {
    "x": INT32,
    "weight_scale": FLOAT32,
    "activation_scale": FLOAT32,
    "bias": (INT32, *FLOATS),
}
DEQUANTISED: dict[str, Any] = {"x": (FLOAT16, BFLOAT16)}
MODES: dict[str, Any] = {"quant_mode": (0, 1), "swiglu_mode": (0, 1, 2)}

SUPPORT = tuple(
    row
    for x in (INTEGERS, DEQUANTISED)
    for row in (
        Row(on=A2_A3, quant_scale=FLOAT32, quant_offset=FLOAT32, **x, **MODES),
        *alike(
            FLOATS,
            *("quant_scale", "quant_offset"),
            on=A2_A3,
            group_index=required(INT64),
            **x,
            **MODES,
        ),
    )
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    tokens, left = contract.operand("x"), contract.boolean("activate_left")
    mode, gate = contract.integer("quant_mode"), _gate(contract)
    _warn_of_unread(contract)
    index = contract.optional("group_index")
    if index is not None:
        _check_index(contract, index)
    contract.require(
        len(tokens.shape) >= 2,
        f"x must have at least two dimensions, not shape {tokens.shape}; reshape it",
    )
    check_halves(contract, tokens)
    weight, act = contract.optional("weight_scale"), contract.optional("activation_scale")
    point = contract.optional("bias")
    scale, offset = contract.optional("quant_scale"), contract.optional("quant_offset")
    p = Problem(
        inputs=present(tokens, weight, act, point, scale, offset, index),
        outputs=_outputs(tokens),
        x=tokens,
        weight_scale=weight,
        activation_scale=act,
        bias=point,
        quant_scale=scale,
        quant_offset=offset,
        group_index=index,
        activate_left=left,
        is_dynamic=mode == 1,
        gate=gate if index is not None else _unread(contract, gate),
    )
    _check_dequantisation(contract, p)
    _check_quantisation(contract, p)
    if index is not None:
        _check_groups(contract, p, index)
    return p


def _outputs(x: Operand) -> dict[str, TensorSpec]:
    *outer, width = x.shape
    y = TensorSpec((*outer, width // 2), "int8")
    return {"output": y, "scale": TensorSpec(tuple(outer), "float32")}


def _gate(contract: ops.Contract) -> Gate:
    number = contract.integer("swiglu_mode")
    names = ("clamp_limit", "glu_alpha", "glu_bias")
    values = tuple(map(contract.value, names))
    for name, value in zip(names, values, strict=True):
        is_limit = name == "clamp_limit"
        contract.require(
            -LARGEST <= value <= LARGEST and (value > 0 or not is_limit),
            f"{name} must be a finite number{' above 0' if is_limit else ''}, not {shown(value)}; "
            f"leave it out",
        )
    return Gate(number, *(float(np.float32(value)) for value in values))


def _unread(contract: ops.Contract, gate: Gate) -> Gate:
    """The gate that kernels without groups use, whatever *gate* was given."""
    if gate.mode:
        contract.warn(
            f"swiglu_mode should be 0 without a group_index, not {gate.mode}, which its kernels do "
            f"not read; leave it out"
        )
    return gate._replace(mode=0)


def _warn_of_unread(contract: ops.Contract) -> None:
    """Warn: only chips after A3 read these; before, it is int8, to nearest, along the last axis."""
    for name in ("dst_type", "round_mode", "activate_dim"):
        value = contract.value(name)
        if value is not None:
            contract.warn(
                f"{name} should be None on {contract.spec.series}, where no kernel reads it, not "
                f"{shown(value)}; leave it out"
            )


def _check_index(contract: ops.Contract, index: Operand) -> None:
    contract.require(
        0 < len(index.shape) <= 2 and index.shape[1:] in ((), (2,)) and index.shape[0] > 0,
        f"group_index must have shape (groups,) with counts, or (groups, 2) with groups and "
        f"counts, not {index.shape}; pass the rows of each group",
        Code.TILING_ERROR,
    )


def _check_dequantisation(contract: ops.Contract, p: Problem) -> None:
    """Check the scales and bias that dequantise int32."""
    require = partial(contract.require, code=Code.TILING_ERROR)
    width, is_int32 = 2 * p.columns, p.x.element is INT32
    require(
        p.weight_scale is not None or not is_int32,
        "weight_scale must be given with x of int32, not None; pass a scale for each column",
    )
    whole = [(p.groups, width)] if p.group_index is not None else []
    for operand in present(p.weight_scale, p.bias):
        one_row = [(width,), (1, width)] if p.groups <= 1 else []
        known = whole + one_row
        contract.require_shape(
            operand,
            *known,
            when=f" for x of shape {p.x.shape}{f' and {p.groups} groups' if p.groups else ''}",
            remedy="pass a number for each column",
            code=Code.TILING_ERROR,
        )
    if p.activation_scale is not None:
        require(
            p.activation_scale.spec.size == p.rows,
            f"activation_scale must have a number for each of the {p.rows} rows of x, not shape "
            f"{p.activation_scale.shape}; pass shape ({p.rows}, 1)",
        )


def _check_quantisation(contract: ops.Contract, p: Problem) -> None:
    """Check the smooth scales, or with quant_mode 0 the scale and offset."""
    require = partial(contract.require, code=Code.TILING_ERROR)
    scale, offset, columns = p.quant_scale, p.quant_offset, p.columns
    require(
        offset is None or not p.is_dynamic,
        "quant_offset must be None with quant_mode=1, which has none, not given; leave it out",
    )
    require(
        offset is not None or scale is None or p.is_dynamic,
        "quant_offset must be given with quant_mode=0 and a quant_scale, not None; pass zeros of "
        "its shape",
    )
    require(
        offset is None or (scale is not None and offset.shape == scale.shape),
        f"quant_offset must have the shape of quant_scale, {scale.shape if scale else 'None'}, not "
        f"{offset.shape if offset else ()}; pass one for each scale",
    )
    require(
        scale is not None or p.is_dynamic or p.group_index is None,
        "quant_scale must be given with quant_mode=0 and a group_index, not None; pass one for "
        "each group",
    )
    if scale is None:
        return
    known: list[tuple[int, ...]] = [(columns,), (1, columns), (1,)]
    if p.group_index is not None:
        known = [(p.groups, columns)] + [(p.groups,)] * (not p.is_dynamic)
        known += [(columns,)] * (p.groups == 1 and p.is_dynamic)
    remedy = "pass a scale for each column of y"
    contract.require_shape(scale, *known, remedy=remedy, code=Code.TILING_ERROR)


def _check_groups(contract: ops.Contract, p: Problem, index: Operand) -> None:
    """Check the additional requirements of the kernel for groups."""
    require = partial(contract.require, code=Code.TILING_ERROR)
    require(
        p.x.element is not FLOAT16,
        "x must be int32 or bfloat16 with a group_index, not float16; convert it",
    )
    in_pairs = len(index.shape) == 2
    require(
        not in_pairs or (p.bias is None and p.gate.mode == 0),
        f"group_index must have shape (groups,) with a bias or a swiglu_mode, not {index.shape}; "
        f"pass the counts alone",
    )
    columns = 2 * p.columns
    require(
        columns % COLUMN_UNIT == 0,
        f"the last dimension of x must be a multiple of {COLUMN_UNIT} with a group_index, not "
        f"{columns}; pad both halves",
    )
    ub_bytes = contract.spec.cores[contract.spec.vector_kinds[0]].usable_bytes("ub")
    most = 2 * max_columns(
        ub_bytes,
        bias=p.bias is not None,
        is_static=not p.is_dynamic,
        interleaved=p.gate.mode == 1,
    )
    require(
        columns <= most,
        f"the last dimension of x must be at most {most} with a group_index and these operands, "
        f"not {columns}; call npu_swiglu and npu_dynamic_quant",
    )
    if index.array is not None:
        counts = np.array(p.counts)
        contract.require(
            bool((counts >= 0).all()) and bool((counts[:, 0] < p.groups).all()),
            f"group_index must hold counts from 0 on{', of groups below their number' * in_pairs}, "
            f"not {shown(counts[:, 1].tolist())}; pass the rows of each group",
        )
        total = int(counts[:, 1].sum())
        contract.require(
            total <= p.rows,
            f"group_index must count at most the {p.rows} rows of x, not {total}; pass the rows of "
            f"each group",
        )
