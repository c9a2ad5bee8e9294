"""To go: what :mod:`npusim.kernel.matmul` and `cube_core` say of a core, for a builder.

Products on the cube: operands through L1 and L0 into L0C, a base tile at a time.

A *feed* loads pieces of an operand into L1 as Nz, :class:`L0Pair` loads parts of two such pieces
into L0A and L0B and multiplies them, and :class:`CubeWriter` does this for base tiles, step after
step of k. Everything is double buffered: L1 and L0 always, L0C where the tile asks for it. Steps of
k follow each other in ascending order, so a base tile's sum is that of the whole row and column
(asc-devkit, the Matmul API's Norm and MDL schedules). Two options of that API are options here:

* the unit flag, by which the fixpipe empties L0C behind the last Mmad of a tile, and the first one
  of the next tile fills it behind the fixpipe (asc-devkit, the guide's page on UnitFlag);
* the k stagger, by which cores begin at different pieces of k and go round, so that those that
  share rows or columns read different lines at a time (asc-devkit, k_loop_mdl_reorder.h). Sums of
  floats then are in another order on each core; those of integers do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import lcm
from typing import NamedTuple, Protocol

from npusim.data.dtypes import FLOAT32, INT4, INT8, INT32, UINT64, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Fixpipe,
    Global,
    Load,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    Mmad,
)
from npusim.kernel.builder import Builder, kernel_line
from npusim.kernel.cube_core import MmadInit
from npusim.kernel.matmul import BaseTile
from npusim.kernel.matrices import GmMatrix, GmTile, l1_bytes, l1_rows
from npusim.kernel.queues import ProgramError, Queue, Slot
from npusim.kernel.views import GmView, load

__all__ = [
    "BaseTile",
    "CubeWriter",
    "Feed",
    "GmFeed",
    "GmMatrix",
    "GmOperand",
    "GmTile",
    "L0Pair",
    "L1Operand",
    "MmadInit",
    "Tables",
    "l1_bytes",
    "l1_rows",
    "load_data",
]

__kernel_vocabulary__ = True


class Feed(Protocol):
    """Loads pieces of one operand into L1."""

    @property
    def producer(self) -> Pipe:
        """The pipe that writes L1."""

    @property
    def k_is_first(self) -> bool:
        """Whether k is the first axis of the matrix in L1."""

    @property
    def dtype(self) -> DType:
        """The element type in L1."""

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        """Write positions [k, k + count) for *extent* rows (or columns) of the tile into *slot*."""


class GmOperand:
    """What every feed keeps of an operand in global memory."""

    def __init__(self, builder: Builder, gm_matrix: GmMatrix) -> None:
        self._builder, self.gm_matrix = builder, gm_matrix

    @property
    def k_is_first(self) -> bool:
        return self.gm_matrix.k_is_first

    @property
    def dtype(self) -> DType:
        return self.gm_matrix.dtype


class GmFeed(GmOperand):
    """From global memory by mte2: ND becomes Nz on the way, FRACTAL_NZ is copied as it is."""

    producer: Pipe = "mte2"

    def load(self, slot: Slot, k: int, count: int, extent: int, origin: int = 0) -> None:
        """As :class:`Feed` says, for rows (or columns) from *origin* on."""
        gm_matrix, width = self.gm_matrix, c0(self.dtype)
        # (rows, columns) of the piece in global memory.
        rows, columns = (count, extent) if self.k_is_first else (extent, count)
        rows_padded = l1_rows(self.dtype, rows, self.k_is_first)
        blocks_n = ceil_div(columns, width)
        # Nz in L1: (blocks_n, rows_padded, C0)
        dst = slot.of(self.dtype, blocks_n * rows_padded * width)
        if gm_matrix.layout == "ND":
            row, column = (k, origin) if self.k_is_first else (origin, k)
            piece = gm_matrix.view[row : row + rows, column : column + columns]
            self._builder.emit(LoadNd2Nz(dst, piece.operand, rows_padded))
            return
        rows = min(align_up(rows, FRACTAL_ROWS), rows_padded)
        # A burst is a column of fractals: (rows, 32 bytes), nz_stride_bytes apart in global memory.
        offset, stride = gm_matrix.shift_k(k) + gm_matrix.shift(origin), gm_matrix.nz_stride_bytes
        src = Global(gm_matrix.name, offset, rows * BLOCK_BYTES, blocks_n, stride)
        self._builder.emit(Load(dst, src, rows_padded * BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class L1Operand:
    """A piece of an operand in L1, and where in it a part for L0 begins."""

    slot: Slot
    feed: Feed
    """What has written it."""
    extent: int
    """Rows (or columns) of the piece."""
    count: int
    """k of the piece."""
    origin: int = 0
    """First row (or column) of the part."""
    k: int = 0
    """First k of the part, from the start of the piece."""

    def at_k(self, k: int) -> L1Operand:
        """The part that begins *k* further on."""
        return replace(self, k=self.k + k)


class _Turn(NamedTuple):
    """What of a product lies between two places of k where both operands begin a piece."""

    m: int
    n: int
    k: int
    init: MmadInit
    begins: bool = True
    """Whether it is the first of its product."""
    ends: bool = True
    """Whether it is the last one."""


class L0Pair:
    """Parts of both operands in L0A and L0B: two are loaded while two others are multiplied."""

    def __init__(self, builder: Builder, dtype: DType, m: int, n: int, k: int) -> None:
        """Claim room for (m, k) and (k, n) of *dtype*, twice; raises ProgramError."""
        self._builder = builder
        m, n, k = align_up(m, FRACTAL_ROWS), align_up(n, FRACTAL_ROWS), align_up(k, c0(dtype))
        # One event for both: the parts in L0B have no queue of their own.
        self._left = builder.queue("l0a", dtype.nbytes(m * k), "mte1", "cube", 2)
        self._right = {
            event: builder.claim("l0b", dtype.nbytes(n * k)) for event in self._left.events
        }

    def multiply(
        self,
        dst: Local,
        a: L1Operand,
        b: L1Operand,
        shape: tuple[int, int, int],
        init: MmadInit = "zero",
        bias: Local | None = None,
        before: Callable[[], None] | None = None,
        unit_flag: bool = False,
    ) -> None:
        """Add *a* times *b* of *shape* (m, n, k) in L0C to what *init* says *dst* begins with.

        *before* writes what comes directly before the Mmad, whose *unit_flag* is as given.
        """
        m, n, k = shape
        slot = self._left.alloc()
        # (m, k) of L1 -> L0A, (k, n) of L1 -> L0B, both by mte1; then (m, n) += in L0C.
        left = self._load_data(slot, a, m, k)
        right = self._load_data(self._right[slot.event], b, n, k)
        self._left.enque(slot)
        slot = self._left.deque()
        if before is not None:
            before()
        self._builder.emit(Mmad(dst, left, right, m, n, k, init, bias, unit_flag))
        self._left.free(slot)

    def _load_data(self, dst: Slot, x: L1Operand, extent: int, k: int) -> Local:
        piece, first = (x.extent, x.count), (x.origin, x.k)
        return load_data(self._builder, dst, x.slot, x.feed, piece, first, (extent, k))


class CubeWriter:
    """Writes products of base tiles for one cube core, or the cube of a coupled core."""

    def __init__(
        self,
        builder: Builder,
        tile: BaseTile,
        a: Feed,
        b: Feed,
        k: int,
        drain: Pipe = "fixpipe",
        *,
        unit_flag: bool = False,
        in_turn: bool = False,
    ) -> None:
        """*k* is the longest product, *drain* the pipe that reads L0C.

        With *unit_flag*, which only a fixpipe can have, `drain` must empty L0C. Without one, each
        Mmad may wait until the one before is over, *in_turn*. Buffers are claimed here; raises
        ProgramError where they do not fit.
        """
        self.builder, self.tile, self.k = builder, tile, k
        # Depth 0: all of k is one piece, which stays in L1.
        depth_a, depth_b = (
            0 if tile.keep == side else depth
            for side, depth in (("a", tile.depth_a), ("b", tile.depth_b))
        )
        self._a = _Side(builder, a, "l0a", tile.m, tile.k * tile.steps_a, k, depth_a)
        self._b = _Side(builder, b, "l0b", tile.n, tile.k * tile.steps_b, k, depth_b)
        self._in_turn = in_turn
        self.dtype = INT32 if a.dtype in (INT8, INT4) else FLOAT32
        self._l0 = L0Pair(builder, a.dtype, tile.m, tile.n, tile.k)
        # Sums in L0C are (n / 16, m, 16), int32 or fp32.
        sums = align_up(tile.m, FRACTAL_ROWS) * align_up(tile.n, FRACTAL_ROWS)
        self._l0c = builder.queue("l0c", self.dtype.nbytes(sums), "cube", drain, tile.l0c_depth)
        # With a unit flag that queue tells that the last Mmad, or the fixpipe, has begun with a
        # buffer, and this one that it is over.
        self._over: Queue | None = None
        if unit_flag:
            self._over = builder.queue("l0c", 0, "cube", drain, tile.l0c_depth)

    def stagger(self, core: int, k: int) -> int:
        """Where *core* begins in a product of *k*: its number modulo the pieces of k in L1.

        Pieces are those of the operand that has the longer ones. Of lengths that are no multiples
        of each other the least common one is taken (assumed).
        """
        step = self.tile.k * lcm(self.tile.steps_a, self.tile.steps_b)
        return core % ceil_div(k, step) * step

    def fetch(self, extent: int, k: int) -> None:
        """Load the operand that stays in L1: all of [0, k) for *extent* rows or columns."""
        (self._a if self.tile.keep == "a" else self._b).fetch(extent, k)

    def prefetch_l2(self, n: int, k: int, pieces: int) -> None:
        """Load the first *pieces* of b into L1 and drop them: they are in the L2 afterwards."""
        for index in range(pieces):
            self._b.advance(index * self.tile.k * self.tile.steps_b, n, k)
            self._b.release()

    def product(
        self,
        m: int,
        n: int,
        k: int,
        *,
        bias: Local | None = None,
        preload: Callable[[Local], None] | None = None,
        first_k: int = 0,
    ) -> Slot:
        """Multiply an (m, k) by a (k, n) tile; returns L0C, ready for the pipe that drains it.

        It starts from *bias* in the bias table, from what *preload* writes into L0C, or from zero,
        at *first_k*, which begins a piece of both operands in L1. Give the slot back with `drain`,
        or with `release` where another pipe than the fixpipe has read it.
        """
        if first_k and "fixpipe" in (self._a.producer, self._b.producer):
            raise ProgramError(
                f"{self.builder.name}: a product of what the fixpipe writes to L1 must begin at "
                f"k = 0, not at {first_k}; leave first_k out"
            )
        total = self._l0c.alloc()
        dst = total.of(self.dtype, align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS))
        # 310P has no bias table: sums start from rows of bias that the vector pipe wrote to L0C.
        if preload is not None:
            preload(dst)
        init: MmadInit = "accumulate" if preload else "bias" if bias else "zero"
        turns = self._turns(first_k, k)
        if len(turns) == 1:
            starts = *range(first_k, k, self.tile.k), *range(0, first_k, self.tile.k)
            self._turn(_Turn(m, n, k, init), starts, total, dst, bias)
        for number, (start, count) in enumerate(turns if len(turns) > 1 else ()):
            # Only the first one starts the sums; the others add to them.
            begins, ends = number == 0, number == len(turns) - 1
            turn = _Turn(m, n, count, init if begins else "accumulate", begins, ends)
            write = partial(self._turn, turn, range(0, count, self.tile.k), total, dst, bias)
            key = self, turn, dst, bias, self._matrices, kernel_line()
            self.builder.call_part(key, self._shifts(start), write)
        if self._over is None:
            self._l0c.enque(total)
        else:
            (over,) = self._over.in_use
            self._over.enque(over)
        return self._l0c.deque()

    @cached_property
    def _turn_k(self) -> int | None:
        """The k after which pieces of both operands begin anew: a turn.

        None where what it writes depends on where it begins otherwise than by places of global
        memory.
        """
        feeds = [side.feed for side in (self._a, self._b) if side.has_turns]
        names = {feed.gm_matrix.name for feed in feeds if isinstance(feed, GmOperand)}
        step = lcm(self.tile.steps_a, self.tile.steps_b) * self.tile.k
        is_whole = not any(step % c0(feed.dtype) for feed in feeds)
        return step if is_whole and len(names) == 2 else None

    def _turns(self, first_k: int, k: int) -> list[tuple[int, int]]:
        """Where in [0, *k*) turns begin, from *first_k* round, and their k; one if none can."""
        step = self._turn_k
        if step is None or first_k % step:
            return [(first_k, k)]
        starts = (*range(first_k, k, step), *range(0, first_k, step))
        return [(start, min(step, k - start)) for start in starts]

    @property
    def _matrices(self) -> tuple[GmMatrix, ...]:
        """Operands in global memory, which may be other ones from product to product."""
        feeds = [side.feed for side in (self._a, self._b)]
        return tuple(feed.gm_matrix for feed in feeds if isinstance(feed, GmOperand))

    def _shifts(self, k: int) -> dict[str, int]:
        """How much further a turn that begins at *k* finds its operands in global memory."""
        return {operand.name: operand.shift_k(k) for operand in self._matrices}

    def _turn(
        self, turn: _Turn, starts: Sequence[int], total: Slot, dst: Local, bias: Local | None
    ) -> None:
        """Add the steps of k that begin at *starts* to *dst*, which is in *total*."""
        init = turn.init
        for start in starts:
            hand_over = None
            if self._over is not None and turn.ends and start == starts[-1]:
                hand_over = partial(self._l0c.enque, total)
            shape = turn.m, turn.n, turn.k
            self._step(dst, shape, start, init, bias if init == "bias" else None, hand_over)
            init = "accumulate"
            if self._over is not None and turn.begins and start == starts[0]:
                # The first Mmad follows the fixpipe, so it is over no sooner than that.
                self._over.alloc()
        self._a.release()
        self._b.release()

    def _step(
        self,
        dst: Local,
        shape: tuple[int, int, int],
        start: int,
        init: MmadInit,
        bias: Local | None,
        hand_over: Callable[[], None] | None,
    ) -> None:
        """Add the step of k that begins at *start* to *dst*; *shape* is that of the product."""
        m, n, k = shape
        count = min(self.tile.k, k - start)
        # Both pieces are given back before mte1 waits for the next one of either.
        self._a.leave(start)
        self._b.leave(start)
        self._a.advance(start, m, k)
        self._b.advance(start, n, k)
        # (m, count) @ (count, n) -> (m, n)
        a, b = self._a.operand(start, m), self._b.operand(start, n)
        unit_flag = self._over is not None
        before = partial(self.builder.barrier, "cube") if self._in_turn else hand_over
        self._l0.multiply(dst, a, b, (m, n, count), init, bias, before, unit_flag)

    def drain(self, total: Slot, op: Fixpipe) -> None:
        """Let *op* read L0C, and give the slot back."""
        if self._over is None:
            self.builder.emit(op)
            self._l0c.free(total)
            return
        self._l0c.free(total)
        self.builder.emit(replace(op, unit_flag=True))
        self._over.free(self._over.deque())

    def release(self, total: Slot) -> None:
        """L0C has been read."""
        self._l0c.free(total)


class _Side:
    """The pieces of one operand that are in L1."""

    def __init__(
        self, builder: Builder, feed: Feed, l0: str, extent: int, step: int, k: int, depth: int
    ) -> None:
        """L1 holds *depth* pieces of *step*, or all of *k* if *depth* is 0."""
        self._builder, self.feed, self._l0, self._step = builder, feed, l0, step
        self.producer = feed.producer
        # A piece that the cube computes itself is requested one piece ahead: mte1 and the cube work
        # on the piece before while the fixpipe writes this one to L1.
        self._ahead = step if feed.producer == "fixpipe" else 0
        longest = min(step, align_up(k, c0(feed.dtype))) if depth else k
        nbytes = l1_bytes(feed.dtype, extent, longest, feed.k_is_first)
        self._queue: Queue | None = None
        self._slot: Slot | None = None
        if depth:
            self._queue = builder.queue("l1", nbytes, feed.producer, "mte1", depth)
        else:
            self._slot = builder.claim("l1", nbytes)
            self._step = align_up(k, step)
        self._first = 0
        self._count = 0

    @property
    def has_turns(self) -> bool:
        """Whether its pieces are alike but for their places in global memory."""
        return self._queue is not None and isinstance(self.feed, GmOperand)

    def fetch(self, extent: int, k: int) -> None:
        assert self._slot is not None
        self._builder.sync("mte1", self.feed.producer)
        self.feed.load(self._slot, 0, k, extent)
        self._builder.sync(self.feed.producer, "mte1")
        self._count = k

    def leave(self, k: int) -> None:
        """Give the piece in L1 back if position *k* begins another one."""
        if not k % self._step:
            self.release()

    def advance(self, k: int, extent: int, end: int) -> None:
        """Make sure that position *k* is in L1."""
        # A piece is loaded when its first position is needed; it serves *step* positions of k.
        if self._queue is None or k % self._step:
            return
        self.release()
        # Ahead: pieces 0 and 1 are loaded at k = 0, then piece i + 1 at the first k of piece i.
        first = k + self._ahead if k else 0
        for start in range(first, min(k + self._ahead + 1, end), self._step):
            slot = self._queue.alloc()
            self.feed.load(slot, start, min(self._step, end - start), extent)
            self._queue.enque(slot)
        self._first, self._count = k, min(self._step, end - k)
        self._slot = self._queue.deque()

    def release(self) -> None:
        """The piece in L1 is not needed any more."""
        if self._queue is not None and self._slot is not None:
            self._queue.free(self._slot)
            self._slot = None

    def operand(self, k: int, extent: int) -> L1Operand:
        """The piece in L1, *extent* rows or columns, to be read from position *k* on."""
        assert self._slot is not None
        return L1Operand(self._slot, self.feed, extent, self._count, k=k - self._first)


def load_data(
    builder: Builder,
    dst: Slot,
    src: Slot,
    feed: Feed,
    l1_shape: tuple[int, int],
    origin: tuple[int, int],
    shape: tuple[int, int],
) -> Local:
    """Load *shape* from *origin* on into L0, out of the *l1_shape* that *feed* has put into L1.

    Each is rows (or columns) and k.
    """
    width, transpose = c0(feed.dtype), feed.k_is_first
    rows, columns = l1_shape[::-1] if transpose else l1_shape
    # Nz in L1: (columns / C0, rows_padded, C0). L0 receives whole fractals of it.
    rows_padded = l1_rows(feed.dtype, rows, transpose)
    matrix = src.of(feed.dtype, rows_padded * align_up(columns, width))
    local = dst.of(feed.dtype, align_up(shape[0], FRACTAL_ROWS) * align_up(shape[1], width))
    # LoadData counts rows and columns of the matrix in L1: (k, extent) if it is transposed.
    first, extents = (origin[::-1], shape[::-1]) if transpose else (origin, shape)
    builder.emit(LoadData(local, matrix, rows_padded, *first, *extents, transpose))
    return local


class Tables:
    """Vectors along n for the cube and the fixpipe: the bias, and quantisation parameters."""

    def __init__(
        self, builder: Builder, n: int, bias: DType | None = None, scale: bool = False
    ) -> None:
        """Claim room for *n* columns of a *bias* of that type, and of 64-bit scales."""
        self._builder = builder
        self._table: Slot | None = None
        """The bias table while a bias is there."""
        if bias is not None:
            self._table_dtype = INT32 if bias is INT32 else FLOAT32
            # The bias table is written in units of 64 bytes.
            table_bytes = align_up(self._table_dtype.nbytes(n), 64)
            self._bias_l1 = builder.queue("l1", bias.nbytes(n), "mte2", "mte1")
            self._bt = builder.queue("bt", table_bytes, "mte1", "cube")
        if scale:
            self._scale_l1 = builder.queue("l1", UINT64.nbytes(n), "mte2", "fixpipe")
            self._fb = builder.claim("fb", UINT64.nbytes(n))

    def take_bias(self, bias: GmView) -> Local:
        """Load *bias* `(n,)` into the bias table, for the cube; free it with `drop_bias`."""
        # float16 becomes float32 between L1 and the table.
        slot = load(self._builder, self._bias_l1, bias)
        table = self._bt.alloc()
        numbers = table.of(self._table_dtype, bias.columns)
        self._builder.emit(LoadTable(numbers, slot.of(bias.dtype, bias.columns)))
        self._bias_l1.free(slot)
        self._bt.enque(table)
        self._table = self._bt.deque()
        return numbers

    def drop_bias(self) -> None:
        """The bias has been added, if there was one."""
        if self._table is not None:
            self._bt.free(self._table)
            self._table = None

    def take_scale(self, scale: GmView) -> Local:
        """Load *scale* `(n,)`, 64 bits each, into the fixpipe buffer."""
        slot = load(self._builder, self._scale_l1, scale)
        numbers = self._fb.of(UINT64, scale.columns)
        self._builder.emit(LoadTable(numbers, slot.of(UINT64, scale.columns)))
        self._scale_l1.free(slot)
        return numbers
