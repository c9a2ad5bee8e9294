"""Two tensors added, the first step of all kernels that add a residual.

Elements of 16 bits are worked on in fp32; fp16 is added and multiplied by gamma as such, unless a
kernel has reason to do that in fp32, too.

ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.isa import Local
from npusim.kernel.core import TileQueue
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.contract import Problem
from npusim.ops._rms_norm.steps import (
    block_of,
    halve_into,
    lanes_into,
    lanes_of_row,
    root_by_vector,
    widen,
)

__all__ = [
    "Add",
    "Residual",
    "add",
    "add_in_float32",
    "add_unrounded",
    "load_pair",
    "root_of_row",
    "roots_of_parts",
    "square",
    "sum_in_float32",
    "times_root_and_gamma",
]

Add = Callable[[VectorCore, Local, Local, tuple[Local, Local], Local], None]
"""`add(core, out, values, addends, work)`: the sum of *addends* to *out*, in their type, and to
fp32 *values*; *work* has room for fp32 and is overwritten."""


def add_in_float32(
    core: VectorCore, out: Local, values: Local, addends: tuple[Local, Local], work: Local
) -> None:
    """16 bits: the sum of both in fp32, which *values* keeps as it is."""
    sum_in_float32(core, values, addends, work)
    core.cast(out, values)


def sum_in_float32(
    core: VectorCore, values: Local, addends: tuple[Local, Local], work: Local
) -> None:
    """The sum of *addends*, of 16 bits, to fp32 *values* by way of *work*."""
    core.cast(values, addends[0])
    core.cast(work, addends[1])
    core.add(values, values, work)


def add_unrounded(
    core: VectorCore, out: Local, values: Local, addends: tuple[Local, Local], work: Local
) -> None:
    """fp16 and fp32 are added as such; *values* of bf16 are the exact sum."""
    if out.dtype is FLOAT16:
        core.add(out, *addends)
        core.cast(values, out)
    elif out.dtype is FLOAT32:
        core.add(values, *addends)
        widen(core, out, values)
    else:
        add_in_float32(core, out, values, addends, work)


def add(
    core: VectorCore, out: Local, values: Local, addends: tuple[Local, Local], work: Local
) -> None:
    """As `add_unrounded`, but *values* of bf16 are what *out* is rounded to."""
    add_unrounded(core, out, values, addends, work)
    if out.dtype not in (FLOAT16, FLOAT32):
        core.cast(values, out)


def load_pair(
    core: VectorCore, x_in: TileQueue, x1: GmView, x2: GmView, second: Local | None = None
) -> tuple[Local, Local]:
    """Load *x1* into a tile of *x_in* and *x2* to *second*, else into the second half of the tile.

    The one flag of the queue is for both.
    """
    tile = x_in.alloc().as_dtype(x1.dtype)
    second = second or tile[tile.count // 2 :]
    core.fill(tile, x1)
    core.fill(second, x2)
    x_in.enque(tile)
    x_in.deque()
    return tile[: x1.columns], second[: x1.columns]


@dataclass(frozen=True)
class Residual:
    """A row of x1 and one of x2, or a piece of each, added."""

    core: VectorCore
    x_in: TileQueue
    y_out: TileQueue
    """Where the sum leaves by, and later y."""
    values: Local | None
    """The sum in fp32; None: it is where x1 was."""
    work: Local | None
    """Room for squares in fp32; None: it is where x2 was."""
    second: Local | None
    """Where x2 is loaded; None: into the second half of the tile of x1."""
    add: Add
    frees: bool
    """Whether nobody needs x1 and x2 any more when they have been added."""

    def __call__(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local, Local]:
        """The sum of *x1* and *x2* in fp32, on its way to *x*; room for squares, and the tile."""
        core, count = self.core, x1.columns
        first, second = load_pair(core, self.x_in, x1, x2, self.second)
        out = self.y_out.alloc()
        values = self.values[:count] if self.values else first
        work = self.work[:count] if self.work else second
        self.add(core, out[:count], values, (first, second), work)
        if self.frees:
            self.x_in.free(first)
        core.store(self.y_out, out, x)
        return values, work, first


def square(core: VectorCore, squares: Local, values: Local, mean: float) -> None:
    """The squares of *values*, each times *mean*."""
    core.mul(squares, values, values)
    core.mul(squares, squares, mean)


def root_of_row(
    core: VectorCore,
    p: Problem,
    total: Local,
    values: Local,
    squares: Local,
    ones: Local,
    lanes: Local | None,
) -> None:
    """1 / root of *values* to *total* `(1,)`; without *lanes* a row is added up by halves."""
    square(core, squares, values, p.mean)
    if lanes is None:
        halve_into(core, total, squares)
    else:
        lanes_into(core, total, lanes, squares)
    root_by_vector(core, total, ones[:1], p.epsilon)


def roots_of_parts(
    residual: Residual,
    p: Problem,
    roots: Local,
    room: tuple[Local, Local, Local],
    parts: list[slice],
    views: tuple[GmView, GmView, GmView],
) -> None:
    """1 / root of some rows of x1 and x2, whose sum goes to x, to *roots* `(rows,)`.

    A piece of all rows comes after the other. *room* is for 64 running sums, for a block and for
    an element a row.
    """
    core, (lanes, blocks, sums) = residual.core, room
    core.duplicate(roots, 0.0)
    for part in parts:
        for row in range(roots.count):
            x1, x2, x = (view[row : row + 1, part] for view in views)
            values, squares, first = residual(x1, x2, x)
            square(core, squares, values, p.mean)
            lanes_of_row(core, lanes, squares)
            core.block_reduce("sum", block_of(blocks, row), lanes)
            if not residual.frees:
                residual.x_in.free(first)
        core.block_reduce("sum", sums, blocks)
        core.add(roots, roots, sums)
    root_by_vector(core, roots, sums, p.epsilon)


def times_root_and_gamma(
    core: VectorCore,
    y_out: TileQueue,
    values: Local,
    gamma: Local,
    work: Local,
    free: Callable[[], None] = lambda: None,
) -> Local:
    """*values* times register `root`, rounded, and times *gamma*, in a tile of *y_out*.

    *values* and fp32 *work* are overwritten. *free* is called when nobody needs the tile of x any
    more, in which fp32 *values* are.
    """
    if gamma.dtype is FLOAT32:
        out = y_out.alloc()
        core.mul(out[: values.count], values, "root")
        free()
        core.mul(out[: values.count], out[: values.count], gamma)
        return out
    core.mul(values, values, "root")
    out = y_out.alloc()
    y = out[: values.count]
    core.cast(y, values)
    if gamma.dtype is FLOAT16:
        free()
        core.mul(y, y, gamma)
        return out
    core.cast(values, y)
    core.cast(work, gamma)
    core.mul(values, values, work)
    core.cast(y, values)
    free()
    return out
