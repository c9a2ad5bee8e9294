"""Products on the cube: operands through L1 and L0 into L0C, a base tile at a time.

A *feed* loads pieces of an operand into L1 as Nz, :class:`~npusim.kernel.cube_core.L0Pair` loads
parts of two such pieces into L0A and L0B and multiplies them, and :class:`Matmul` does this for
base tiles, one step of k after another. L1 and L0 are always double buffered, L0C where the tile
asks for it. Steps of k are in ascending order, so the sum of a base tile equals that of the whole
row and column (asc-devkit, the Matmul API's Norm and MDL schedules). Two options of that API are
available here:

* the unit flag, by which the fixpipe drains L0C right behind the last Mmad of a tile, and the first
  Mmad of the next tile fills it right behind the fixpipe (asc-devkit, the guide's page on
  UnitFlag);
* the k stagger, by which cores start at different pieces of k and wrap around, so that cores that
  share rows or columns read different lines at a time (asc-devkit, k_loop_mdl_reorder.h). Sums of
  floats are then in a different order on each core; those of integers do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import lcm
from typing import Literal, NamedTuple, Protocol

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import c0
from npusim.devices.schema import Pipe
from npusim.isa import Local, QuantMode
from npusim.kernel.builder import kernel_line
from npusim.kernel.core import TileQueue
from npusim.kernel.cube_core import BiasTable, CubeCore, L0Pair, MmadInit, sums_dtype
from npusim.kernel.matrices import GmMatrix, GmTile, L1Matrix, l0c_elements, l1_elements
from npusim.kernel.queues import ProgramError
from npusim.kernel.views import GmView

__all__ = ["BaseTile", "Feed", "GmFeed", "GmOperand", "Matmul"]

__kernel_vocabulary__ = True


@dataclass(frozen=True, slots=True)
class BaseTile:
    """Sizes of the tiles of one core."""

    m: int
    n: int
    k: int
    """L0A holds m x k, L0B k x n, L0C m x n."""
    steps_a: int = 1
    steps_b: int = 1
    """How many L0 steps of k a piece in L1 holds."""
    l0c_depth: int = 1
    keep: Literal["a", "b"] | None = None
    """The operand of which all of k stays in L1 until it is fetched again."""
    depth_a: int = 2
    depth_b: int = 2
    """Buffers for pieces in L1."""


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

    def load(self, tile: Local, k: int, count: int, extent: int) -> None:
        """Write positions [k, k + count) for *extent* rows (or columns) of the tile into L1."""


class GmOperand:
    """State shared by all feeds of an operand in global memory."""

    def __init__(self, matrix: GmMatrix) -> None:
        self.matrix = matrix

    @property
    def k_is_first(self) -> bool:
        return self.matrix.k_is_first

    @property
    def dtype(self) -> DType:
        return self.matrix.dtype


class GmFeed(GmOperand):
    """Feed from global memory by mte2: ND becomes Nz on the way, FRACTAL_NZ is copied unchanged."""

    producer: Pipe = "mte2"

    def __init__(self, core: CubeCore, matrix: GmMatrix) -> None:
        super().__init__(matrix)
        self._core = core

    def load(self, tile: Local, k: int, count: int, extent: int) -> None:
        """Load the piece into *tile*, see :class:`Feed`."""
        self._core.load_matrix(tile, self.matrix, extent, count, k)


class _Turn(NamedTuple):
    """The part of a product between two values of k at which both operands begin a new piece."""

    m: int
    n: int
    k: int
    init: MmadInit
    begins: bool = True
    """Whether it is the first of its product."""
    ends: bool = True
    """Whether it is the last one."""


class Matmul:
    """Products of base tiles on a cube core, or on the cube unit of a coupled core (Matmul)."""

    def __init__(
        self,
        core: CubeCore,
        tile: BaseTile,
        a: Feed | GmMatrix,
        b: Feed | GmMatrix,
        k: int,
        drain: Pipe = "fixpipe",
        *,
        bias: DType | None = None,
        unit_flag: bool = False,
        in_turn: bool = False,
    ) -> None:
        """Claim buffers; *k* is the longest product, *drain* the pipe that reads L0C.

        A matrix in global memory is loaded by mte2. *bias* is the type of the bias from which
        products may start. *unit_flag* requires a fixpipe as drain, and `fixpipe` must then drain
        L0C. Without it, *in_turn* makes each Mmad wait until the one before has finished. Raises
        ProgramError where the buffers do not fit.
        """
        self.core, self.tile, self.k = core, tile, k
        feed_a = GmFeed(core, a) if isinstance(a, GmMatrix) else a
        feed_b = GmFeed(core, b) if isinstance(b, GmMatrix) else b
        # Depth 0: all of k is one piece, which stays in L1.
        depth_a, depth_b = (
            0 if tile.keep == side else depth
            for side, depth in (("a", tile.depth_a), ("b", tile.depth_b))
        )
        self._a = _Side(core, feed_a, tile.m, tile.k * tile.steps_a, k, depth_a)
        self._b = _Side(core, feed_b, tile.n, tile.k * tile.steps_b, k, depth_b)
        self._in_turn = in_turn
        self.dtype = sums_dtype(feed_a.dtype)
        self._l0 = L0Pair(core, feed_a.dtype, tile.m, tile.n, tile.k)
        self._l0c = core.l0c_queue(self.dtype, tile.m, tile.n, tile.l0c_depth, drain=drain)
        # With a unit flag that queue signals that the last Mmad, or the fixpipe, has started on a
        # buffer, and this one that it has finished.
        self._over = core.queue("l0c", 0, "cube", drain, tile.l0c_depth) if unit_flag else None
        self._bias = BiasTable(core, tile.n, bias) if bias is not None else None

    def stagger(self, core: int, k: int) -> int:
        """Where *core* begins in a product of *k*: its number modulo the pieces of k in L1.

        Pieces are those of the operand with the longer ones. If neither length is a multiple of the
        other, their least common multiple is used (assumed).
        """
        step = self.tile.k * lcm(self.tile.steps_a, self.tile.steps_b)
        return core % ceil_div(k, step) * step

    def fetch(self, operand: GmTile) -> None:
        """Load the resident operand into L1: all of k for the rows or columns of *operand*."""
        (self._a if self.tile.keep == "a" else self._b).fetch(operand.extent, operand.k)

    def prefetch_l2(self, n: int, k: int, pieces: int) -> None:
        """Load the first *pieces* of b into L1 and discard them, which puts them in the L2."""
        for index in range(pieces):
            self._b.advance(index * self.tile.k * self.tile.steps_b, n, k)
            self._b.release()

    def use(self, a: GmMatrix, b: GmMatrix) -> None:
        """Make later products read these matrices in global memory, of any sizes that fit."""
        for side, matrix in ((self._a, a), (self._b, b)):
            assert isinstance(side.feed, GmOperand)
            side.feed.matrix = matrix

    def multiply(
        self,
        m: int,
        n: int,
        k: int,
        *,
        bias: GmView | Local | None = None,
        preload: Callable[[Local], None] | None = None,
        first_k: int = 0,
    ) -> Local:
        """Multiply an (m, k) by a (k, n) tile; return the sums in L0C, for the draining pipe.

        They start from *bias* `(n,)`, in global memory or already in the bias table, from what
        *preload* writes into L0C, or from zero. k starts at *first_k*, where a piece of both
        operands in L1 must begin. `fixpipe` stores the sums; `free` them when another pipe has read
        them.
        """
        if first_k and "fixpipe" in (self._a.feed.producer, self._b.feed.producer):
            raise ProgramError(
                f"{self.core.name}: a product of what the fixpipe writes to L1 must begin at "
                f"k = 0, not at {first_k}; leave first_k out"
            )
        if not isinstance(bias, GmView):
            return self._multiply(m, n, k, bias, preload, first_k)
        if self._bias is None:
            raise ProgramError(
                f"{self.core.name}: a product that starts from {bias.name} must have a bias table, "
                f"but has none; name the type of the bias where the Matmul is made"
            )
        start = self._bias.take(bias)
        sums = self._multiply(m, n, k, start, preload, first_k)
        self._bias.drop(start)
        return sums

    def _multiply(
        self,
        m: int,
        n: int,
        k: int,
        bias: Local | None,
        preload: Callable[[Local], None] | None,
        first_k: int,
    ) -> Local:
        sums = self._l0c.alloc()[: l0c_elements(m, n)]
        # 310P has no bias table: sums start from rows of bias that the vector pipe wrote to L0C.
        if preload is not None:
            preload(sums)
        init: MmadInit = "accumulate" if preload else "bias" if bias else "zero"
        turns = self._turns(first_k, k)
        if len(turns) == 1:
            starts = *range(first_k, k, self.tile.k), *range(0, first_k, self.tile.k)
            self._turn(_Turn(m, n, k, init), starts, sums, bias)
        for number, (start, count) in enumerate(turns if len(turns) > 1 else ()):
            # Only the first turn initialises the sums; the others add to them.
            begins, ends = number == 0, number == len(turns) - 1
            turn = _Turn(m, n, count, init if begins else "accumulate", begins, ends)
            write = partial(self._turn, turn, range(0, count, self.tile.k), sums, bias)
            key = self, turn, sums, bias, self._matrices, kernel_line()
            self.core.call_part(key, self._shifts(start), write)
        if self._over is None:
            self._l0c.enque(sums)
        else:
            (over,) = self._over.in_use
            self._over.enque(over)
        return self._l0c.deque()[: sums.count]

    @cached_property
    def _turn_k(self) -> int | None:
        """The k after which both operands begin a new piece: the length of a turn.

        None where the micro-ops of a turn depend on its start in more than offsets into global
        memory.
        """
        feeds = [side.feed for side in (self._a, self._b) if side.has_turns]
        names = {feed.matrix.name for feed in feeds if isinstance(feed, GmOperand)}
        step = lcm(self.tile.steps_a, self.tile.steps_b) * self.tile.k
        is_whole = not any(step % c0(feed.dtype) for feed in feeds)
        return step if is_whole and len(names) == 2 else None

    def _turns(self, first_k: int, k: int) -> list[tuple[int, int]]:
        """Start and k of each turn in [0, *k*), wrapping round from *first_k*; one if none can."""
        step = self._turn_k
        if step is None or first_k % step:
            return [(first_k, k)]
        starts = (*range(first_k, k, step), *range(0, first_k, step))
        return [(start, min(step, k - start)) for start in starts]

    @property
    def _matrices(self) -> tuple[GmMatrix, ...]:
        """Operands in global memory, which may differ from product to product."""
        feeds = [side.feed for side in (self._a, self._b)]
        return tuple(feed.matrix for feed in feeds if isinstance(feed, GmOperand))

    def _shifts(self, k: int) -> dict[str, int]:
        """Shifts of the operands in global memory for a turn that begins at *k*."""
        return {operand.name: operand.shift_k(k) for operand in self._matrices}

    def _turn(self, turn: _Turn, starts: Sequence[int], sums: Local, bias: Local | None) -> None:
        """Add the steps of k that begin at *starts* to *sums*."""
        init = turn.init
        for start in starts:
            hand_over = None
            if self._over is not None and turn.ends and start == starts[-1]:
                hand_over = partial(self._l0c.enque, sums)
            shape = turn.m, turn.n, turn.k
            self._step(sums, shape, start, init, bias if init == "bias" else None, hand_over)
            init = "accumulate"
            if self._over is not None and turn.begins and start == starts[0]:
                # The first Mmad follows the fixpipe, so it cannot finish earlier.
                self._over.alloc()
        self._a.release()
        self._b.release()

    def _step(
        self,
        sums: Local,
        shape: tuple[int, int, int],
        start: int,
        init: MmadInit,
        bias: Local | None,
        hand_over: Callable[[], None] | None,
    ) -> None:
        """Add the step of k that begins at *start* to *sums*; *shape* is that of the product."""
        m, n, k = shape
        count = min(self.tile.k, k - start)
        # Both pieces are released before mte1 waits for the next one of either.
        self._a.leave(start)
        self._b.leave(start)
        self._a.advance(start, m, k)
        self._b.advance(start, n, k)
        # (m, count) @ (count, n) -> (m, n)
        a, b = self._a.operand(start, m), self._b.operand(start, n)
        before = partial(self.core.barrier, "cube") if self._in_turn else hand_over
        has_flag = self._over is not None
        self._l0.multiply(sums, a, b, (m, n, count), init, bias, before=before, unit_flag=has_flag)

    def fixpipe(
        self,
        dst: GmView,
        sums: Local,
        mode: QuantMode | None = None,
        scale: Local | int | None = None,
        *,
        atomic: bool = False,
    ) -> None:
        """Store *sums* to *dst* and free them; see :meth:`~.cube_core.CubeCore.fixpipe`."""
        if self._over is None:
            self.core.fixpipe(dst, sums, mode, scale, atomic=atomic)
            self._l0c.free(sums)
            return
        self._l0c.free(sums)
        self.core.fixpipe(dst, sums, mode, scale, atomic=atomic, unit_flag=True)
        self._over.free(self._over.deque())

    def free(self, sums: Local) -> None:
        """Free *sums*, which a pipe other than the fixpipe has read."""
        self._l0c.free(sums)


class _Side:
    """The pieces of one operand that are in L1."""

    def __init__(
        self, core: CubeCore, feed: Feed, extent: int, step: int, k: int, depth: int
    ) -> None:
        """L1 holds *depth* pieces of *step*, or all of *k* if *depth* is 0."""
        self._core, self.feed, self._step = core, feed, step
        # A piece that the cube computes itself is requested one piece ahead: mte1 and the cube work
        # on the previous piece while the fixpipe writes this one to L1.
        self._ahead = step if feed.producer == "fixpipe" else 0
        longest = min(step, align_up(k, c0(feed.dtype))) if depth else k
        count = l1_elements(feed.dtype, extent, longest, feed.k_is_first)
        self._queue: TileQueue | None = None
        self._piece: Local | None = None
        if depth:
            self._queue = core.tiles(feed.dtype, count, feed.producer, "mte1", depth, "l1")
        else:
            self._piece = core.tile(feed.dtype, count, "l1")
            self._step = align_up(k, step)
        self._first = 0
        self._count = 0

    @property
    def has_turns(self) -> bool:
        """Whether its pieces differ only in their offsets in global memory."""
        return self._queue is not None and isinstance(self.feed, GmOperand)

    def fetch(self, extent: int, k: int) -> None:
        assert self._piece is not None
        self._core.sync("mte1", self.feed.producer)
        self.feed.load(self._piece, 0, k, extent)
        self._core.sync(self.feed.producer, "mte1")
        self._count = k

    def leave(self, k: int) -> None:
        """Release the piece in L1 if position *k* begins another one."""
        if not k % self._step:
            self.release()

    def advance(self, k: int, extent: int, end: int) -> None:
        """Load the piece with position *k* into L1, unless it is there."""
        # A piece is loaded when its first position is needed, and serves *step* positions of k.
        if self._queue is None or k % self._step:
            return
        self.release()
        # Ahead: pieces 0 and 1 are loaded at k = 0, then piece i + 1 at the first k of piece i.
        first = k + self._ahead if k else 0
        for start in range(first, min(k + self._ahead + 1, end), self._step):
            piece = self._queue.alloc()
            self.feed.load(piece, start, min(self._step, end - start), extent)
            self._queue.enque(piece)
        self._first, self._count = k, min(self._step, end - k)
        self._piece = self._queue.deque()

    def release(self) -> None:
        """Release the piece in L1."""
        if self._queue is not None and self._piece is not None:
            self._queue.free(self._piece)
            self._piece = None

    def operand(self, k: int, extent: int) -> L1Matrix:
        """The piece in L1, *extent* rows or columns, to be read from position *k* on."""
        assert self._piece is not None
        return L1Matrix(self._piece, extent, self._count, self.feed.k_is_first, k=k - self._first)
