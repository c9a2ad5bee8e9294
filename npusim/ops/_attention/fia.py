"""FIA, the attention kernel with tiles of many keys, split over cores by their cost.

.. code-block:: text

    cube      scores(0)  scores(1)  product(0)  scores(2)  product(1)  ...
    vectors              softmax(0)             softmax(1)  output(0)  softmax(2)  output(1)  ...

    query (rows, depth) @ key (keys, depth).T     -> scores (rows, keys), fp32, to the workspace
    weights (rows, keys) @ value (keys, width)    -> product (rows, width), fp32, to the workspace

Tile by tile, scores, weights, products and sums pass through global memory, in two slots each; a
core waits by flags for what it reads. All vector cores synchronise before they combine the pieces
of split rows. L1 holds the queries of a row of tiles (256 of them are a slice), three slices of 256
keys or of 128 x 256 weights, and two of 256 values, which remain there if a tile has no more; L0
holds 128 x 128 x 128. Rotary parts of queries and keys follow the other columns in L1, and are
multiplied last.

Sources: ops-transformer@3a280bc attention/common/op_kernel/arch22, fia_kernel_nonquant.h and
fia_block_cube_nonquant_gqa.h. Assumed: rows without keys, and places of tokens that requests do not
have, are first filled with zeros, in turn by all vector cores; which flag vector cores use to
synchronise; lengths of requests come with the tiling, so that no core reads them; heads that are
not 64 or 128 wide use the same cube code in slices that fit, though the vendor has different code
for them; all queries in L1 share one flag, and if not all rows of a tile fit, keys are loaded for
each part of them; each token's heads are loaded separately if tokens are not contiguous; keys in
fractals are copied to L1 unchanged; only if values are narrower than keys does an Mmad wait for the
previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from npusim.data.integers import align_down, align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.matrices import L1Matrix, l1_rows
from npusim.kernel.program import Binding, Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops import _protocol
from npusim.ops._attention.cube import L0, MatrixCore, Piece, rows_within, within
from npusim.ops._attention.fia_output import Finish, Output
from npusim.ops._attention.fia_tiling import schedule
from npusim.ops._attention.fia_training import TrainingSoftmax, unpacking_of
from npusim.ops._attention.fia_vector import (
    FIRST,
    PRODUCT_READY,
    SCORES_READY,
    SECOND,
    TURNS,
    WEIGHTS_READY,
    Softmax,
    Vector,
    step_of,
)
from npusim.ops._attention.mla_places import LatentMemory
from npusim.ops._attention.places import Memory, Part
from npusim.ops._attention.problem import Attention

ALL_VECTORS = 10
"""Flag by which all vector cores synchronise."""
OPERANDS_READY = 6
"""Flag: the vector cores have stored the digits of a row of tiles, or the keys and values of one,
if keys are int8."""
STREAMED_GROUP = 64
"""Up to this many query heads per head of keys, one token per request reads keys past the L2."""
L2_SHARE = (6, 5)
"""This holds in BNSD, if keys and values take this many fifths of the L2's bytes."""
QUERY_BYTES, QUERY_ROWS, QUERY_SLICES = 96 * 1024, 256, 2
SLICE_BYTES, SLICE_KEYS = 64 * 1024, 256
NARROW, WIDE_KEYS = 128, 128
"""Up to this many columns per head, a slice has 256 keys, else 128."""
KEY_SLICES, VALUE_SLICES = 3, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """The sizes of tiles; `schedule` assigns them to cores."""

    tile_rows: int
    tile_keys: int
    pieces: int
    """Pieces of rows of tiles that several cores share."""
    streams_keys: bool
    """Whether keys and values bypass the L2."""


def tile(spec: DeviceSpec, a: Attention, template: str, nbytes_of_keys: int, reason: str) -> Plan:
    """Split *a*, whose keys and values take *nbytes_of_keys* in total, for FIA or IFA."""
    plan = schedule(a, spec.cores["aic"].count)
    memory = LatentMemory(plan) if a.is_latent else Memory(plan)
    return Plan(
        template=template,
        reason=reason,
        block_dim=max(1, len(plan.cores)),
        is_mix=True,
        workspaces=memory.workspaces,
        tile_rows=plan.sizes.rows,
        tile_keys=plan.sizes.keys,
        pieces=plan.pieces,
        streams_keys=_streams(spec, a, nbytes_of_keys),
    )


def _streams(spec: DeviceSpec, a: Attention, nbytes_of_keys: int) -> bool:
    if a.longest_query != 1 or a.group > STREAMED_GROUP or a.rope_size:
        return False
    page = a.paging
    is_by_head = a.layout.startswith("BNSD") if page is None else page.heads_first
    more, whole = L2_SHARE
    return is_by_head or nbytes_of_keys * whole >= more * spec.l2.capacity_bytes


def build(spec: DeviceSpec, a: Attention, names: tuple[str, ...], plan: Plan) -> tuple[Block, ...]:
    """Three blocks per group; *names* are those of the call's tensors."""
    memory = Memory(schedule(a, spec.cores["aic"].count))
    core = VectorCore("fia", spec, "aiv")
    unpacking = unpacking_of(core, memory)
    vector = Vector(spec, memory, core)
    softmax = TrainingSoftmax(vector, unpacking) if a.is_training else Softmax(vector)
    finish = Finish(vector)
    output = Output(vector, finish)
    return launch(cube_steps(spec, memory), vector, softmax, finish, output, names, plan)


def cube_steps(spec: DeviceSpec, memory: Memory) -> CoreSteps:
    """The steps of cube cores."""
    cube = Cube(spec, memory)
    return CoreSteps(cube.core, cube.steps())


def launch(
    of_cube: CoreSteps,
    vector: Vector,
    softmax: Softmax,
    finish: Finish,
    output: Output,
    names: tuple[str, ...],
    plan: Plan,
) -> tuple[Block, ...]:
    """The blocks of cube and vector cores, for all groups."""
    memory, core, work = vector.memory, vector.core, vector.memory.plan
    streamed = ("key", "value") if plan.streams_keys else ()
    bound = {name: Binding(name, is_cached=name not in streamed) for name in names}
    shared = ("piece_out", "piece_max", "piece_sum", "kept")
    bound |= {name: Binding(name) for name in shared if name in plan.workspaces}

    vectors = np.arange(2 * plan.block_dim)
    steps = [finish.empty(work.empty, vectors.size), *softmax.steps(), output.step()]
    if work.pieces:
        end = TURNS * (len(work.tiles) + 2)
        last = np.full(vectors.size, end)
        wait = partial(sync_all, core, "mte3", "mte2", ALL_VECTORS)
        steps += [Step(core.end_stage, (), vectors, last), Step(wait, (), vectors, last)]
        steps.append(output.combine(end))
    return launch_mixed(
        plan.block_dim,
        of_cube,
        CoreSteps(core, tuple(steps), vector.raise_flags),
        lambda group: bound | memory.of_core(group),
    )


class Cube:
    """Writes the programs of cube cores."""

    def __init__(self, spec: DeviceSpec, memory: Memory) -> None:
        self._memory, self._width, self._depth = memory, memory.width, memory.depth
        element = memory.factor
        self.core = self._core = core = MatrixCore("fia", spec, element, alone=True)
        of_keys, of_values = (
            align_down(SLICE_BYTES // element.nbytes(count), FRACTAL_ROWS)
            for count in (self._depth, self._width)
        )
        self._slice_keys = min(of_keys, SLICE_KEYS if self._depth <= NARROW else WIDE_KEYS)
        self._slice_values = min(of_values, SLICE_KEYS)
        fits = align_down(QUERY_BYTES // element.nbytes(self._depth), FRACTAL_ROWS)
        self._slice_rows = min(fits, QUERY_ROWS)
        of_queries = QUERY_SLICES * QUERY_BYTES // element.nbytes(1)
        of_slice = SLICE_BYTES // element.nbytes(1)
        self._queries = core.tiles(element, of_queries, "mte2", "mte1", 1, "l1")
        self._values = core.tiles(element, of_slice, "mte2", "mte1", VALUE_SLICES, "l1")
        self._slices = core.tiles(element, of_slice, "mte2", "mte1", KEY_SLICES, "l1")
        core.claim_l0()

    def steps(self) -> tuple[Step, ...]:
        """All tiles; scores are one tile ahead of products."""
        memory = self._memory
        parts = [
            Part(tile, 0, memory.copies * tile.piece.row_tile.rows) for tile in memory.plan.tiles
        ]
        scores, weights, product = (
            memory.slots(name, parts) for name in ("scores", "weights", "product")
        )
        key, value = (memory.operands(name, parts) for name in ("key", "value"))
        ends = np.array([x.ends for x in parts]).reshape(-1, 2).T
        of_scores, of_product = (
            (scores, *ends, memory.queries(parts), key),
            (weights, product, value),
        )
        return (
            step_of(parts, FIRST, 1, self._scores, *of_scores),
            step_of(parts, SECOND, 1, self._product, *of_product),
        )

    # ---- scores ----

    def _scores(
        self,
        scores: GmView,
        is_first: bool,
        is_last: bool,
        queries: tuple[tuple[GmView, ...], ...],
        found: tuple[Piece, ...],
    ) -> None:
        """(rows, depth) @ (keys, depth).T -> (rows, keys), a slice of keys at a time."""
        core = self._core
        a = self._memory.plan.rows.a
        if a.dequantises or (is_first and a.has_digits):
            core.cross_core_wait_flag("group", "scalar", OPERANDS_READY)
        for first, rows in pieces(scores.rows, QUERY_SLICES * self._slice_rows):
            # All rows of a tile remain in L1 until the last of its keys, if they fit.
            stays = rows == scores.rows
            if is_first or not stays:
                self._load_queries(queries, first, rows)
            own = scores[first : first + rows, :]
            for key, keys in pieces(scores.columns, self._slice_keys):
                tile = self._slices.alloc()
                self._load_keys(found, key, keys, tile, k_is_first=False)
                self._slices.enque(tile)
                here = own[:, key : key + keys]
                repeat(core, self._slice_scores, here, keeps_slots=True)
            if is_last or not stays:
                self._queries.free(*self._queries.in_use)
        core.cross_core_set_flag("group", "fixpipe", SCORES_READY)

    def _load_queries(self, queries: tuple[tuple[GmView, ...], ...], first: int, rows: int) -> None:
        """Queries [first, first + rows) of a tile, each slice as Nz `(depth / 16, rows, 16)`."""
        tile = self._queries.alloc()
        for part, count in pieces(rows, self._slice_rows):
            dst, padded = tile[part * self._depth :], align_up(count, FRACTAL_ROWS)
            for views in queries:
                for row, view in rows_within(views, first + part, count):
                    self._core.load_rows(dst, view, padded, row)
                dst = dst[views[0].columns * padded :]
        self._queries.enque(tile)
        self._queries.deque()

    def _load_keys(
        self, found: tuple[Piece, ...], key: int, keys: int, tile: Local, *, k_is_first: bool
    ) -> None:
        """Load keys or values [key, key + keys) of *found* into *tile*, one copy per piece."""
        core = self._core
        padded = l1_rows(core.element, keys, k_is_first)
        for row, piece in within(found, key, keys):
            if piece.entry is None:
                self._load_page(tile, row, padded, piece)
            else:
                repeat(core, self._load_page, tile, row, padded, piece)

    def _load_page(self, tile: Local, row: int, padded: int, page: Piece) -> None:
        """Load a page, whose block is read from the block table; rotary parts follow the others."""
        self._core.look_up("block", page)
        load = self._core.load_fractals if page.is_nz else self._core.load_rows
        load(tile, page.keys, padded, row)
        if page.rotated is not None:
            load(tile[self._memory.plan.rows.a.head_size * padded :], page.rotated, padded, row)

    def _slice_scores(self, scores: GmView) -> None:
        """Multiply a slice of keys: (rows, depth) @ (depth, keys)."""
        core, depth = self._core, self._depth
        (queries,) = self._queries.in_use
        tile = self._slices.deque()
        for first, count in pieces(scores.rows, self._slice_rows):
            part = queries[first * depth :]
            for row, rows in pieces(count, L0):
                for column, columns in pieces(scores.columns, L0):
                    top = first + row
                    here = scores[top : top + rows, column : column + columns]
                    total = core.totals.alloc()
                    for k, some in pieces(depth, L0):
                        a = L1Matrix(part, count, depth, origin=row, k=k)
                        b = L1Matrix(tile, scores.columns, depth, origin=column, k=k)
                        core.multiply(total, a, b, (rows, columns, some), begins=k == 0)
                        self._end_step(is_last=k + some == depth)
                    core.drain(total, here)
        self._slices.free(tile)

    # ---- product ----

    def _product(self, weights: GmView, product: GmView, found: tuple[Piece, ...]) -> None:
        """(rows, keys) @ (keys, width) -> (rows, width), 128 rows at a time."""
        core = self._core
        spans = tuple(pieces(weights.columns, self._slice_values))
        stays = len(spans) <= VALUE_SLICES
        if stays:
            for span in spans:
                self._load_values(found, *span)
            kept = [self._values.deque() for _ in spans]
        is_ready = False
        for row, rows in pieces(product.rows, L0):
            for column, columns in pieces(self._width, L0):
                total = core.totals.alloc()
                for number, (key, count) in enumerate(spans):
                    if not stays:
                        self._load_values(found, key, count)
                    if not is_ready:
                        core.cross_core_wait_flag("group", "scalar", WEIGHTS_READY)
                        is_ready = True
                    tile = kept[number] if stays else self._values.deque()
                    part = weights[row : row + rows, key : key + count]
                    values = L1Matrix(tile, self._width, count, k_is_first=True, origin=column)
                    ends = key == 0, key + count == weights.columns
                    self._add(total, part, values, columns, *ends)
                    if not stays:
                        self._values.free(tile)
                core.drain(total, product[row : row + rows, column : column + columns])
        for tile in kept if stays else ():
            self._values.free(tile)
        core.cross_core_set_flag("group", "fixpipe", PRODUCT_READY)

    def _load_values(self, found: tuple[Piece, ...], key: int, count: int) -> None:
        tile = self._values.alloc()
        self._load_keys(found, key, count, tile, k_is_first=True)
        self._values.enque(tile)

    def _add(
        self,
        total: Local,
        weights: GmView,
        values: L1Matrix,
        columns: int,
        begins: bool,
        ends: bool,
    ) -> None:
        """Add (rows, keys) of weights @ (keys, columns) of a slice of values to *total*."""
        rows, keys = weights.rows, weights.columns
        tile = self._slices.alloc()
        self._core.load_rows(tile, weights, align_up(rows, FRACTAL_ROWS))
        self._slices.enque(tile)
        tile = self._slices.deque()
        for k, depth in pieces(keys, L0):
            a, shape = L1Matrix(tile, rows, keys, k=k), (rows, columns, depth)
            self._core.multiply(total, a, values.at(k=k), shape, begins=begins and k == 0)
            self._end_step(is_last=ends and k + depth == keys)
        self._slices.free(tile)

    def _end_step(self, *, is_last: bool) -> None:
        """Make an Mmad wait for the end of the previous one if values are narrower than keys."""
        if not is_last and self._depth > self._width:
            self._core.barrier("cube")
