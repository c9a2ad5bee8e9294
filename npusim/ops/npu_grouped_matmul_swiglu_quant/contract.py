"""What npu_grouped_matmul_swiglu_quant accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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
from npusim.data.errors import Code
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops._contract import Contract, listed
from npusim.ops._int4_matmul import MAX_ROW
from npusim.ops._matrix import logical_shape
from npusim.ops._protocol import present
from npusim.ops._words import fixpipe_words

__all__ = ["Group", "Problem", "check"]

LARGEST_K = 65535
LARGEST_N = 10240
GROUP_K = 256
"""k of a group with scales of its own (assumed to be that of npu_grouped_matmul)."""


class Group(NamedTuple):
    """Rows of x that have one weight."""

    expert: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: x `(m, k)`, weight `(experts, k, n)`, y `(m, n / 2)`."""

    x: Operand
    weight: Operand
    group_list: Operand
    weight_scale: Operand
    """`(experts, n)`, or words `(experts, groups of k, n)` with int4."""
    x_scale: Operand
    bias: Operand | None
    """`(experts, n)`, with int4: what is added to the sums of digits."""

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
        """Whether the weight is of int4, and x is written as two of them a number."""
        return self.weight.element is INT32

    @property
    def rows_each(self) -> int:
        """Rows of sums for a row of x."""
        return 2 if self.is_int4 else 1

    @property
    def groups_of_k(self) -> int:
        """How many have scales of their own."""
        return self.weight_scale.shape[1] if self.is_int4 else 1

    @property
    def experts(self) -> int:
        return self.weight.shape[0]

    @property
    def groups(self) -> tuple[Group, ...]:
        """In order, those without rows too; equal shares where there are no values."""
        if self.group_list.array is None:
            runs = [share(self.m, self.experts, expert) for expert in range(self.experts)]
            return tuple(Group(expert, run.start, len(run)) for expert, run in enumerate(runs))
        ends = self.group_list.array.tolist()
        starts = [0, *ends[:-1]]
        return tuple(
            Group(expert, start, end - start)
            for expert, (start, end) in enumerate(zip(starts, ends, strict=True))
        )

    @property
    def rows(self) -> int:
        """Rows that have a group: all up to the last end."""
        last = self.groups[-1]
        return last.first + last.rows


def check(
    spec: DeviceSpec,
    x: Any,
    weight: Any,
    group_list: Any,
    weight_scale: Any,
    x_scale: Any,
    *,
    bias: Any = None,
    offset: Any = None,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("npu_grouped_matmul_swiglu_quant", spec)
    contract.require(
        spec.series != "Atlas inference",
        f"the chip must be of Atlas A2 or Atlas A3, not {spec.name} of {spec.series}, which has "
        f"no such kernel; multiply each group with npu_quant_matmul",
        Code.UNSUPPORTED,
    )
    contract.require(offset is None, "offset must be None; leave it out")
    a = contract.operand("x", x, (INT8,))
    w = contract.matrix("weight", weight, (INT8, INT32), layouts=LAYOUTS)
    element = INT4 if w.element is INT32 else INT8
    contract.require(
        bias is None or element is INT4, "bias must be None with an int8 weight; leave it out"
    )
    _check_shapes(contract, a, w, element)
    sizes = experts, _, n = logical_shape(w, element is INT4)
    m = a.shape[0]
    groups = contract.operand("group_list", group_list, (INT64,))
    xs = contract.operand("x_scale", x_scale, (FLOAT32,))
    _require_shape(contract, groups, (experts,), "pass the end of each group")
    _require_shape(contract, xs, (m,), "pass a number a row")
    ws, added = _numbers(contract, weight_scale, bias, sizes, is_int4=element is INT4)
    _check_ends(contract, groups, m)
    outputs = {
        "output": TensorSpec((m, n // 2), "int8"),
        "output_scale": TensorSpec((m,), "float32"),
        "output_offset": TensorSpec((), "float32"),
    }
    return Problem(
        inputs=present(a, w, groups, ws, xs, added),
        outputs=outputs,
        x=a,
        weight=w,
        group_list=groups,
        weight_scale=ws,
        x_scale=xs,
        bias=added,
    )


def _numbers(
    contract: Contract,
    weight_scale: Any,
    bias: Any,
    sizes: tuple[int, ...],
    *,
    is_int4: bool,
) -> tuple[Operand, Operand | None]:
    """The scales of the columns of a weight of so many experts, k and n, and with int4 a bias."""
    experts, k, n = sizes
    if not is_int4:
        scale = contract.operand("weight_scale", weight_scale, (FLOAT32, FLOAT16, BFLOAT16))
        remedy = "pass a number for each expert and column"
        _require_shape(contract, scale, (experts, n), remedy)
        return scale, None
    words = contract.operand("weight_scale", weight_scale, (INT64, UINT64), " with int4")
    _check_words(contract, words, (experts, k, n))
    added = contract.operand("bias", bias, (FLOAT32,), " with an int4 weight")
    remedy = "pass 8 times the sums of the scaled columns"
    _require_shape(contract, added, (experts, n), remedy)
    return fixpipe_words(contract, words, FLOAT16), added


def _require_shape(
    contract: Contract, operand: Operand, shape: tuple[int, ...], remedy: str
) -> None:
    contract.require(
        operand.shape == shape,
        f"{operand.name} must have shape {shape}, not {operand.shape}; {remedy}",
    )


def _check_words(contract: Contract, words: Operand, sizes: tuple[int, int, int]) -> None:
    """Scales of columns or of groups of k, of a weight of so many experts, k and n."""
    experts, k, n = sizes
    known = tuple((experts, count, n) for count in dict.fromkeys((1, k // GROUP_K)) if count)
    fits = words.shape in known and (words.shape[1] == 1 or k % GROUP_K == 0)
    contract.require(
        fits,
        f"weight_scale must have shape {listed(tuple(map(str, known)))} with int4 and k = {k}, not "
        f"{words.shape}; pass a word for each {GROUP_K} of k, or for all",
    )


def _check_shapes(contract: Contract, x: Operand, weight: Operand, element: DType) -> None:
    contract.require(
        weight.spec.layout == "FRACTAL_NZ",
        f"weight must have layout FRACTAL_NZ, not {weight.spec.layout}; pass it through "
        f"npu_format_cast(..., 29)",
    )
    for operand, rank, what in ((x, 2, "(m, k)"), (weight, 3, "(e, k, n)")):
        contract.require(
            len(operand.shape) == rank,
            f"{operand.name} must have the shape {what}, not shape {operand.shape}; reshape it",
        )
        contract.require(
            0 not in operand.shape,
            f"{operand.name} must not be empty, not of shape {operand.shape}; leave the call out",
        )
    contract.require(
        not weight.spec.transposed,
        "weight must be contiguous, not a transposed view; cast the contiguous matrices with "
        "npu_format_cast(..., 29)",
    )
    _, k, n = logical_shape(weight, element is INT4)
    contract.require(
        k == x.shape[1],
        f"weight must have as many rows as x has columns, {x.shape[1]}, not {k}; pass x as (m, k) "
        f"and weight as (e, k, n)",
    )
    longest = MAX_ROW if element is INT4 else LARGEST_K
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


def _check_ends(contract: Contract, groups: Operand, m: int) -> None:
    """The card reads them unseen; what would have it read beyond x is refused here."""
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
