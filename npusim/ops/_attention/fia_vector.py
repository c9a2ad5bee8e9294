"""The first half of a vector core's work in FIA: scores to weights, and the state of rows.

.. code-block:: text

    s = scores * scale, hidden ones -1e12        some rows at a time, 8192 elements
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m');  l' = e * l + sum(p)
    weights = p in 16 bits, ties away from zero

The steps are those of SoftmaxFlashV2 of asc-devkit (impl/adv_api/detail/activation/softmax) in
update mode; a mask is converted to fp16, compared with 0, and used to select (SelectWithBytesMask
there). The unified buffer has 64 KiB for scores, products and sums as input, twice 16 KiB for
masks, 32 and 8 KiB for output, and 32 KiB of scratch (ops-transformer@3a280bc
attention/common/op_kernel/arch22, fia_block_vec_nonquant.h). The layout of the scratch is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT16, UINT8
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel.core import TileQueue
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Column, Step, column_of
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import WidePlane, by_rows, reduce_rows
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import Rows, RowTile, Run
from npusim.ops._attention.places import Memory, Part, joined
from npusim.ops._attention.problem import MASK_EXTENT

SCORES_READY, WEIGHTS_READY, PRODUCT_READY = 7, 8, 9
"""Flags: from the cube to the vector cores, from these to the cube, and from the cube again."""
COUNT = 8192
"""float32 elements at a time."""
ROWS_OF_LOOP = 8
"""If state is one number per row, loops take multiples of this many rows, whole blocks of state:
an assumed reading of the rule that tiles of many rows do."""
SPLIT_ROWS = 16
"""Up to this many rows are not split between the two vector cores of a group."""
COMPARED = 128
"""fp16 elements in a repeat; Compare takes full ones."""
BLOCK = 8
"""float32 in a data block."""
STATE_ROWS = 256
"""Most rows of a vector core."""
Stage = Callable[..., None]
BEFORE, FIRST, SECOND, TURNS = 0, 1, 5, 3
"""Order of a core's work: before a tile, at its first half, and at its second one, which follows
the first half of the next tile; those of the next tile come TURNS later."""


def rows_of_half(rows: int, half: int) -> tuple[int, int]:
    """The first row of a tile of *rows* that vector core *half* has, and how many.

    >>> [rows_of_half(rows, 1) for rows in (16, 17, 512)]
    [(16, 0), (16, 1), (256, 256)]
    """
    first = rows
    if rows > SPLIT_ROWS:
        units = (rows + SPLIT_ROWS - 1) // SPLIT_ROWS
        first = (units + 1) // 2 * SPLIT_ROWS
    return (0, first) if half == 0 else (first, rows - first)


def step_of(parts: Sequence[Part], turn: int, cores: int, stage: Stage, *arguments: Any) -> Step:
    """The work of *cores* of each group on *parts*."""
    core = np.array([cores * x.tile.core + x.half for x in parts], np.int64)
    order = np.array([TURNS * x.tile.number + turn for x in parts], np.int64)
    return Step(stage, arguments, core, order, keeps_slots=cores == 1)


class Vector:
    """A vector core and its whole unified buffer."""

    def __init__(self, spec: DeviceSpec, memory: Memory, core: VectorCore | None = None) -> None:
        """*core* has no buffers yet; None makes one."""
        self.memory, self.a = memory, memory.plan.rows.a
        self.core = core = core or VectorCore("fia", spec, "aiv")
        self.wide_in = core.vecin(FLOAT32, COUNT, 2)
        self.mask_in = core.vecin(FLOAT32, COUNT // 2)
        self.second_in = core.vecin(FLOAT32, COUNT // 2)
        """Sums of pieces; their maxima use the queue of masks."""
        self.wide_out = core.vecout(FLOAT32, COUNT)
        self.small_out = core.vecout(FLOAT32, COUNT // 4)
        self.between = between = core.tile(FLOAT32, COUNT)
        """Scratch."""
        self.lanes = between[: COUNT * 3 // 4]
        """Running sums; before that the mask as fp16, and its bits."""
        self.half_mask = between.as_dtype(FLOAT16, COUNT)
        self.mask_bits = between.at(COUNT // 2, COUNT // 16).as_dtype(UINT8)
        self.blocks = between[COUNT * 3 // 4 :]
        """One block per row."""
        self.row = core.tile(FLOAT32, STATE_ROWS)
        self.parts = tuple(
            Part(tile, *rows_of_half(tile.piece.row_tile.rows, half), half)
            for half in range(VECTOR_CORES)
            for tile in memory.plan.tiles
        )
        self.state = State(self, ("largest", "total", "faded"))

    def raise_flags(self) -> None:
        """Set the flags of buffers that not every tile uses, as if they had been read before.

        So all tiles find the queues in the same state, and share their programs.
        """
        for queue in (self.mask_in, self.small_out):
            queue.enque(queue.alloc())
            queue.free(queue.deque())

    def loops(self, keys: int, rows: int) -> Iterator[tuple[int, int]]:
        """First row and rows of each part of *rows* with *keys* columns that fits the buffers."""
        most = COUNT // align_up(keys, KEYS_ALIGNED)
        if not self.memory.plan.sizes.is_eightfold:
            most = align_down(most, ROWS_OF_LOOP)
        return pieces(rows, max(1, most))


StateName = Literal["largest", "total", "faded", "query", "weights", "power", "factor", "divisor"]


class State:
    """State of the rows of two tiles: a block of eight copies for each, or one float32.

    It holds maxima, sums, and rescaling factors; with digits, the largest magnitudes of queries and
    of weights; with latent keys the factors and divisors of products.
    """

    def __init__(self, vector: Vector, names: tuple[StateName, ...]) -> None:
        """Claim room for each of *names*."""
        self._vector, plan = vector, vector.memory.plan
        self._copies = BLOCK if plan.sizes.is_eightfold else 1
        rows = max(1, *(rows_of_half(vector.memory.max_rows, half)[1] for half in (0, 1)))
        self._tiles = {
            (name, parity): vector.core.tile(FLOAT32, rows * self._copies)
            for name in names
            for parity in range(2)
        }

    def of(self, name: StateName, tile: int, row: int, rows: int) -> Local:
        """The state of rows [row, row + rows) of tile *tile*, in its stored form."""
        return self._tiles[name, tile % 2].at(row * self._copies, rows * self._copies)

    def kept(self, column: Local) -> Local:
        """*column* `(rows,)` in the stored form; in `blocks` if each element has eight copies."""
        return column if self._copies == 1 else self._spread(column)

    def blocks(self, kept: Local) -> Local:
        """*kept* as one block per row, in `blocks` unless it already is."""
        return self._spread(kept) if self._copies == 1 else kept

    def _spread(self, column: Local) -> Local:
        # (rows,) -> (rows, 8)
        blocks = self._vector.blocks[: column.count * BLOCK]
        self._vector.core.brcb(blocks, column)
        return blocks

    def begin(self, parity: int, rows: int, lowest: float) -> None:
        """Initialise maxima and sums of *rows*; maxima start with *lowest*."""
        if rows:
            with self._vector.core.independent():
                self._vector.core.duplicate(self.of("largest", parity, 0, rows), lowest)
                self._vector.core.duplicate(self.of("total", parity, 0, rows), 0.0)


class MaskStep(NamedTuple):
    """Hides some of the scores of a loop."""

    visible: Literal["eq", "ne"]
    """Whether a key is visible where the mask is zero, or where it is not."""
    runs: tuple[tuple[int, GmView], ...]
    """Rows of the mask, and the number of rows of scores for each of them."""
    rectangle: tuple[tuple[int, GmView], ...] = ()
    """The same of a second mask: a key is hidden where both hide it."""


class Softmax:
    """Writes the first half of tiles for a vector core."""

    lowest = float("-inf")
    """Initial value of maxima."""

    def __init__(self, vector: Vector) -> None:
        self._vector, self._core, self._memory = vector, vector.core, vector.memory

    def steps(self) -> list[Step]:
        """The first half of all tiles."""
        parts = self._vector.parts
        ends, odd = [x.tile.is_first for x in parts], [x.tile.number % 2 for x in parts]
        views = (self._memory.slots(name, parts) for name in ("scores", "weights"))
        arguments = np.array(ends, np.bool_), np.array(odd), *views, self.of_loops()
        return [step_of(parts, FIRST, VECTOR_CORES, self._tile, *arguments)]

    def _tile(
        self,
        is_first: bool,
        parity: int,
        scores: GmView,
        weights: GmView,
        more: tuple[Hashable, ...],
    ) -> None:
        """(rows, keys) of scores -> weights; each loop gets its entry of `of_loops`."""
        core = self._core
        core.cross_core_wait_flag("group", "scalar", SCORES_READY)
        if is_first:
            self._vector.state.begin(parity, scores.rows, self.lowest)
        loops = self._vector.loops(scores.columns, scores.rows)
        for (row, rows), own in zip(loops, more, strict=True):
            here, before = slice(row, row + rows), parity if is_first else 1 - parity
            views = scores[here, :], weights[here, :]
            repeat(core, self.rows, parity, before, row, *views, own)
        if not more:
            # A core without rows must not get ahead of the cube either.
            core.sync("mte2", "mte3")
        core.cross_core_set_flag("group", "mte3", WEIGHTS_READY)

    def rows(
        self,
        parity: int,
        before: int,
        row: int,
        scores: GmView,
        weights: GmView,
        masks: Any,
    ) -> None:
        """Process some rows, from *row* on; the state of the previous tile is number *before*."""
        plane = self.scaled(scores, masks)
        self._exponentials(row, parity, before, plane)
        self._store(weights, plane)
        self._add_sums(row, parity, before, plane)
        self._vector.wide_in.free(plane.tile)

    def scaled(self, scores: GmView, masks: Any) -> WidePlane:
        """*scores* times scale, with those hidden by *masks* replaced; free its tile."""
        plane = self._loaded(scores)
        self._core.mul(plane.whole, plane.whole, self._vector.a.scale)
        self._hide_all(plane, masks)
        return plane

    def _loaded(self, scores: GmView) -> WidePlane:
        pitch = align_up(scores.columns, KEYS_ALIGNED)
        tile = self._core.load_rows(self._vector.wide_in, joined(scores), pitch=pitch)
        return WidePlane(tile, scores.rows, scores.columns, pitch)

    def _hide_all(self, plane: WidePlane, masks: tuple[MaskStep, ...]) -> None:
        for mask in masks:
            self.hide(plane, mask, plane.whole, self._vector.a.hidden)

    def _store(self, weights: GmView, plane: WidePlane) -> None:
        """Store *plane* to *weights* in 16 bits."""
        core, vector = self._core, self._vector
        out = vector.wide_out.alloc()
        core.cast(out.as_dtype(vector.a.element, plane.whole.count), plane.whole, "round")
        core.store_rows(vector.wide_out, out, joined(weights), pitch=plane.pitch)

    def differences(self, plane: WidePlane) -> None:
        """Hook for scores less their maximum: does nothing."""

    def _exponentials(self, row: int, parity: int, before: int, plane: WidePlane) -> None:
        """Convert scores of *plane* to exp(scores - running maximum)."""
        core, vector, state = self._core, self._vector, self._vector.state
        place = row, plane.rows
        # (rows, keys) -> (rows,), or (rows, 8) if state is stored that way
        found = vector.row[: plane.rows]
        reduce_rows(core, "max", found, plane, vector.lanes)
        largest = state.kept(found)
        old = state.of("largest", before, *place)
        faded = state.of("faded", parity, *place)
        core.max(largest, old, largest)
        core.sub(faded, old, largest)
        core.exp(faded, faded)
        core.copy(state.of("largest", parity, *place), largest)
        by_rows(core, "sub", plane, state.blocks(largest))
        self.differences(plane)
        core.exp(plane.whole, plane.whole)

    def _add_sums(self, row: int, parity: int, before: int, plane: WidePlane) -> None:
        """Add the sums of rows to the rescaled previous ones."""
        core, vector, state = self._core, self._vector, self._vector.state
        place = row, plane.rows
        found = vector.row[: plane.rows]
        reduce_rows(core, "sum", found, plane, vector.lanes)
        sums = state.kept(found)
        total, old = state.of("total", parity, *place), state.of("total", before, *place)
        core.mul(total, state.of("faded", parity, *place), old)
        core.add(total, total, sums)

    # ---- masks ----

    def of_loops(self) -> Column:
        """The masks of each loop of each part."""
        # They are the same for all heads.
        return column_of(
            (
                (x.tile.piece.row_tile._replace(head=0), x.tile.key, x.tile.keys, x.row, x.rows)
                for x in self._vector.parts
            ),
            self._loops,
        )

    def _loops(
        self, tile: RowTile, key: int, keys: int, first: int, rows: int
    ) -> tuple[Hashable, ...]:
        return self._masks(tile, key, keys, first, rows)

    def _masks(
        self, tile: RowTile, key: int, keys: int, first: int, rows: int
    ) -> tuple[tuple[MaskStep, ...], ...]:
        """The masks of each loop of rows [first, first + rows) of *tile*."""
        return tuple(
            tuple(self._masks_of(tile, key, keys, first + row, count))
            for row, count in self._vector.loops(keys, rows)
        )

    def _masks_of(
        self, tile: RowTile, key: int, keys: int, row: int, count: int
    ) -> Iterator[MaskStep]:
        """The masks for rows [row, row + count) of *tile*; empty if all keys are visible."""
        every, request = self._memory.plan.rows, tile.request
        runs = tuple(every.runs(request, tile.row + row, count))
        if every.mask is not None:
            place = request * every.mask.request + key
            offsets = [place + run.token * every.mask.pitch for run in runs]
            yield mask_step("eq", every.mask.pitch, runs, offsets, keys)
        before, after = self._vector.a.window(request)
        if every.prefix(request) and not every.a.has_own_mask:
            yield from prefix_steps(every, request, runs, key, keys)
            return
        # Tiles of which the mask would hide one key less than none are masked too
        # (IsSkipAttentionmask).
        if after is not None and min(run.token for run in runs) + after < key + keys:
            offsets = [stencil(run.token + after - key, run, keys) for run in runs]
            yield mask_step("eq", MASK_EXTENT, runs, offsets, keys)
        if before is not None and max(run.token + run.tokens - 1 for run in runs) + before > key:
            offsets = [stencil(run.token + before - 1 - key, run, keys) for run in runs]
            yield mask_step("ne", MASK_EXTENT, runs, offsets, keys)

    def hide(self, plane: WidePlane, mask: MaskStep, whole: Local, hidden: float) -> None:
        """Replace scores hidden by *mask* with *hidden*: *whole* has the layout of *plane*."""
        core, vector, pitch = self._core, self._vector, plane.pitch
        tile = self._load_runs(vector.mask_in, mask.runs, pitch)
        if mask.rectangle:
            second = self._load_runs(vector.second_in, mask.rectangle, pitch)
            both = [x.as_dtype(INT16, plane.rows * pitch // 2) for x in (tile, second)]
            core.bitwise("and", both[0], *both)
            vector.second_in.free(second)
        found = tile.as_dtype(FLOAT16)
        if self._memory.plan.rows.by_token:
            found = self._of_heads(found, mask, pitch // 2)
        count = align_up(plane.rows * pitch, COMPARED)
        half, bits = vector.half_mask[:count], vector.mask_bits[: count // 8]
        core.cast(half, found.as_dtype(UINT8, count), "none")
        vector.mask_in.free(tile)
        core.compare(mask.visible, bits, half, 0.0)
        core.select(whole, bits[: whole.count // 8], whole, hidden)

    def _load_runs(
        self, queue: TileQueue, runs: tuple[tuple[int, GmView], ...], pitch: int
    ) -> Local:
        tile, row = queue.alloc(), 0
        for _, view in runs:
            dst = tile.as_dtype(UINT8).at(row * pitch, view.extent_bytes(pitch))
            self._core.data_copy(dst, view.operand, pitch if view.rows > 1 else 0)
            row += view.rows
        queue.enque(tile)
        return queue.deque()

    def _of_heads(self, tile: Local, mask: MaskStep, pitch: int) -> Local:
        """Copy the mask row of each token for each of its heads, behind the rows in *tile*.

        Rows are *pitch* apart. Each token takes a separate Copy, in a loop that delays masks of
        many rows (AttentionmaskCopyInForSgLayout in attention/common/op_kernel/vector_common.h).
        """
        every, token, row = tile.at(COUNT // 2, COUNT // 2), 0, 0
        for copies, view in mask.runs:
            for _ in range(view.rows):
                for _ in range(copies):
                    self._core.copy(every.at(row, pitch), tile.at(token, pitch))
                    row += pitch
                token += pitch
        return every


def stencil(edge: int, run: Run, keys: int) -> int:
    """Offset in the triangle for a run whose first token sees keys up to *edge* of a tile.

    Beyond the triangle's end there is a row that hides nothing of the tile, or a column that hides
    all of it from all tokens of the run.
    """
    if edge >= 0:
        return min(edge, MASK_EXTENT - run.tokens) * MASK_EXTENT
    return min(-edge, MASK_EXTENT - keys)


def prefix_steps(
    every: Rows, request: int, runs: tuple[Run, ...], key: int, keys: int
) -> Iterator[MaskStep]:
    """The mask of a right-down causal call with a prefix; none if all keys are visible.

    Tokens up to one see the prefix, later ones what is causal; a loop with both takes two masks.
    """
    a, prefix = every.a, every.prefix(request)
    apart = a.kv_lengths[request] - a.query_lengths[request]
    first = min(run.token for run in runs)
    end = max(run.token + run.tokens for run in runs)
    if first + apart >= key + keys or prefix >= key + keys:
        return
    places = [stencil(run.token + apart - key, run, keys) for run in runs]
    causal = mask_step("eq", MASK_EXTENT, runs, places, keys)
    # The rectangle below the triangle hides its right half.
    shown = min(max(0, prefix - key), MASK_EXTENT // 2)
    place = MASK_EXTENT * MASK_EXTENT + MASK_EXTENT // 2 - shown
    rectangle = mask_step("eq", MASK_EXTENT, runs, [place] * len(runs), keys)
    if first + apart >= prefix:
        yield causal
    elif end + apart <= prefix:
        yield rectangle
    else:
        yield causal._replace(rectangle=rectangle.runs)


def mask_step(
    visible: Literal["eq", "ne"], pitch: int, runs: tuple[Run, ...], offsets: list[int], keys: int
) -> MaskStep:
    found = [
        (run.heads, GmView("atten_mask", UINT8, run.tokens, keys, pitch, offset))
        for run, offset in zip(runs, offsets, strict=True)
    ]
    return MaskStep(visible, tuple(found))
