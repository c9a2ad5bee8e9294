"""FIA-MLA, attention to latent keys: one head of 512 columns, plus 64 rotary columns.

.. code-block:: text

    cube      scores(0)  scores(1)  product(0)  scores(2)  product(1)  ...
    vectors              softmax(0)             softmax(1)             softmax(2)  output  ...

    query (rows, 576) @ key (keys, 576).T       -> scores (rows, keys), fp32, to the workspace
    weights (rows, keys) @ key (keys, 512)      -> added to product (rows, 512), fp32, in global
                                                   memory, where all tiles of a row add up

Latent keys are also the values. Before the product of a tile is added, the vector cores rescale the
sum: they add integers to the exponents of floats, see :mod:`npusim.ops._attention.mla_vector`. L1
holds four parts of 128 rows of queries or of weights, and three of 128 keys or 256 values, 72 KiB
each; L0 holds 128 x 128 x 96 for scores and x 128 for products. L0C has a unit flag.

Sources: ops-transformer@3a280bc attention/common/op_kernel/arch22, fia_kernel_nonquant_mla.h and
fia_block_cube_nonquant_mla.h. Assumed: values are read from key; two parts of the same rows share a
flag; each half of the keys is multiplied with all rows before the next one is loaded; all keys of a
tile are summed in L0C; evenly spaced rows are one copy; the vector cores finally wait for the last
product. The split over cores, and what is assumed of it, is that of FIA.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel.launch import CoreSteps
from npusim.kernel.matrices import L1Matrix, l0c_elements, l1_rows
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.views import GmView, repeat
from npusim.ops._attention.cube import L0, MatrixCore, Piece, rows_within, within
from npusim.ops._attention.fia import Plan, launch
from npusim.ops._attention.fia_output import Finish
from npusim.ops._attention.fia_tiling import schedule
from npusim.ops._attention.fia_vector import (
    FIRST,
    PRODUCT_READY,
    SCORES_READY,
    SECOND,
    WEIGHTS_READY,
    Vector,
    step_of,
)
from npusim.ops._attention.mla_places import (
    HALF_COLUMNS,
    HALVES,
    Columns,
    LatentMemory,
)
from npusim.ops._attention.mla_vector import (
    PRODUCT_ADDED,
    PRODUCT_SCALED,
    LatentOutput,
    LatentSoftmax,
)
from npusim.ops._attention.places import Part
from npusim.ops._attention.problem import LATENT_COLUMNS, Attention

STEP_COLUMNS = 96
"""Columns of queries and keys in L0."""
SLICE_VALUES = 256
"""Values, and weights of a row, in L1 at a time."""
PART = L0 * HALF_COLUMNS
"""Elements of a part in L1."""
LEFT_PAIRS, RIGHT_PARTS = 2, 3
"""Pairs of parts of queries or weights in L1, and parts of keys or values."""
FEW_FRACTALS = 10
"""For an output of fewer fractals each Mmad waits until the previous one has finished."""


def build(spec: DeviceSpec, a: Attention, names: tuple[str, ...], plan: Plan) -> tuple[Block, ...]:
    """Three blocks per group; *names* are those of the call's tensors."""
    memory = LatentMemory(schedule(a, spec.cores["aic"].count))
    cube, vector = Cube(spec, memory), Vector(spec, memory)
    finish, softmax = Finish(vector), LatentSoftmax(vector, 2 * plan.block_dim)
    output = LatentOutput(vector, finish, softmax)
    of_cube = CoreSteps(cube.core, cube.steps(), cube.begin)
    return launch(of_cube, vector, softmax, finish, output, names, plan)


class Cube:
    """Writes the programs of cube cores."""

    def __init__(self, spec: DeviceSpec, memory: LatentMemory) -> None:
        self._memory = memory
        self.core = self._core = core = MatrixCore("mla", spec, memory.factor, alone=True)
        of_rows, of_keys = len(HALVES) * PART, PART
        self._left = core.tiles(core.element, of_rows, "mte2", "mte1", LEFT_PAIRS, "l1")
        self._right = core.tiles(core.element, of_keys, "mte2", "mte1", RIGHT_PARTS, "l1")
        core.claim_l0()
        # With the unit flag: `totals` signals that the last Mmad has started, this that it has
        # finished.
        self._over = core.queue("l0c", 0, "cube", "fixpipe", 2)
        self._overs: dict[int, Slot] = {}

    def begin(self) -> None:
        """Start with no product pending."""
        self._core.cross_core_set_flag("group", "fixpipe", PRODUCT_ADDED)

    def steps(self) -> tuple[Step, ...]:
        """All tiles; scores are one tile ahead of products."""
        memory = self._memory
        parts = [Part(tile, 0, tile.piece.row_tile.rows) for tile in memory.plan.tiles]
        scores, weights = (memory.slots(name, parts) for name in ("scores", "weights"))
        keys, firsts = memory.operands("key", parts), [x.tile.is_first for x in parts]
        of_product = weights, memory.products(parts), keys, np.array(firsts, np.bool_)
        return (
            step_of(parts, FIRST, 1, self._scores, scores, memory.queries(parts), keys),
            step_of(parts, SECOND, 1, self._product, *of_product),
        )

    # ---- scores ----

    def _scores(
        self,
        scores: GmView,
        queries: tuple[tuple[GmView, ...], ...],
        found: tuple[Piece, ...],
    ) -> None:
        """(rows, 576) @ (keys, 576).T -> (rows, keys), 128 keys at a time."""
        core, blocks = self._core, tuple(pieces(scores.rows, L0))
        loaded: list[Local] = []
        for key, keys in pieces(scores.columns, L0):
            totals = [core.totals.alloc() for _ in blocks]
            for half, columns in enumerate(HALVES):
                tile = self._load_keys(found, key, keys, columns)
                for number, (row, rows) in enumerate(blocks):
                    if len(loaded) == number:
                        loaded.append(self._load_queries(queries, row, rows))
                    a = L1Matrix(loaded[number][half * PART :], rows, HALF_COLUMNS)
                    b = L1Matrix(tile, keys, HALF_COLUMNS)
                    here = scores[row : row + rows, key : key + keys]
                    ends = half == 0, half == len(HALVES) - 1
                    self._add(totals[number], a, b, here, STEP_COLUMNS, ends)
                    if ends[1] and key + keys == scores.columns:
                        self._left.free(loaded[number])
                self._right.free(tile)
        core.cross_core_set_flag("group", "fixpipe", SCORES_READY)

    def _load_queries(
        self, queries: tuple[tuple[GmView, ...], ...], first: int, count: int
    ) -> Local:
        """Queries [first, first + count) of a tile, each half as Nz `(288 / 16, rows, 16)`."""
        tile, padded = self._left.alloc(), align_up(count, FRACTAL_ROWS)
        for half, columns in enumerate(HALVES):
            at = half * PART
            for own in columns:
                for row, view in rows_within(queries[own.is_rotated], first, count):
                    part = view[:, own.first : own.first + own.size]
                    self._core.load_rows(tile[at:], part, padded, row)
                at += own.size * padded
        self._left.enque(tile)
        return self._left.deque()

    def _load_keys(
        self,
        found: tuple[Piece, ...],
        key: int,
        keys: int,
        columns: tuple[Columns, ...],
        *,
        is_value: bool = False,
    ) -> Local:
        """Load *columns* of keys [key, key + keys) as Nz, one copy per piece and column range."""
        tile = self._right.alloc()
        padded = l1_rows(self._core.element, keys, is_value)
        for first, piece in within(found, key, keys):
            if piece.entry is None:
                self._load_piece(tile, first, padded, piece, columns)
            else:
                own = piece._replace(is_cached=True) if is_value else piece
                place = tile, first, padded
                repeat(self._core, self._load_piece, *place, own, columns, keeps_slots=True)
        self._right.enque(tile)
        return self._right.deque()

    def _load_piece(
        self, tile: Local, row: int, padded: int, piece: Piece, columns: tuple[Columns, ...]
    ) -> None:
        """Load those of a page, whose block is read from the block table."""
        core, at = self._core, 0
        core.look_up("block", piece)
        load = core.load_fractals if piece.is_nz else core.load_rows
        for own in columns:
            end = own.first + own.size
            view = piece.columns(own.first, end, is_rotated=own.is_rotated)
            load(tile[at * padded :], view, padded, row)
            at += own.size

    # ---- product ----

    def _product(
        self, weights: GmView, product: GmView, found: tuple[Piece, ...], is_first: bool
    ) -> None:
        """(rows, keys) @ (keys, 512) -> added to (rows, 512), 128 columns at a time."""
        core, blocks = self._core, tuple(pieces(product.rows, L0))
        spans = tuple(pieces(weights.columns, SLICE_VALUES))
        loaded: list[Local] = []
        for column, columns in pieces(LATENT_COLUMNS, L0):
            totals = [core.totals.alloc() for _ in blocks]
            for key, keys in spans:
                own = (Columns(False, column, columns),)
                tile = self._load_keys(found, key, keys, own, is_value=True)
                for number, (row, rows) in enumerate(blocks):
                    if not loaded:
                        core.cross_core_wait_flag("group", "scalar", WEIGHTS_READY)
                    if len(loaded) == number:
                        loaded.append(self._load_weights(weights[row : row + rows, :]))
                    part = loaded[number][key // SLICE_VALUES * PART :]
                    a = L1Matrix(part, rows, keys)
                    b = L1Matrix(tile, columns, keys, k_is_first=True)
                    here = product[row : row + rows, column : column + columns]
                    ends = key == 0, key + keys == weights.columns
                    awaits = column == number == 0 and ends[1]
                    self._add(totals[number], a, b, here, L0, ends, awaits, is_added=not is_first)
                    if ends[1] and column + columns == LATENT_COLUMNS:
                        self._left.free(loaded[number])
                self._right.free(tile)
        core.cross_core_set_flag("group", "fixpipe", PRODUCT_READY)
        core.cross_core_set_flag("group", "fixpipe", PRODUCT_ADDED)

    def _load_weights(self, weights: GmView) -> Local:
        """Load (rows, keys) of *weights*, each 256 keys as a part."""
        tile = self._left.alloc()
        for key, keys in pieces(weights.columns, SLICE_VALUES):
            part, padded = weights[:, key : key + keys], align_up(weights.rows, FRACTAL_ROWS)
            self._core.load_rows(tile[key // SLICE_VALUES * PART :], part, padded)
        self._left.enque(tile)
        return self._left.deque()

    # ---- both ----

    def _add(
        self,
        total: Local,
        a: L1Matrix,
        b: L1Matrix,
        result: GmView,
        step: int,
        ends: tuple[bool, bool],
        awaits_scaling: bool = False,
        *,
        is_added: bool = False,
    ) -> None:
        """Add *a* @ *b* to *total*, that many columns of both per *step*.

        *ends* says whether they are the first of a sum, and the last: then the sum goes to
        *result*, where it may be added to the contents, after the vector cores have rescaled those.
        """
        core, sums = self._core, total[: l0c_elements(result.rows, result.columns)]
        fractals = ceil_div(result.rows, FRACTAL_ROWS) * ceil_div(result.columns, FRACTAL_ROWS)
        for k, depth in pieces(a.count, step):
            begins, is_over = ends[0] and k == 0, ends[1] and k + depth == a.count
            before = partial(core.totals.enque, total) if is_over else None
            shape = result.rows, result.columns, depth
            core.multiply(
                total, a.at(k=k), b.at(k=k), shape, begins=begins, before=before, unit_flag=True
            )
            if begins:
                # The first Mmad follows the fixpipe, so it cannot finish earlier.
                self._overs[total.offset_bytes] = self._over.alloc()
            if fractals < FEW_FRACTALS:
                core.barrier("cube")
        if ends[1]:
            self._over.enque(self._overs.pop(total.offset_bytes))
            self._drain(sums, result, awaits_scaling, is_added)

    def _drain(self, sums: Local, result: GmView, awaits_scaling: bool, is_added: bool) -> None:
        core = self._core
        total = core.totals.deque()
        if awaits_scaling:
            core.cross_core_wait_flag("group", "scalar", PRODUCT_SCALED)
        core.totals.free(total)
        core.fixpipe(result, sums, atomic=is_added, unit_flag=True)
        self._over.free(self._over.deque())
