"""What npu_grouped_matmul_swiglu_quant accepts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    INT64,
    UINT64,
    DType,
)
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import Operand, TensorSpec
from npusim.kernel import share
from npusim.kernel.steps import Integers
from npusim.ops import _vocabulary as ops
from npusim.ops._operands import fixpipe_words, logical_shape

LARGEST_K, LARGEST_K_OF_INT4 = 65535, 19999
LARGEST_N = 10240


@dataclass(frozen=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x `(m, k)`, weight `(experts, k, n)`, y `(m, n / 2)`."""

    x: Operand
    weight: Operand
    group_list: Operand
    weight_scale: Operand
    """`(experts, n)`; with int4 words of columns, or of groups of k, `(experts, groups, n)`."""
    x_scale: Operand
    bias: Operand | None
    """`(experts, n)`, with int4: added to the sums of digits."""

    @property
    def m(self) -> int:
        return self.x.shape[0]

    @property
    def k(self) -> int:
        return self.x.shape[1]

    @property
    def n(self) -> int:
        return logical_shape(self.weight, self.is_int4)[2]

    @property
    def is_int4(self) -> bool:
        """Whether the weight is int4, and each element of x is split into two int4."""
        return self.weight.element is INT32

    @property
    def rows_each(self) -> int:
        """Rows of sums for a row of x."""
        return 2 if self.is_int4 else 1

    @property
    def groups_of_k(self) -> int:
        """The number of groups of k with separate scales."""
        return prod(self.weight_scale.shape[1:-1])

    @property
    def experts(self) -> int:
        return self.weight.shape[0]

    @cached_property
    def ends(self) -> Integers:
        """The row after the last of each group; equal shares without values."""
        if self.group_list.array is not None:
            return self.group_list.array
        every = range(self.experts)
        return np.cumsum([len(share(self.m, self.experts, expert)) for expert in every])


def fractals(dtype: DType) -> ops.Operands:
    """A weight `(e, k, n)` of *dtype* in FRACTAL_NZ."""
    return ops.Operands((dtype,), ("FRACTAL_NZ",), (3, 3))


EVERY_ROW: dict[str, Any] = {
    "on": ops.A2_A3,
    "x": ops.Operands((INT8,), ranks=(2, 2)),
    "group_list": ops.Operands((INT64,), ranks=(1, 1)),
    "x_scale": ops.Operands((FLOAT32,), ranks=(1, 1)),
}
SUPPORT = (
    ops.Row(weight=fractals(INT8), weight_scale=(FLOAT32, FLOAT16, BFLOAT16), **EVERY_ROW),
    # int4 comes eight to an int32.
    ops.Row(
        weight=fractals(INT32),
        weight_scale=(INT64, UINT64),
        bias=ops.required(FLOAT32),
        **EVERY_ROW,
    ),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    a, w = contract.operand("x"), contract.matrix("weight")
    element = INT4 if w.element is INT32 else INT8
    _check_shapes(contract, a, w, element)
    sizes = experts, _, n = _sizes_of(w, element)
    m = a.shape[0]
    groups, xs = contract.operand("group_list"), contract.operand("x_scale")
    contract.require_shape(groups, (experts,), remedy="pass the end of each group")
    contract.require_shape(xs, (m,), remedy="pass a number a row")
    ws, added = _parameters(contract, sizes, is_int4=element is INT4)
    _check_ends(contract, groups, m)
    outputs = {
        "output": TensorSpec((m, n // 2), "int8"),
        "output_scale": TensorSpec((m,), "float32"),
        "output_offset": TensorSpec((), "float32"),
    }
    return Problem(
        inputs=ops.present(a, w, groups, ws, xs, added),
        outputs=outputs,
        x=a,
        weight=w,
        group_list=groups,
        weight_scale=ws,
        x_scale=xs,
        bias=added,
    )


def _sizes_of(weight: Operand, element: DType) -> tuple[int, int, int]:
    """Experts, k and n."""
    experts, k, n = logical_shape(weight, element is INT4)
    return experts, k, n


def _parameters(
    contract: ops.Contract, sizes: tuple[int, int, int], *, is_int4: bool
) -> tuple[Operand, Operand | None]:
    """The column scales of a weight with these experts, k and n, and with int4 a bias."""
    experts, k, n = sizes
    scale = contract.operand("weight_scale")
    if is_int4:
        _check_words(contract, scale, (experts, k, n))
        scale = fixpipe_words(contract, scale, FLOAT16)
    else:
        remedy = "pass a number for each expert and column"
        contract.require_shape(scale, (experts, n), remedy=remedy)
    added = contract.optional("bias")
    if added is not None:
        remedy = "pass 8 times the sums of the scaled columns"
        contract.require_shape(added, (experts, n), remedy=remedy)
    return scale, added


def _check_words(contract: ops.Contract, words: Operand, sizes: tuple[int, int, int]) -> None:
    """Check scales of columns or of groups of k, for a weight with these experts, k and n."""
    experts, k, n = sizes
    groups = words.shape[1:2]
    contract.require_shape(
        words,
        (experts, n),
        (experts, *groups, n),
        when=" with int4",
        remedy="pass a word for each expert and column, or for each group of k as well",
    )
    count = prod(words.shape[1:-1])
    contract.require(
        count > 0 and k % (count * FRACTAL_ROWS) == 0,
        f"weight_scale must have a number of groups that divides k = {k} into multiples of "
        f"{FRACTAL_ROWS}, not {count}; pass a word for each of larger groups",
    )


def _check_shapes(contract: ops.Contract, x: Operand, weight: Operand, element: DType) -> None:
    contract.require_filled(x, weight)
    contract.require(
        not weight.spec.transposed,
        "weight must be contiguous, not a transposed view; cast the contiguous matrices with "
        "npu_format_cast(..., 29)",
    )
    _, k, n = _sizes_of(weight, element)
    contract.require(
        k == x.shape[1],
        f"weight must have as many rows as x has columns, {x.shape[1]}, not {k}; pass x as (m, k) "
        f"and weight as (e, k, n)",
    )
    longest = LARGEST_K_OF_INT4 if element is INT4 else LARGEST_K
    contract.require(
        k <= longest and n <= LARGEST_N,
        f"k must be at most {longest} and n at most {LARGEST_N}, not {k} and {n}; call "
        f"npu_grouped_matmul and npu_dequant_swiglu_quant",
    )
    contract.require(
        k % FRACTAL_ROWS == 0 and n % c0(element) == 0,
        f"k must be a multiple of {FRACTAL_ROWS} and n of {c0(element)}, not {k} and {n}; pad both "
        f"matrices",
    )


def _check_ends(contract: ops.Contract, groups: Operand, m: int) -> None:
    """Refuse values that would read beyond x; the card does not check them."""
    if groups.array is None:
        return
    ends = groups.array
    contract.require(
        bool(np.all(np.diff(ends, prepend=0) >= 0)),
        "group_list must not decrease; pass the row after the last of each group, in order",
    )
    contract.require(
        int(ends[-1]) <= m,
        f"group_list must end at most at {m}, the rows of x, not at {ends[-1]}; pass the groups "
        f"of this x",
    )
