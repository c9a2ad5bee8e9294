"""FAI, the attention kernel for tokens of all requests packed one after the other (TND).

.. code-block:: text

    cube core     S = Q @ K^T of 512 keys, to a workspace        P @ V of the previous 512 keys
    vector cores  maximum, exp, sum of S; P back, 16 bits        O = O * shrink + P @ V

Scores, probabilities and products pass through global memory, in three slots each, and the cube is
two tiles ahead. FAI-FD splits the tiles of a task over cores and combines their results; a task of
FAI-DEC, one token of a request, has several heads of keys. A cube core has

.. code-block:: text

    L1    Q of the task 64 KiB    K of 128 keys, or P of 256: 2 x 64 KiB    V of 512 keys
    L0    two of A, two of B, 128 x 128 each; L0C two of 128 x 128 fp32, no unit flag

The pieces of tasks are combined at the end of FAI-FD, after all vector cores have synchronised:

.. code-block:: text

    M = max_k lse_k;  s = sum_k exp(lse_k - M);  L = ln(s) + M         k: pieces of a task
    output = T(sum_k exp(lse_k - L) * O_k)                             one after the other, from 0

The sum s is computed by halves: elements beyond the largest power of two are added to the first
ones, then the upper half to the lower one, over a multiple of eight pieces, padded with zeros.

Sources: ops-transformer@3a280bc attention/fused_infer_attention_score, op_kernel
(fused_block_mmad_qk.hpp, fused_block_mmad_pv.hpp, CombineScale.hpp) and op_host. Assumed: each core
reads both lengths of each request, up to that of its task, when it searches for the task; blocks of
the cache are looked up again for the values, and the cache then holds the entries; FAI-DEC loads Q
of each head of keys again for each tile; cube cores do not wait with the vector cores.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from npusim.data.dtypes import FLOAT32, INT64, UINT8
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, ScalarLoadGlobal
from npusim.kernel.core import Core
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.matrices import L1Matrix
from npusim.kernel.program import Binding, Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import GmViews, Step, column
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import by_rows, spread
from npusim.ops._attention.cube import L0, MatrixCore, Piece
from npusim.ops._attention.fai_places import KEYS, Places
from npusim.ops._attention.fai_tiling import TASK_ROWS, TILE, Form, Node, Plan, Tile, Work, work_of
from npusim.ops._attention.fai_vector import (
    AHEAD,
    PROBABILITIES_READY,
    PRODUCTS_READY,
    SCORES_READY,
    Vector,
    plane_of,
    rounding_to,
    rows_at_a_time,
    store_heads,
    store_sums,
)
from npusim.ops._attention.problem import Attention

LENGTHS_OF_A_LINE = 8
"""Lengths in 64 bytes, a line of the scalar unit's cache."""
ALL_STORED = 4
"""Flag of all vector cores: all pieces are in the workspace."""
CHUNK_KEYS = 256
"""Keys of the probabilities in L1 at a time."""
QUERY_COLUMNS = 256
"""Most columns of Q and of K in L1."""
FEW_FRACTALS = 10
"""For an output of fewer fractals each Mmad waits until the previous one has finished."""
WIDE_PITCH = 65536
"""Row pitch in elements from which on ND to Nz converts rows one by one."""
ROW_UNIT = 8
"""Rows, and pieces, are padded to a multiple of this."""
TILE_COUNT = 8192
"""fp32 elements of the outputs of pieces at a time."""


def tile(spec: DeviceSpec, a: Attention, template: str, reason: str) -> Plan:
    """All cores of *spec* start, even without tasks; for FAI-FD only those with work."""
    work = work_of(a, spec.cores["aic"].count, template)
    groups = len(work.tasks)
    return Plan(
        template=template,
        reason=reason,
        block_dim=groups,
        is_mix=True,
        workspaces=Places(a).workspaces(groups, work.pieces),
        work=work,
    )


def build(spec: DeviceSpec, a: Attention, plan: Plan) -> tuple[Block, ...]:
    """Three blocks per group."""
    places, work = Places(a), plan.work
    cube, vector = Cube(spec, places), Vector(spec, places)
    tasks = [task for own in work.tasks for task in own]
    group = np.repeat(np.arange(len(work.tasks)), [len(own) for own in work.tasks])
    order = 2 * np.arange(len(tasks))
    forms = column([task.form for task in tasks])
    ones = np.ones(len(tasks), np.int64)
    anchors = [
        GmViews(name, UINT8, ones, ones, 0, offset)
        for name, offset in places.offsets(tasks).items()
    ]
    of_cube = [_lengths(cube.core, work, 1, 0)]
    of_cube += [Step(cube.task, (forms, *anchors), group, order + 1)]
    of_vector = []
    for half in range(2):
        of_vector += [_lengths(vector.core, work, 2, half)]
        of_vector += [Step(vector.task, (forms, half, *anchors), 2 * group + half, order + 1)]
    if work.nodes:
        of_vector += _combining(vector, places, work, order.size)
    sizes = places.group_bytes
    # All cores read the pieces of all others.
    fixed = places.bindings | {name: Binding(name) for name in plan.workspaces if name not in sizes}

    def bound(group: int) -> dict[str, Binding]:
        return fixed | {name: Binding(name, group * nbytes) for name, nbytes in sizes.items()}

    steps = CoreSteps(cube.core, tuple(of_cube)), CoreSteps(vector.core, tuple(of_vector))
    return launch_mixed(plan.block_dim, *steps, bound)


def _lengths(core: Core, work: Work, cores: int, half: int) -> Step:
    """Read, before each task, the lengths of all requests since that of the previous task.

    They are read by core *half* of *cores* in each group.
    """
    found, index = [], 0
    for group, tasks in enumerate(work.tasks):
        request = -1
        for task in tasks:
            found += [(group, 2 * index, x) for x in range(request + 1, task.request + 1)]
            request, index = task.request, index + 1
    group_of, order, number = np.array(found, np.int64).reshape(-1, 3).T
    ones = np.ones(number.size, np.int64)
    views = [
        GmViews(name, INT64, ones, ones, 0, INT64.nbytes(1) * number)
        for name in ("actual_seq_lengths", "actual_seq_lengths_kv")
    ]
    stage, is_cached = partial(_read_lengths, core), number % LENGTHS_OF_A_LINE > 0
    return Step(stage, (is_cached, *views), cores * group_of + half, order)


def _read_lengths(core: Core, is_cached: bool, *lengths: GmView) -> None:
    """Read the lengths of a request."""
    for view in lengths:
        core.emit(ScalarLoadGlobal("length", view.operand, INT64, is_cached))


def _combining(vector: Vector, places: Places, work: Work, tasks: int) -> list[Step]:
    """All vector cores synchronise, then combine the pieces of nodes in turn."""
    core, groups = vector.core, len(work.tasks)
    core.reset_buffers()
    combiner = Combiner(vector, places, max(node.pieces for node in work.nodes))
    every, last = np.arange(2 * groups), np.full(2 * groups, 2 * tasks)
    wait = partial(sync_all, core, "mte3", "mte2", ALL_STORED)
    steps = [Step(core.end_stage, (), every, last), Step(wait, (), every, last + 1)]
    number = np.arange(len(work.nodes))
    for half in range(2):
        owner, order = 2 * (number % groups) + half, 2 * (tasks + 1 + number)
        steps.append(Step(combiner.node, (column(list(work.nodes)), half), owner, order))
    return steps


class Cube:
    """The buffers of a cube core, and the stages of a task."""

    def __init__(self, spec: DeviceSpec, places: Places) -> None:
        a = places.a
        self.core = core = MatrixCore("fai", spec, a.element)
        self._places, self._size = places, a.head_size
        count = L0 * QUERY_COLUMNS
        self._query = core.tiles(a.element, count, "mte2", "mte1", 1, "l1")
        self._pieces = core.tiles(a.element, count, "mte2", "mte1", 2, "l1")
        self._values = core.tiles(a.element, TILE * a.head_size, "mte2", "mte1", 1, "l1")
        core.claim_l0()

    def task(self, form: Form, *_: GmView) -> None:
        """Write a task of *form*, with all tensors at offset 0."""
        if form.keys == 0:
            return
        # Several heads of keys alternate: Q of each is loaded for each tile.
        stays = form.kv_heads == 1
        if stays:
            self._load_query(self._places.query(form))
        tiles = list(form.tiles)
        for index in range(len(tiles) + AHEAD):
            for head in range(form.kv_heads if index < len(tiles) else 0):
                self._scores(form, tiles[index], head)
            if stays and index == len(tiles) - 1:
                self._query.free(*self._query.in_use)
            for head in range(form.kv_heads if index >= AHEAD else 0):
                self._products(form, tiles[index - AHEAD], head)

    def _load_query(self, views: list[GmView]) -> None:
        """Load Q `(heads x tokens, columns)`, the stacked *views*, into L1."""
        tile, row = self._query.alloc(), 0
        rows = sum(view.rows for view in views)
        for view in views:
            self._load(tile, view, rows, row)
            row += view.rows
        self._query.enque(tile)
        self._query.deque()

    def _load(self, tile: Local, view: GmView, rows: int, row: int = 0) -> None:
        """Load *view* into L1, at row *row* of a matrix of *rows* rows."""
        step = 1 if view.pitch >= WIDE_PITCH else view.rows
        for first, count in pieces(view.rows, step):
            part = view[first : first + count, :]
            self.core.load_rows(tile, part, align_up(rows, FRACTAL_ROWS), row + first)

    def _load_pieces(self, tile: Local, found: tuple[Piece, ...]) -> None:
        """Load the keys, or values, of *found* into L1, one after the other."""
        rows, row = sum(piece.keys.rows for piece in found), 0
        for piece in found:
            self.core.look_up("page", piece)
            self._load(tile, piece.keys, rows, row)
            row += piece.keys.rows

    def _of_head(self, form: Form, head: int) -> slice:
        """Rows of the task that use head *head* of keys."""
        rows = form.rows // form.kv_heads
        return slice(head * rows, (head + 1) * rows)

    # ---- Q @ K^T ----

    def _scores(self, form: Form, tile: Tile, head: int) -> None:
        """Write the scores of *tile* with head *head* of keys to its slot."""
        found = self._places.keys("key", form, tile, KEYS, head)
        scores = self._places.scores(tile.index, form.rows, tile.keys)
        query = None if form.kv_heads == 1 else self._places.heads(form, head)
        is_last = head == form.kv_heads - 1
        here = scores[self._of_head(form, head), :]
        repeat(self.core, self._write_scores, here, query, found, is_last)

    def _write_scores(
        self,
        scores: GmView,
        query_view: GmView | None,
        parts: tuple[tuple[Piece, ...], ...],
        is_last: bool,
    ) -> None:
        """Write scores `(rows, keys)` of *parts* of 128 keys; loads Q from its views if needed."""
        if query_view is not None:
            self._load_query([query_view])
        (query,) = self._query.in_use
        start = 0
        for part in parts:
            count = sum(piece.keys.rows for piece in part)
            # (count, columns) of K in L1
            tile = self._pieces.alloc()
            self._load_pieces(tile, part)
            self._pieces.enque(tile)
            tile = self._pieces.deque()
            total = self.core.totals.alloc()
            for k, depth in pieces(self._size, L0):
                a = L1Matrix(query, scores.rows, self._size, k=k)
                b = L1Matrix(tile, count, self._size, k=k)
                self._multiply(total, a, b, (scores.rows, count, depth), begins=k == 0)
            self.core.drain(total, scores[:, start : start + count])
            self._pieces.free(tile)
            start += count
        if query_view is not None:
            self._query.free(*self._query.in_use)
        if is_last:
            self.core.cross_core_set_flag("group", "fixpipe", SCORES_READY)

    # ---- P @ V ----

    def _products(self, form: Form, tile: Tile, head: int) -> None:
        """Write the products of *tile* with head *head* of values to its slot."""
        (found,) = self._places.keys("value", form, tile, TILE, head)
        places, here = self._places, self._of_head(form, head)
        products = places.products(tile.index, form.rows)[here, :]
        probabilities = places.probabilities(tile.index, form.rows, tile.keys)[here, :]
        is_first, is_last = head == 0, head == form.kv_heads - 1
        found = tuple(piece._replace(is_cached=True) for piece in found)
        views = products, probabilities
        repeat(self.core, self._write_products, *views, found, is_first, is_last)

    def _write_products(
        self,
        products: GmView,
        probabilities: GmView,
        found: tuple[Piece, ...],
        is_first: bool,
        is_last: bool,
    ) -> None:
        """P `(rows, keys)` @ V `(keys, columns)`; V is loaded before P is available."""
        core = self.core
        values = self._values.alloc()
        self._load_pieces(values, found)
        self._values.enque(values)
        values = self._values.deque()
        for n, columns in pieces(self._size, L0):
            total = core.totals.alloc()
            v = L1Matrix(values, self._size, probabilities.columns, k_is_first=True, origin=n)
            for start, width in pieces(probabilities.columns, CHUNK_KEYS):
                if is_first and n == start == 0:
                    core.cross_core_wait_flag("group", "scalar", PROBABILITIES_READY)
                part = probabilities[:, start : start + width]
                self._add(total, part, v.at(k=start), columns)
            core.drain(total, products[:, n : n + columns])
        self._values.free(values)
        if is_last:
            core.cross_core_set_flag("group", "fixpipe", PRODUCTS_READY)

    def _add(self, total: Local, part: GmView, values: L1Matrix, columns: int) -> None:
        """Add *part* `(rows, keys)` of P times *columns* columns of *values* to *total*."""
        tile = self._pieces.alloc()
        self._load(tile, part, part.rows)
        self._pieces.enque(tile)
        tile = self._pieces.deque()
        for k, depth in pieces(part.columns, L0):
            a, b = L1Matrix(tile, part.rows, part.columns, k=k), values.at(k=k)
            self._multiply(total, a, b, (part.rows, columns, depth), begins=b.k == 0)
        self._pieces.free(tile)

    def _multiply(
        self, total: Local, a: L1Matrix, b: L1Matrix, shape: tuple[int, int, int], *, begins: bool
    ) -> None:
        """Start *total* `(m, n)` with a product, or add it; wait for the Mmad if it is small."""
        self.core.multiply(total, a, b, shape, begins=begins)
        if ceil_div(shape[0], FRACTAL_ROWS) * (shape[1] // FRACTAL_ROWS) < FEW_FRACTALS:
            self.core.barrier("cube")


class Combiner:
    """The buffers of a vector core, and how it combines the pieces of its rows."""

    def __init__(self, vector: Vector, places: Places, most: int) -> None:
        """*most* is the largest number of pieces of a task."""
        self._core, self._places, self._a = vector.core, places, places.a
        core, count = vector.core, align_up(most, ROW_UNIT) * TASK_ROWS
        self._sums = core.vecin(FLOAT32, count)
        self._weights = core.tile(FLOAT32, count)
        self._largest, self._all = (core.tile(FLOAT32, TASK_ROWS) for _ in range(2))
        self._blocks = core.tile(FLOAT32, ROW_UNIT * TASK_ROWS)
        self._loaded = core.vecin(FLOAT32, TILE_COUNT, 2)
        self._output = core.vecout(FLOAT32, TILE_COUNT)

    def node(self, node: Node, half: int) -> None:
        """Combine the rows of vector core *half*, 0 or 1, for the task of *node*."""
        form, count, size = node.task.form, node.pieces, self._a.head_size
        first = form.tokens // 2 * form.heads if form.tokens > 1 else form.rows // 2
        row, rows = (0, first) if half == 0 else (first, form.rows - first)
        if rows == 0:
            return
        # (pieces, rows) and (pieces x 128, columns); rows of a piece are 128 apart
        sums = GmView.of("sums_of_pieces", FLOAT32, node.first + count, TASK_ROWS)
        outputs = GmView.of("outputs_of_pieces", FLOAT32, (node.first + count) * TASK_ROWS, size)
        top = node.first * TASK_ROWS + row
        # From the first row of the first piece to the last row of the last one.
        of_task = outputs[top : top + (count - 1) * TASK_ROWS + rows, :]
        shifts = {name: int(x[0]) for name, x in self._places.offsets([node.task]).items()}
        stored = [
            tuple(view.shifted_to(view.offset_bytes + shifts[view.name]) for view in views)
            for views in (self._places.outputs(form.whole), self._places.sums(form.whole))
        ]
        of_sums = sums[node.first :, row : row + rows]
        repeat(self._core, self._write, of_sums, of_task, row, *stored)

    def _write(
        self,
        sums: GmView,
        outputs: GmView,
        row: int,
        stored: tuple[GmView, ...],
        lse: tuple[GmView, ...],
    ) -> None:
        """Combine and store rows from *row* of the task on, whose outputs are separate per head."""
        core, rows = self._core, sums.columns
        pitch = align_up(rows, ROW_UNIT)
        found = core.load(self._sums, sums, pitch)
        self._weigh(found, sums.rows, pitch)
        self._sums.free(found)
        for start, some in pieces(rows, rows_at_a_time(self._a.head_size)):
            output = self._added_up(outputs, sums.rows, start, some, pitch)
            store_heads(core, output, stored, row + start, some)
            self._output.free(output)
        if lse:
            store_sums(core, self._blocks, self._all[:rows], lse, row)

    def _weigh(self, found: Local, count: int, pitch: int) -> None:
        """Convert softmax_lse of *count* pieces `(pieces, rows)` to weights of their outputs."""
        core, largest, total = self._core, self._largest[:pitch], self._all[:pitch]
        lse = [found.at(k * pitch, pitch) for k in range(count)]
        weights = [self._weights.at(k * pitch, pitch) for k in range(count)]
        every = self._weights[: count * pitch]
        core.copy(largest, lse[0])
        for each in lse[1:]:
            core.max(largest, largest, each)
        with core.independent():
            for each, weight in zip(lse, weights, strict=True):
                core.sub(weight, each, largest)
        core.exp(every, every)
        self._sum_by_halves(count, pitch)
        core.ln(total, weights[0])
        core.add(total, total, largest)
        with core.independent():
            for each, weight in zip(lse, weights, strict=True):
                core.sub(weight, each, total)
        core.exp(every, every)

    def _sum_by_halves(self, count: int, pitch: int) -> None:
        """Add *count* rows of *pitch* elements into the first one."""
        core, padded = self._core, align_up(count, ROW_UNIT)
        if padded > count:
            core.duplicate(self._weights.at(count * pitch, (padded - count) * pitch), 0.0)
        half = 1 << (padded.bit_length() - 1)
        spans = [(half, padded - half)] if padded > half else []
        while half > 1:
            half //= 2
            spans.append((half, half))
        for start, some in spans:
            lower = self._weights[: some * pitch]
            core.add(lower, lower, self._weights.at(start * pitch, some * pitch))

    def _added_up(self, outputs: GmView, count: int, start: int, rows: int, pitch: int) -> Local:
        """The combined output of *rows* rows of the core, from *start* on, over *count* pieces."""
        core, size = self._core, self._a.head_size
        output = self._output.alloc()
        total = output[: rows * size]
        core.duplicate(total, 0.0)
        for k in range(count):
            first = k * TASK_ROWS + start
            loaded = core.load(self._loaded, outputs[first : first + rows, :], size)
            plane = plane_of(loaded, rows, size)
            weight = self._weights.at(k * pitch + start, rows)
            by_rows(core, "mul", plane, spread(core, self._blocks, weight))
            core.add(total, plane.whole, total)
            self._loaded.free(loaded)
        element = self._a.element
        core.cast(output.as_dtype(element, rows * size), total, rounding_to(element))
        self._output.enque(output)
        return self._output.deque()
