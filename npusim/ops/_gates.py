"""Steps shared by gates: sums in the kernels' order, softmax or sigmoid, and groups of experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, Array, DType
from npusim.data.integers import ceil_div
from npusim.isa import FLOATS_PER_BLOCK, REPEAT_BYTES, Local, WholeReduce
from npusim.isa.scalar import AluOp
from npusim.kernel import VectorCore
from npusim.kernel.reduction import Reduction
from npusim.kernel.sequences import count_up
from npusim.ops import _vocabulary as ops
from npusim.ops._sorting import WORDS_OF_A_PAIR, List, Sorter, padded

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""Types of tokens (ops-transformer@c29bc10, moe: for A2 and A3)."""
NOTHING = float("-inf")
"""The key of padding in a list."""
TOTAL, LARGEST, PART, START = "total", "largest", "part", "start"
"""Registers; START also with a number appended."""


class Scores:
    """Normalises rows of up to *most* elements of *dtype*, float32 or float16."""

    def __init__(self, core: VectorCore, most: int, dtype: DType = FLOAT32) -> None:
        self.core, self.dtype = core, dtype
        self.lanes = REPEAT_BYTES * 8 // dtype.bits
        self.reduction = Reduction(core, most)
        self.partial = core.tile(dtype, ceil_div(most, self.lanes))
        self.largest = core.tile(FLOAT32, 2)
        self.divisor = core.tile(dtype, most)

    def total(self, values: Local) -> None:
        """Sum *values* `(n,)` into the register TOTAL.

        ReduceSum over a count of elements: a tree within each repeat, then repeat after repeat
        (asc-devkit, ReduceSum.md). That the scalar unit adds the sums of several repeats is
        assumed.
        """
        core, lanes = self.core, self.lanes
        whole = values.count // lanes
        parts = [self.partial[index : index + 1] for index in range(whole)]
        if whole:
            core.emit(WholeReduce("sum", self.partial[:whole], values[: whole * lanes]))
        if rest := values.count - whole * lanes:
            # A result must begin at a block, so that of the rest goes to another one.
            parts.append(self.largest.as_dtype(self.dtype, 1))
            core.emit(WholeReduce("sum", parts[-1], values.at(whole * lanes, rest)))
        core.sync("vector", "scalar")
        core.get_value(TOTAL, parts[0])
        add: AluOp = "f32_add" if self.dtype is FLOAT32 else "f16_add"
        for part in parts[1:]:
            core.get_value(PART, part)
            core.alu(add, TOTAL, TOTAL, PART)
        core.sync("scalar", "vector")

    def sigmoid(self, dst: Local, values: Local) -> None:
        """Write `1 / (exp(values * -1) + 1)` to *dst*; *values* `(n,)` is overwritten."""
        core, ones = self.core, self.divisor[: values.count]
        core.mul(values, values, -1.0)
        core.exp(values, values)
        core.add(values, values, 1.0)
        core.duplicate(ones, 1.0)
        core.div(dst, ones, values)

    def softmax(self, dst: Local, values: Local) -> None:
        """Write `e * (1 / sum(e))` with `e = exp(values - max(values))` to *dst*."""
        self.exponential(values, values)
        self.total(values)
        self.core.alu("f32_div", TOTAL, 1.0, TOTAL)
        self.core.mul(dst, values, TOTAL)

    def exponential(self, values: Local, wide: Local) -> None:
        """Compute `exp(values - max(values))` in place; *wide* has the same elements as float32."""
        core = self.core
        self.reduction.find_largest(self.largest, wide)
        core.sync("vector", "scalar")
        core.get_value(LARGEST, self.largest[:1])
        core.alu("f32_mul", LARGEST, LARGEST, -1.0)
        if self.dtype is not FLOAT32:
            core.alu("f32_to_f16", LARGEST, LARGEST)
        core.add(values, values, LARGEST)
        core.exp(values, values)

    def divide_by_total(self, values: Local, epsilon: float | None = None) -> None:
        """Divide *values* `(n,)` by their sum, plus *epsilon* if given."""
        core, divisor = self.core, self.divisor[: values.count]
        self.total(values)
        if epsilon is not None:
            core.alu("f32_add", TOTAL, TOTAL, epsilon)
        core.duplicate(divisor, TOTAL)
        core.div(values, values, divisor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has a contiguous run of rows, processed one at a time."""

    rows_per_core: int


# ---- groups of experts ----


@dataclass(frozen=True, slots=True)
class Groups:
    """*count* groups of *experts* each, of which the *kept* best remain candidates."""

    count: int
    kept: int
    experts: int
    sums_two: bool
    """Whether a group is ranked by the sum of its two largest keys instead of the largest."""

    @property
    def lanes(self) -> int:
        """Keys to sort, including the padding of each group."""
        return self.count * padded(self.experts)


class GroupChoice:
    """The best groups of a row, whose lists are merged in ascending order of the groups.

    ops-transformer@c29bc10 moe/moe_gating_top_k/op_kernel. Assumed: the selected groups are sorted
    again into ascending order; with five, nine, ... of them three lists are merged and then two;
    and the list of a single group is gathered word by word.
    """

    def __init__(self, core: VectorCore, groups: Groups, sorter: Sorter) -> None:
        self.core, self.groups, self.sorter = core, groups, sorter
        lanes, kept = padded(groups.count), padded(groups.kept)
        self.own = Sorter(core, lanes)
        self.words = core.tile(FLOAT32, groups.lanes)
        self.scores, self.numbers = core.tile(FLOAT32, lanes), core.tile(INT32, lanes)
        self.order, self.found = core.tile(FLOAT32, kept), core.tile(INT32, kept)
        self.only: tuple[Local, Local] | None = None
        """Offsets of the words of a list, and of those of the only group selected."""
        if groups.kept == 1:
            words = WORDS_OF_A_PAIR * groups.experts
            self.only = core.tile(INT32, words), core.tile(INT32, words)

    def write_tables(self) -> None:
        """Write the indices of the groups, and the padding of lists."""
        count_up(self.core, self.numbers)
        self.core.duplicate(self.scores, NOTHING)
        self.core.duplicate(self.order, NOTHING)
        self.core.duplicate(self.found, 0)
        if self.only is not None:
            count_up(self.core, self.only[0], 0, INT32.nbytes(1))

    def keep_best(self, lists: list[List]) -> None:
        """Merge those of *lists*, one per group, whose groups are selected."""
        groups, core, each = self.groups, self.core, padded(self.groups.experts)
        assert [start for start, _ in lists] == [*range(0, each * groups.count, each)]
        self._score()
        self.own.sort(self.scores, self.numbers)
        # (kept,) of int32, the best group first -> in ascending order
        found, order = self.found[: groups.kept], self.order[: groups.kept]
        self.own.take_indices(found)
        core.cast(order, found)
        core.mul(order, order, -1.0)
        self.own.sort(self.order, self.found)
        self.own.take_indices(found)
        core.sync("vector", "scalar")
        if self.only is not None:
            self._take_only(*self.only)
            return
        starts: list[List] = []
        for index in range(groups.kept):
            name = f"{START}{index}"
            core.get_value(name, found[index : index + 1])
            core.alu("mul", name, name, each)
            starts.append((name, groups.experts))
        core.sync("scalar", "vector")
        self.sorter.merge([starts])

    def _take_only(self, places: Local, moved: Local) -> None:
        """Gather the list of the only group selected; MrgSort does not accept a single list."""
        groups, core = self.groups, self.core
        pair_bytes = INT32.nbytes(WORDS_OF_A_PAIR)
        core.get_value(START, self.found[:1])
        core.alu("mul", START, START, padded(groups.experts) * pair_bytes)
        core.sync("scalar", "vector")
        core.add(moved, places, START)
        self.sorter.take_words(moved, groups.lanes)

    def _score(self) -> None:
        """The largest key of each group, or the sum of its two largest ones."""
        groups, words = self.groups, self.words
        self.sorter.take_keys(words)
        # The first block of each list is a repeat.
        gap, lanes = padded(groups.experts) // FLOATS_PER_BLOCK, groups.count * FLOATS_PER_BLOCK
        heads = Local("ub", words.offset_bytes, FLOAT32, lanes, 1, gap, 1)
        mask = 2 if groups.sums_two else 1
        self.core.whole_reduce(
            "sum" if groups.sums_two else "max", self.scores[: groups.count], heads, mask
        )


# ---- on whole arrays ----


def row_sums(x: Array) -> Array:
    """Sums of neighbours within 256 bytes of a row as a tree, then one such sum after another."""
    lanes = REPEAT_BYTES // x.itemsize
    total: Array | None = None
    for start in range(0, x.shape[1], lanes):
        part = np.zeros((len(x), lanes), x.dtype)
        columns = x[:, start : start + lanes]
        part[:, : columns.shape[1]] = columns
        while part.shape[1] > 1:
            part = part[:, 0::2] + part[:, 1::2]
        total = part[:, 0] if total is None else total + part[:, 0]
    assert total is not None
    return total


def descending(ranks: Array) -> Array:
    """Indices of *ranks* in descending order, with the first of equal ones first."""
    return np.argsort(-ranks, axis=-1, kind="stable")
