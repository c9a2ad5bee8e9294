"""The blocks of all groups in column form: which core computes each, and its operands.

The blocks of all groups have consecutive indices, and core c takes c, c + cores, and so on
(ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul.h). Meanwhile every core reads
the whole of group_list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import lcm, prod
from typing import Any

import numpy as np

from npusim.data.dtypes import INT64, DType
from npusim.data.integers import distinct
from npusim.data.tensor import Operand
from npusim.isa import ScalarLoadGlobal
from npusim.kernel import (
    BaseTile,
    Binding,
    Choices,
    CubeCore,
    GmMatrix,
    GmTiles,
    GmView,
    GmViews,
    Matmul,
    Step,
)
from npusim.kernel.core import Core
from npusim.kernel.steps import Integers
from npusim.kernel.table import spread
from npusim.ops.npu_grouped_matmul.problem import PAIRS, Problem, starts

ONCE = "weight_once"
"""The name of the weight for groups that read it only once, and so bypass the L2."""
LINE_BYTES = 64
"""Bytes of a line of the scalar unit's data cache."""
ROW_MAJOR_BLOCKS = 5
"""A group with up to this many rows of blocks processes them in row-major order."""
WINDOW = 8
"""Blocks of a window in both directions, if there are more."""
Matrices = tuple[GmMatrix, GmMatrix]
"""x and the weight of a group in memory."""


def bound(p: Problem, *workspaces: str) -> dict[str, Binding]:
    """The bindings of the names of global memory, the same for every core."""
    names = (*(operand.name for operand in p.inputs), *p.outputs, *workspaces)
    return {name: Binding(name) for name in names} | {ONCE: Binding("weight", is_cached=False)}


def matrices_of(p: Problem, x: int, weight: int, name: str = "weight") -> Matrices:
    """Tensor *x* of list x and tensor *weight* of list weight, with the kernel's *name* for it."""
    rows, k = p.x_shape(x)
    x_size = (k, rows) if p.trans_x else (rows, k)
    wk, n = p.weight_shape(weight)
    weight_size = (n, wk) if p.trans_weight else (wk, n)
    return (
        GmMatrix("x", p.types.x, *x_size, k_is_first=p.trans_x),
        GmMatrix(
            *(name, p.types.weight, *weight_size),
            k_is_first=not p.trans_weight,
            layout="FRACTAL_NZ" if p.is_nz else "ND",
        ),
    )


def matmul_of(
    core: CubeCore, p: Problem, tile: BaseTile, *, bias: DType | None = None, unit_flag: bool
) -> Matmul:
    """The products of x and weight for any group, which may start from a *bias*."""
    longest = int(p.groups.k.argmax())
    x, weight = matrices_of(p, int(p.groups.x[longest]), int(p.groups.weight[longest]))
    k = int(p.groups.k[longest])
    return Matmul(core, tile, x, weight, k, bias=bias, unit_flag=unit_flag)


def staggered(cube: Matmul, parts: Parts) -> Integers:
    """The start along k of each part, so that cores that share operands do not collide."""
    pairs = zip(parts.core.tolist(), parts.p.groups.k[parts.group].tolist(), strict=True)
    return np.array([cube.stagger(core, k) for core, k in pairs], np.int64)


@dataclass(frozen=True, eq=False)
class Parts:
    """Blocks of the outputs of groups, `(parts,)` each, core after core."""

    p: Problem
    core: Integers
    order: Integers
    """`2 number + 1`, see `number`: entries of group_list have the even values in between."""
    turn: Integers
    """The index of each part among those of its core."""
    group: Integers
    row: Integers
    """The first row, relative to the first one of its group."""
    column: Integers
    rows: Integers
    columns: Integers

    @staticmethod
    def dealt(
        p: Problem,
        m: int,
        n: int,
        cores: int,
        width: int | None = None,
        *,
        by_row: bool = False,
        batch: Integers | None = None,
    ) -> Parts:
        """The blocks of up to *m* x *n* of each core, as tiles of up to *width* columns.

        With *by_row* those of a group are in row-major order in any case. Each *batch* of
        groups starts with the first core again; it is given by index for each group.
        """
        groups, width = p.groups, width or n
        with_k = np.flatnonzero(groups.k).tolist()
        order = _row_after_row if by_row else _windows
        sizes = (-(-groups.m // m)).tolist(), (-(-groups.n // n)).tolist()
        blocks = [order(sizes[0][each], sizes[1][each]) for each in with_k]
        group = np.repeat(with_k, [each.shape[1] for each in blocks]).astype(np.int64)
        i, j = np.concatenate([np.zeros((2, 0), np.int64), *blocks], axis=1)
        left = np.minimum(n, groups.n[group] - j * n)
        core = np.arange(group.size)
        if batch is not None:
            core -= np.searchsorted(batch[group], batch[group])
        # A block consists of horizontally adjacent tiles.
        block, inside = spread(-(-left // width))
        inside = inside * width
        group, row = group[block], i[block] * m
        found = Parts(
            p,
            core=core[block] % cores,
            order=2 * np.arange(block.size) + 1,
            turn=np.zeros_like(block),
            group=group,
            row=row,
            column=j[block] * n + inside,
            rows=np.minimum(m, groups.m[group] - row),
            columns=np.minimum(width, left[block] - inside),
        )
        found = found.select(np.argsort(found.core, kind="stable"))
        turn = np.arange(block.size) - np.searchsorted(found.core, found.core)
        return replace(found, turn=turn)

    @property
    def number(self) -> Integers:
        """The index of each part among those of all cores and groups."""
        return self.order // 2

    @property
    def is_alone(self) -> Any:
        """Whether the group has one row of blocks, so that its weight is read only once."""
        return self.rows == self.p.groups.m[self.group]

    def select(self, chosen: Any) -> Parts:
        """Select parts by mask or index."""
        own = {x.name: getattr(self, x.name)[chosen] for x in fields(self) if x.name != "p"}
        return replace(self, **own)

    def repeated(self, times: int) -> Parts:
        """All parts of each core, repeated for the *times* vector cores of its group."""
        every = self.select(np.repeat(np.arange(self.core.size), times))
        half = np.tile(np.arange(times), self.core.size)
        return replace(every, core=every.core * times + half)

    def steps(
        self, stage: Callable[..., None], arguments: Callable[[Parts], tuple[Any, ...]]
    ) -> tuple[Step, ...]:
        """`stage(*arguments(part))` for each; *arguments* builds columns for similar parts."""
        return tuple(Step(stage, arguments(own), own.core, own.order) for own in self.alike())

    def alike(self) -> Iterator[Parts]:
        """Runs of parts with the same output, the same way to read the weight and type of scale."""
        groups, scale = self.p.groups, self.p.scale
        output, weight = groups.output[self.group], groups.weight[self.group]
        key = 2 * output + self.is_alone
        if scale:
            key = 2 * key + np.array([each.element is scale[0].element for each in scale])[weight]
        for each in distinct(key).tolist():
            yield self.select(key == each)

    # ---- operands ----

    @property
    def matrices(self) -> Choices:
        """x and the weight of each, see `matrices_of`; for parts that are alike."""
        return Choices(*self._tensors(self._weight_name))

    @property
    def x(self) -> GmTiles:
        """Rows of x `(rows, k)`."""
        groups, group = self.p.groups, self.group
        row, k = groups.x_row[group] + self.row, groups.x_k[group]
        return self._tiles(0, "x", (row, self.rows, np.zeros_like(k), k))

    def digits(self, matrix: GmMatrix) -> GmTiles:
        """Two rows of *matrix* for each of these rows of x: high and low digits."""
        row = self.p.groups.x_row[self.group] + self.row
        return matrix.tiles(2 * row, 2 * self.rows)

    @property
    def weight(self) -> GmTiles:
        """Columns of the weight `(k, columns)`; for parts that are alike."""
        return self.weight_called(self._weight_name)

    def weight_called(self, name: str) -> GmTiles:
        """Columns of the weight `(k, columns)`, under the kernel's *name* for it."""
        groups, group = self.p.groups, self.group
        place = self.column, self.columns, groups.matrix[group], groups.weight_k[group]
        return self._tiles(1, name, place)

    @property
    def _weight_name(self) -> str:
        return ONCE if self.is_alone.any() else "weight"

    def _tensors(self, name: str) -> tuple[tuple[Matrices, ...], Integers]:
        """The matrices of pairs of tensors of x and weight, and the pair's index for each part."""
        groups, weights = self.p.groups, len(self.p.weight)
        pair = groups.x[self.group] * weights + groups.weight[self.group]
        pairs, index = np.unique(pair, return_inverse=True)
        of_pairs = (divmod(each, weights) for each in pairs.tolist())
        return tuple(matrices_of(self.p, x, w, name) for x, w in of_pairs), index

    def _tiles(
        self, side: int, name: str, place: tuple[Integers, Integers, Integers, Integers]
    ) -> GmTiles:
        """Tiles of x (*side* 0) or weight (1), at *place* like in `GmMatrix.tiles`."""
        p, groups, k = self.p, self.p.groups, self.p.groups.k[self.group]
        lists, tensor = (p.x, p.weight)[side], (groups.x, groups.weight)[side][self.group]
        offset = np.array(starts(lists), np.int64)[tensor]
        options, index = self._tensors(name)
        for number, matrices in enumerate(options):
            here = index == number
            origin, extent, matrix, first_k = (each[here] for each in place)
            own = matrices[side].tiles(origin, extent, matrix, k=first_k)
            offset[here] += own.offset_bytes
        return GmTiles(name, offset, place[1], k)

    @property
    def output(self) -> GmViews:
        """`(rows, columns)` of the output; for parts that are alike."""
        groups, group = self.p.groups, self.group
        number = int(groups.output[group[0]])
        spec = self.p.output_spec(number)
        whole = GmView.of(
            list(self.p.outputs)[number], spec.element, prod(spec.shape[:-1]), spec.shape[-1]
        )
        top = groups.output_row[group] + self.row
        return GmViews.of(whole, top, self.column, self.rows, self.columns)

    def of_columns(self, parts: tuple[Operand, ...]) -> GmViews | None:
        """The values for its columns in a list such as the bias; None without one.

        A single value for an expert applies to all columns.
        """
        if not parts:
            return None
        groups, group = self.p.groups, self.group
        experts = self.p.experts if len(parts) == 1 else 1
        weight = groups.weight[group]
        each = np.array([part.spec.size // experts for part in parts])[weight]
        is_one = (each == 1) & (groups.n[group] > 1)
        first = groups.matrix[group] * each + np.where(is_one, 0, self.column)
        return _vectors(parts, weight, first, np.where(is_one, 1, self.columns))

    def of_rows(self, parts: tuple[Operand, ...]) -> GmViews | None:
        """The values for its rows in a list such as the row scales; None without one."""
        if not parts:
            return None
        groups, group = self.p.groups, self.group
        return _vectors(parts, groups.x[group], groups.x_row[group] + self.row, self.rows)


def _vectors(
    parts: tuple[Operand, ...], tensor: Integers, first: Integers, count: Integers
) -> GmViews:
    """*count* elements of tensor index *tensor* of a list, from *first* on."""
    name, of_tensor = parts[0].name.partition("[")[0], np.array(starts(parts), np.int64)
    dtype = parts[int(tensor[0])].element
    offset = of_tensor[tensor] + first * dtype.bits // 8
    return GmViews(name, dtype, np.ones_like(count), count, 0, offset)


@dataclass(frozen=True)
class Reader:
    """The stage in which a core reads an entry of group_list."""

    core: Core

    def __call__(self, entry: GmView, is_cached: bool) -> None:
        self.core.emit(ScalarLoadGlobal("entry", entry.operand, INT64, is_cached))


def read_list(p: Problem, core: Core, cores: int, parts: Parts | None = None) -> Step:
    """Let all *cores* read group_list, each entry before their *parts* of its group.

    *parts* are all of them; without any, the whole list is read first.
    """
    words = 2 if p.group_list_type == PAIRS else 1
    entries = min(len(p.listed), p.groups.m.size)
    word = np.tile(np.arange(words * entries), cores)
    offset, one = INT64.nbytes(1) * word, np.ones_like(word)
    order = word // words
    if parts is None:
        order = order - entries
    else:
        _, first = np.unique(parts.order, return_index=True)
        order = 2 * np.searchsorted(parts.group[first], order)

    views = GmViews("group_list", INT64, one, one, 0, offset)
    owner = np.repeat(np.arange(cores), words * entries)
    return Step(Reader(core), (views, offset % LINE_BYTES != 0), owner, order)


@lru_cache(maxsize=256)
def _row_after_row(rows: int, columns: int) -> Integers:
    """The blocks of a group, *rows* x *columns* of them, in row-major order, `(2, blocks)`."""
    return np.stack(np.divmod(np.arange(rows * columns), max(columns, 1)))


@lru_cache(maxsize=256)
def _windows(rows: int, columns: int) -> Integers:
    """The same in diagonals of windows, if there are many rows of blocks."""
    if rows <= ROW_MAJOR_BLOCKS:
        return _row_after_row(rows, columns)
    found = []
    for top in range(0, rows, WINDOW):
        for left in range(0, columns, WINDOW):
            height, width = min(WINDOW, rows - top), min(WINDOW, columns - left)
            number = np.arange(height * width)
            turn = number + number // lcm(height, width)
            found.append(np.stack([top + number % height, left + turn % width]))
    return np.concatenate(found, axis=1)
