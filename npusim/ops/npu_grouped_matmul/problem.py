"""The arguments of npu_grouped_matmul's kernel: lists of tensors, and the groups of a call.

A kernel finds the tensors of a list by a table of their addresses. Here they are adjacent, as the
allocator places tensors created one after the other, and a program reaches each by its offset from
the first. That looking up an address takes a kernel no time is assumed.

group_list gives in one of three forms (group_list_type) the rows, or the part of k, for each
weight: the end of each group, its row count, or pairs of an expert and its row count. Every core
reads it from global memory at run time, one entry after the other, so it determines how a kernel is
written, see `value_dependent_inputs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np

from npusim.data.dtypes import INT4, Array
from npusim.data.tensor import Operand, TensorSpec, allocated_bytes
from npusim.kernel.launch import share
from npusim.kernel.steps import Integers
from npusim.ops import _protocol
from npusim.ops._operands import logical_shape
from npusim.ops.npu_grouped_matmul.support import Types

ENDS, ROWS, PAIRS = 0, 1, 2
"""group_list_type."""


def starts(parts: tuple[Operand, ...]) -> tuple[int, ...]:
    """Byte offsets of *parts* from the first one."""
    return tuple(accumulate((allocated_bytes(part.spec.nbytes) for part in parts[:-1]), initial=0))


def joined(name: str, parts: tuple[Operand, ...]) -> Operand:
    """*parts* as one operand called *name*: a single one unchanged, several as their bytes."""
    if len(parts) == 1:
        return Operand(name, parts[0].spec, parts[0].array)
    first = starts(parts)
    nbytes = first[-1] + parts[-1].spec.nbytes
    whole = TensorSpec((nbytes,), "uint8")
    if any(part.array is None for part in parts):
        return Operand(name, whole)
    values = np.zeros(nbytes, np.uint8)
    for start, part in zip(first, parts, strict=True):
        data = part.place().data
        assert data is not None
        values[start : start + data.size] = data
    return Operand(name, whole, values)


def entries_of(group_list: Array, kind: int) -> Integers:
    """The expert and the size of each group that a kernel reads in *group_list*, `(groups, 2)`.

    Sizes are rows, or positions of k. The first pair without rows ends the list
    (ops-transformer@c29bc10, op_kernel/grouped_matmul.h).
    """
    if kind == PAIRS:
        is_last = group_list[:, 1] <= 0
        return group_list[: int(is_last.argmax()) + 1] if is_last.any() else group_list
    sizes = group_list if kind == ROWS else np.diff(group_list, prepend=0)
    return np.stack([np.arange(len(sizes)), sizes], axis=1)


@dataclass(frozen=True, eq=False)
class Groups:
    """Separate products, `(m, k) @ (k, n)`, and the locations of their operands: `(groups,)` each.

    They are in the order of the list and include those without rows.
    """

    m: Integers
    k: Integers
    n: Integers
    x: Integers
    """The tensor of x, and where in it the group starts."""
    x_row: Integers
    x_k: Integers
    weight: Integers
    """The tensor of weight, the matrix in that tensor, and where along k the group starts."""
    matrix: Integers
    weight_k: Integers
    output: Integers
    """The output, and the first of its rows."""
    output_row: Integers
    row: Integers
    """The number of rows before it in all of x: where its row scales start."""


@dataclass(frozen=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call.

    Programs refer to each list of tensors by the name of its parameter: several tensors are
    adjacent, see :func:`starts`. Outputs have separate names.
    """

    types: Types
    x: tuple[Operand, ...]
    weight: tuple[Operand, ...]
    bias: tuple[Operand, ...]
    scale: tuple[Operand, ...]
    offset: tuple[Operand, ...]
    per_token_scale: tuple[Operand, ...]
    antiquant_scale: tuple[Operand, ...]
    antiquant_offset: tuple[Operand, ...]
    """Empty if omitted."""
    group_list: Operand | None
    group_type: int
    group_list_type: int
    act_type: int
    tuning: tuple[int, ...]
    """tuning_config: the expected rows of an expert, and more."""
    asked: str | None = None
    """The kernel that the caller selects, of those for its types."""

    @property
    def is_empty(self) -> bool:
        """Whether all outputs are; some groups may have no rows."""
        return not any(spec.size for spec in self.outputs.values())

    @cached_property
    def experts(self) -> int:
        """The number of weights; along k, of groups."""
        if self.group_type == 2:
            return len(self.weight) if self.group_list is None else self.group_list.shape[0]
        first = self.weight[0].shape
        return first[0] if len(first) == 3 else len(self.weight)

    @cached_property
    def rows(self) -> int:
        """Rows of all tensors of x together."""
        return sum(self.x_shape(place)[0] for place in range(len(self.x)))

    @property
    def trans_x(self) -> bool:
        return self.x[0].spec.transposed

    @property
    def trans_weight(self) -> bool:
        return self.weight[0].spec.transposed

    @property
    def is_nz(self) -> bool:
        return self.weight[0].spec.layout != "ND"

    @property
    def is_single(self) -> bool:
        """Whether x and weight are a single tensor each, for several experts."""
        return len(self.x) == len(self.weight) == 1 and len(self.weight[0].shape) == 3

    def x_shape(self, place: int) -> tuple[int, int]:
        """Rows and k, in elements, of tensor index *place*."""
        *rows, k = logical_shape(self.x[place], self.types.x is INT4)
        return prod(rows), k

    def weight_shape(self, place: int) -> tuple[int, int]:
        """k and n, in elements, of tensor index *place*, or of each of its matrices."""
        k, n = logical_shape(self.weight[place], self.types.weight is INT4)[-2:]
        return k, n

    @cached_property
    def listed(self) -> Integers:
        """The entries that cores read in group_list, see :func:`entries_of`; empty without one.

        Without values x is split evenly.
        """
        if self.group_list is None:
            return np.zeros((0, 2), np.int64)
        if self.group_list.array is not None:
            return entries_of(self.group_list.array, self.group_list_type)
        total = self.x_shape(0)[1] if self.group_type == 2 else self.rows
        entries = self.group_list.shape[0]
        sizes = [len(share(total, entries, expert)) for expert in range(entries)]
        return entries_of(np.array(sizes, np.int64), ROWS)

    @cached_property
    def groups(self) -> Groups:
        """The products."""
        return _along_k(self) if self.group_type == 2 else _along_m(self)

    def output_spec(self, place: int) -> TensorSpec:
        """The spec of output index *place*."""
        return list(self.outputs.values())[place]


def _along_m(p: Problem) -> Groups:
    """Runs of rows of x, or one tensor of x for each group."""
    several_x, several_y = len(p.x) > 1, len(p.outputs) > 1
    entries = p.listed
    if several_x or not len(entries):
        # The tensors already give the sizes; a list must agree with them.
        sizes = [p.x_shape(place)[0] for place in range(len(p.x))]
        entries = entries_of(np.array(sizes, np.int64), ROWS)
    expert, m = entries[:, 0], np.maximum(entries[:, 1], 0)
    index, row, none = np.arange(len(m)), np.cumsum(m) - m, np.zeros_like(m)
    weight, matrix = (none, expert) if len(p.weight) == 1 else (expert, none)
    k, n = _sizes(p)[weight].T
    x, x_row = (index, none) if several_x else (none, row)
    output, output_row = (index, none) if several_y else (none, row)
    return Groups(m, k, n, x, x_row, none, weight, matrix, none, output, output_row, row)


def _along_k(p: Problem) -> Groups:
    """Runs of positions of k."""
    is_single, entries, sizes = len(p.weight) == 1, p.listed, _sizes(p)
    if not len(entries):
        entries = entries_of(sizes[:, 0], ROWS)
    expert, k = entries[:, 0], np.maximum(entries[:, 1], 0)
    index, first, none = np.arange(len(k)), np.cumsum(k) - k, np.zeros_like(k)
    m = np.full_like(k, p.x_shape(0)[0])
    weight, weight_k = (none, first) if is_single else (expert, none)
    output, output_row = (none, index * m) if is_single else (index, none)
    return Groups(
        *(m, k, sizes[weight, 1], none, none, first, weight, none, weight_k),
        output=output,
        output_row=output_row,
        row=none,
    )


def _sizes(p: Problem) -> Integers:
    """k and n of each weight, `(weights, 2)`."""
    return np.array([p.weight_shape(place) for place in range(len(p.weight))], np.int64)
