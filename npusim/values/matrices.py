"""Lazy tiles: matrices in L1, L0A, L0B and L0C, stored as arrays until their bytes are read.

Writing a tile as the bytes it has on the chip and reading these as a matrix gives the same values,
but reordering fractals is slow, so it is done only when needed. An accumulator stores the products
that it is the sum of until the sum is needed.

The edges of fractals do not depend on this. In L0A and L0B, elements beyond the tile that was
loaded become UNWRITTEN, whatever was there before: a kernel must not depend on them, and zeros
would hide it if one does. In L0C, elements beyond m and n become zero.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32, INT4, INT32, Array, DType, pack_int4, unpack_int4
from npusim.data.few_rows import FEW_ROWS, add_few_rows
from npusim.data.int_product import accumulate_int, int_product
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import (
    FRACTAL_BYTES,
    FRACTAL_ROWS,
    NZ,
    Layout,
    c0,
    from_fractals,
    to_fractals,
)
from npusim.data.product import (
    CubeOrder,
    LeftFactor,
    RightFactor,
    add_float_product,
)
from npusim.isa import BLOCK_BYTES
from npusim.values.buffers import UNWRITTEN, LazyTile

__all__ = [
    "Accumulator",
    "Factor",
    "L0Tile",
    "L1Tile",
    "Panels",
    "address_of",
    "joined",
    "l0_matrix",
    "l0c_matrix",
    "l1_matrix",
]

Bytes = NDArray[np.uint8]
SQUARE = (FRACTAL_ROWS, FRACTAL_ROWS)


def _bytes_of(values: Array, dtype: DType) -> Bytes:
    return pack_int4(values) if dtype is INT4 else np.ascontiguousarray(values).view(np.uint8)


def _elements(raw: Bytes, dtype: DType) -> Array:
    return unpack_int4(raw) if dtype is INT4 else raw.view(dtype.numpy)


# ---- L1 ----


@dataclass(slots=True)
class L1Tile:
    """*matrix* `(rows, columns)` as part of an Nz matrix of *nz_rows* rows."""

    start: int
    dtype: DType
    nz_rows: int
    matrix: Array
    address: int = 0
    """Host address of the first element if the matrix views memory never written, else 0."""
    end: int = field(init=False)

    def __post_init__(self) -> None:
        rows, columns = self.matrix.shape
        blocks_n = ceil_div(columns, c0(self.dtype))
        self.end = self.start + ((blocks_n - 1) * self.nz_rows + rows) * BLOCK_BYTES

    def covers(self, other: LazyTile) -> bool:
        return (
            isinstance(other, L1Tile)
            and other.start == self.start
            and other.nz_rows == self.nz_rows
            and other.matrix.shape[0] <= self.matrix.shape[0]
            and other.end <= self.end
        )

    def write(self, raw: Bytes) -> None:
        rows, columns = self.matrix.shape
        width = c0(self.dtype)
        blocks_n = ceil_div(columns, width)
        padded = self.matrix
        if blocks_n * width != columns:
            padded = np.zeros((rows, blocks_n * width), self.matrix.dtype)
            padded[:, :columns] = self.matrix
        # (rows, n1 * c0) -> (n1, rows, c0); n1 advances by nz_rows blocks of 32 bytes, a row by
        # one.
        split = padded.reshape(rows, blocks_n, width).swapaxes(0, 1)
        steps = (self.nz_rows * BLOCK_BYTES, BLOCK_BYTES, 1)
        place = as_strided(raw[self.start :], (blocks_n, rows, BLOCK_BYTES), steps)
        place[...] = _bytes_of(split, self.dtype)


def l1_matrix(raw: Bytes, dtype: DType, nz_rows: int, rows: int, columns: int) -> Array:
    """The first *rows* x *columns* of an Nz matrix that begins with *raw*."""
    blocks_n = ceil_div(columns, c0(dtype))
    steps = (nz_rows * BLOCK_BYTES, BLOCK_BYTES, 1)
    # Nz bytes (n1, rows, 32) -> (rows, n1, 32)
    blocks = as_strided(raw, (blocks_n, rows, BLOCK_BYTES), steps).swapaxes(0, 1)
    # A copy, since the tile must outlive the bytes that are written here next.
    whole = _elements(blocks.copy().reshape(rows, -1), dtype)
    return whole[:, :columns]


# ---- L0A, L0B ----


@cache
def _fractal(buffer: str, dtype: DType) -> tuple[int, int]:
    width = c0(dtype)
    return (FRACTAL_ROWS, width) if buffer == "l0a" else (width, FRACTAL_ROWS)


@dataclass(slots=True)
class L0Tile:
    """*matrix* as Zz in L0A or Zn in L0B; the edges of its fractals are UNWRITTEN."""

    start: int
    dtype: DType
    buffer: str
    layout: Layout
    matrix: Array
    address: int = 0
    """Host address of the first element if the matrix views memory never written, else 0."""
    end: int = field(init=False)

    def __post_init__(self) -> None:
        height, width = _fractal(self.buffer, self.dtype)
        rows, columns = self.matrix.shape
        # A fractal has 512 bytes for every type.
        self.end = self.start + ceil_div(rows, height) * ceil_div(columns, width) * FRACTAL_BYTES

    def covers(self, other: LazyTile) -> bool:
        return other.start == self.start and other.end <= self.end

    def write(self, raw: Bytes) -> None:
        height, width = _fractal(self.buffer, self.dtype)
        rows, columns = self.matrix.shape
        rows_padded, cols_padded = align_up(rows, height), align_up(columns, width)
        padded = self.matrix
        if (rows_padded, cols_padded) != (rows, columns):
            # Along k, since two int4 that share a byte are neighbours along k.
            filler = _elements(np.full(BLOCK_BYTES, UNWRITTEN, np.uint8), self.dtype)
            edge = filler[None] if self.buffer == "l0a" else filler[:, None]
            padded = np.tile(edge, (rows_padded // edge.shape[0], cols_padded // edge.shape[1]))
            padded[:rows, :columns] = self.matrix
        fractals = to_fractals(padded, self.layout, (height, width))
        raw[self.start : self.end] = _bytes_of(fractals.reshape(-1), self.dtype)


def l0_matrix(
    raw: Bytes, dtype: DType, buffer: str, layout: Layout, shape: tuple[int, int]
) -> Array:
    """The matrix of *shape* whose fractals begin with *raw*."""
    fractal = _fractal(buffer, dtype)
    gm_matrix = layout.array_shape(*shape, fractal)
    nbytes = dtype.nbytes(int(np.prod(gm_matrix)))
    return from_fractals(_elements(raw[:nbytes], dtype).reshape(gm_matrix), layout, shape)


# ---- L0C ----


def address_of(matrix: Array) -> int:
    """Host address of the first element of *matrix*."""
    address: int = matrix.__array_interface__["data"][0]
    return address


class Factor(NamedTuple):
    """One side of a product."""

    matrix: Array
    address: int = 0
    """Host address of the first element if the matrix views memory never written, else 0."""

    @property
    def is_constant(self) -> bool:
        """Whether it is a view of memory that is never written."""
        return self.address != 0

    def key(self) -> tuple[object, ...]:
        """A key that is unique among factors that are alive and not written."""
        return self.address, self.matrix.shape, self.matrix.strides, self.matrix.dtype.str


Term = tuple[Factor, Factor]
"""The factors `(m, k)` and `(k, n)` of one Mmad."""


Panel = Array | LeftFactor | RightFactor
AnyPanel = TypeVar("AnyPanel", Array, LeftFactor, RightFactor)


class Panels:
    """Operands converted for multiplication, in a cache with least recently used first out."""

    def __init__(self, tensor_bytes: int = 0) -> None:
        """Size the cache for a launch whose tensors have *tensor_bytes*."""
        self._share = tensor_bytes // PANEL_SHARE
        self._cache: OrderedDict[tuple[object, ...], Panel] = OrderedDict()
        self._nbytes = 0

    def single(self, factor: Factor) -> Array:
        """The integers of *factor* as float32."""
        return self._made(factor, "single", _as_single)

    def left(self, factor: Factor, order: CubeOrder) -> LeftFactor:
        """*factor* `(m, k)` as floats."""
        return self._made(factor, ("left", order), lambda x: LeftFactor.of(x, order))

    def right(self, factor: Factor, order: CubeOrder) -> RightFactor:
        """*factor* `(k, n)` as floats."""
        return self._made(factor, ("right", order), lambda x: RightFactor.of(x, order))

    def _made(self, factor: Factor, form: object, make: Callable[[Array], AnyPanel]) -> AnyPanel:
        matrix = factor.matrix
        if not factor.is_constant:
            return make(matrix)
        key = form, *factor.key()
        panel: Any = self._cache.pop(key, None)
        if panel is None:
            panel = make(matrix)
            self._nbytes += panel.nbytes
            while self._cache and self._nbytes > max(PANEL_BYTES, self._share):
                self._nbytes -= self._cache.popitem(last=False)[1].nbytes
        self._cache[key] = panel
        made: AnyPanel = panel
        return made


def _as_single(matrix: Array) -> Array:
    return np.ascontiguousarray(matrix).astype(np.float32)


PANEL_BYTES = 1 << 25
"""Least capacity of Panels in bytes: some operands of 512 x 2048."""
PANEL_SHARE = 3
"""Its capacity is a third of the bytes of large tensors, so a run uses little more memory."""


@dataclass(slots=True)
class Accumulator:
    """`initial + sum of a @ b over terms`, in Nz of 16 x 16 fractals; *terms* in k order."""

    start: int
    dtype: DType
    m: int
    n: int
    order: CubeOrder
    panels: Panels
    initial: Array
    """`(m, n)`, or an array that broadcasts to it."""
    terms: list[Term] = field(default_factory=list)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        blocks_m, blocks_n = ceil_div(self.m, FRACTAL_ROWS), ceil_div(self.n, FRACTAL_ROWS)
        self.end = (
            self.start + blocks_m * blocks_n * FRACTAL_ROWS * FRACTAL_ROWS * self.dtype.nbytes(1)
        )

    def covers(self, other: LazyTile) -> bool:
        return other.start == self.start and other.end <= self.end

    def write(self, raw: Bytes) -> None:
        fractals = to_fractals(self.value(), NZ, SQUARE)
        raw[self.start : self.end] = fractals.reshape(-1).view(np.uint8)

    def value(self) -> Array:
        """The sum so far, `(m, n)`."""
        for group in _groups(self.terms):
            is_joinable = self._is_joinable(group)
            if is_joinable and self.dtype is INT32:
                # An exact sum does not depend on order. Kernels may start at any k; sorted by
                # address, pieces of an operand are adjacent again.
                group.sort(key=lambda term: term[0].address)
            for terms in [group] if is_joinable else [[term] for term in group]:
                self._add(joined([a for a, _ in terms], 1), joined([b for _, b in terms], 0))
        self.terms = []
        if self.initial.shape != (self.m, self.n):
            self.initial = np.broadcast_to(self.initial, (self.m, self.n)).copy()
        return self.initial

    def constant_product(self) -> Term | None:
        """The factors if it is one product of memory that is never written, else None.

        The product must also be exact or have few rows.
        """
        is_exact = self.dtype is INT32
        if self.initial.ndim or self.initial or not self.terms:
            return None
        first, *more = _groups(list(self.terms))
        if more or not self._is_joinable(first) or not (is_exact or self.m <= FEW_ROWS):
            return None
        if is_exact:
            first.sort(key=lambda term: term[0].address)
        left, right = joined([a for a, _ in first], 1), joined([b for _, b in first], 0)
        return (left, right) if left.is_constant and right.is_constant else None

    def _is_joinable(self, group: list[Term]) -> bool:
        """Whether *group* as one product gives the same sum as one product after the other."""
        if self.dtype is not INT32 or len(group) == 1:
            return True
        # Each Mmad saturates at int32, a joined product only once, so no partial sum may reach it.
        length = sum(int(a.matrix.shape[1]) for a, _ in group)
        largest = max(int(self.initial.max()), -int(self.initial.min()))
        return largest + length * LARGEST_PRODUCT < 1 << 31

    def _add(self, a: Factor, b: Factor) -> None:
        if self.dtype is INT32:
            product = int_product(self.panels.single(a), self.panels.single(b))
            is_zero = self.initial.ndim == 0 and not self.initial
            self.initial = product if is_zero else accumulate_int(self.initial, product)
        else:
            start = np.broadcast_to(self.initial, (self.m, self.n)).copy()
            self.initial = start
            if self.m <= FEW_ROWS:
                add_few_rows(a.matrix, b.matrix, start, self.order)
                return
            left, right = self.panels.left(a, self.order), self.panels.right(b, self.order)
            add_float_product(left, right, start, self.order)


LARGEST_PRODUCT = 1 << 14
"""The largest product of two int8: -128 squared."""
LONGEST = 1 << 15
"""Largest k of joined products."""


def _groups(terms: list[Term]) -> Iterator[list[Term]]:
    """Split *terms* into runs that can be one product with the same k blocks of the cube."""
    group: list[Term] = []
    length = 0
    for a, b in terms:
        k = a.matrix.shape[1]
        is_alike = group and a.matrix.dtype == group[0][0].matrix.dtype
        if group and not (is_alike and length % FRACTAL_ROWS == 0 and length + k <= LONGEST):
            yield group
            group, length = [], 0
        group.append((a, b))
        length += k
    if group:
        yield group


def joined(factors: list[Factor], axis: int) -> Factor:
    """Concatenate pieces of an operand along *axis*; neighbours in memory become one view."""
    first = factors[0].matrix
    if len(factors) == 1:
        return factors[0]
    if _are_neighbours(factors, axis):
        # One view, without a copy.
        length = sum(factor.matrix.shape[axis] for factor in factors)
        shape = (first.shape[0], length) if axis else (length, first.shape[1])
        return Factor(as_strided(first, shape, first.strides), factors[0].address)
    return Factor(np.concatenate([matrix for matrix, _ in factors], axis))


def _are_neighbours(factors: list[Factor], axis: int) -> bool:
    """Whether all are contiguous along *axis* in constant memory, with equal strides."""
    first, address = factors[0]
    for matrix, start in factors:
        if not (
            start
            and start == address
            and matrix.dtype == first.dtype
            and matrix.strides == first.strides
            and matrix.shape[1 - axis] == first.shape[1 - axis]
        ):
            return False
        address = start + matrix.shape[axis] * matrix.strides[axis]
    return True


def l0c_matrix(raw: Bytes, dtype: DType, nz_rows: int, shape: tuple[int, int]) -> Array:
    """The matrix of *shape* in an Nz matrix of *nz_rows* rows that begins with *raw*."""
    m, n = shape
    assert dtype in (FLOAT32, INT32)
    blocks_n = ceil_div(n, FRACTAL_ROWS)
    count = blocks_n * nz_rows * FRACTAL_ROWS
    # (n1, nz_rows, 16) -> (nz_rows, n1 * 16), of which the first m x n are the matrix
    blocks = raw[: dtype.nbytes(count)].view(dtype.numpy).reshape(blocks_n, nz_rows, FRACTAL_ROWS)
    return blocks.swapaxes(0, 1).reshape(nz_rows, -1)[:m, :n]
