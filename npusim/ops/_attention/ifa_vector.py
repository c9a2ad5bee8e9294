"""IFA on vector cores only: attention of single tokens of float16, with keys per head.

.. code-block:: text

    s  = (sum of q[d] * k[d]) * scale          float32: 16 running sums, those 8 apart, neighbours
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m');  l' = e * l + sum(p)
    o' = o * e + sum of float16(p) * v         float32: some running sums, halves onto halves
    output = float16(o / l)                    ties away from zero

A core processes one head of a request after another. Keys and values are loaded in chunks that fill
32 KiB, up to 8192 of them before the output is rescaled.

Sources: ops-transformer@3a280bc attention/incre_flash_attention, incre_flash_attention_tiling.cpp,
incre_flash_attention_tiling_check.cpp (EnableAllVec, CheckCoreOkFlag) and
incre_flash_attention_allvec_new.h. Assumed: rows are reduced as by the softmax library of FIA,
different lengths do not change the cores' shares, and the factors of l and o are computed in the
order given above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT64, Array
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, FLOATS_PER_BLOCK, FLOATS_PER_REPEAT, Local, ScalarLoadGlobal
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, bindings, pieces
from npusim.kernel.wide_plane import WidePlane, by_rows, reduce_rows
from npusim.ops import _protocol
from npusim.ops._attention.ifa_vector_check import WIDTH_UNIT, VectorProblem
from npusim.ops._attention.oracle_sums import away, row_sums

LOWEST = -2e38
"""Initial value of the largest score (SOFTMAX_MIN_NUM)."""
MOST_KEYS = 8192
"""Keys per loop."""
CHUNK_BYTES, SCALES_BYTES = 32768, 8192
"""Bytes of keys or values, and of the factors of values, one block each."""
HALVES_OF_BLOCK = 16
ROWS_OF_REPEAT = 4
"""Keys whose 16 products a repeat adds."""
MOST_SUMS = 255
"""Running sums of values: repeats of an instruction."""
LENGTH = "length"
"""A register."""
PADDED_WIDTH = 256
"""Rows of this width are padded by a block, so that they are in different banks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorPlan(_protocol.Plan):
    """Each core has a run of heads of requests."""

    pairs_of_core: tuple[int, ...]


def tile(spec: DeviceSpec, p: VectorProblem) -> VectorPlan:
    """Equal shares of the heads of requests, with one more for the first cores."""
    cores, pairs = len(spec.vector_cores), p.requests * p.heads
    whole, rest = divmod(pairs, cores)
    shares = tuple(whole + (core < rest) for core in range(min(cores, pairs)))
    return VectorPlan(
        block_dim=len(shares),
        template="IFA-VECTOR",
        reason="float16, each head with its own keys, no pages",
        pairs_of_core=shares,
    )


def build(spec: DeviceSpec, p: VectorProblem, plan: VectorPlan) -> tuple[Block, ...]:
    """Each core processes head after head, and for each head loop after loop."""
    core = VectorCore("incre_flash_attention", spec)
    kernel = SingleTokens(core, p)
    pairs = np.arange(p.requests * p.heads)
    cores = np.repeat(np.arange(plan.block_dim), plan.pairs_of_core)
    lengths = np.array(p.lengths)[pairs // p.heads]
    query = GmView.of("query", FLOAT16, pairs.size, p.width)
    output = GmView.of("output", FLOAT16, pairs.size, p.width)
    if p.keys_lie_apart:
        of_all = (p.requests * p.keys, p.heads * p.width)
        top, left = pairs // p.heads * p.keys, pairs % p.heads * p.width
    else:
        of_all = (p.requests * p.heads * p.keys, p.width)
        top, left = pairs * p.keys, 0 * pairs
    key, value = (
        GmViews.of(GmView.of(name, FLOAT16, *of_all), top, left, lengths, p.width)
        for name in ("key", "value")
    )
    rows = [GmViews.row(view, pairs) for view in (query, output)]
    arguments = [rows[0], key, value, rows[1]]
    if p.given_lengths:
        given = GmView.vector("actual_seq_lengths", INT64, p.given_lengths)
        which = np.minimum(pairs // p.heads, p.given_lengths - 1)
        arguments.append(GmViews.of(given, 0, which, 1, 1))
    step = Step(kernel.head, tuple(arguments), cores)
    names = [GmView.vector(each.name, FLOAT16, 1) for each in p.inputs]
    return core.launch(step, bound=lambda _: bindings(*names, output))


class SingleTokens:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: VectorProblem) -> None:
        self.core, self.p = core, p
        self.pitch = p.width + (HALVES_OF_BLOCK if p.width == PADDED_WIDTH else 0)
        chunk = CHUNK_BYTES // FLOAT16.nbytes(1)
        self.chunk = chunk // p.width // FLOATS_PER_BLOCK * FLOATS_PER_BLOCK
        self.value_chunk = min(self.chunk, SCALES_BYTES // BLOCK_BYTES)
        self.scores = core.tile(FLOAT32, MOST_KEYS)
        self.loaded = core.vecin(FLOAT16, chunk // p.width * self.pitch, 2)
        self.work = core.tile(FLOAT32, CHUNK_BYTES // FLOAT32.nbytes(1))
        self.sums = core.tile(FLOAT32, CHUNK_BYTES // FLOAT32.nbytes(1))
        self.query_in, self.out = core.vecin(FLOAT16, p.width), core.vecout(FLOAT16, p.width)
        self.blocks = core.tile(FLOAT16, SCALES_BYTES // FLOAT16.nbytes(1))
        self.query, self.result = core.tile(FLOAT16, p.width), core.tile(FLOAT32, p.width)
        block = FLOATS_PER_BLOCK
        self.largest, self.total, self.shrink, self.found, self.spread = (
            core.tile(FLOAT32, block) for _ in range(5)
        )

    def head(
        self,
        query: GmView,
        key: GmView,
        value: GmView,
        output: GmView,
        length: GmView | None = None,
    ) -> None:
        """One head of one request: *query* `(width,)`, *key* and *value* `(keys, width)`."""
        core = self.core
        if length is not None:
            core.emit(ScalarLoadGlobal(LENGTH, length.operand, INT64))
        core.duplicate(self.largest, LOWEST)
        core.duplicate(self.total, 0.0)
        core.duplicate(self.result, 0.0)
        loaded = core.load_rows(self.query_in, query)
        core.copy(self.query, loaded)
        self.query_in.free(loaded)
        for first, count in pieces(key.rows, MOST_KEYS):
            here = slice(first, first + count)
            self._score(key[here, :])
            chunks = [*pieces(count, self.value_chunk)]
            scores = self.scores[: align_up(count, WIDTH_UNIT)]
            core.mul(scores, scores, self.p.scale)
            self._load(value[first : first + chunks[0][1], :])
            self._softmax(count)
            if first:
                self._by_block("mul", self.shrink)
            self._add_values(value[here, :], chunks)
        self._by_block("div", self.total)
        out = self.out.alloc()
        core.cast(out, self.result, "round")
        core.store_rows(self.out, out, output)

    def _by_block(self, op: Any, block: Local) -> None:
        by_rows(self.core, op, WidePlane(self.result, 1, self.p.width, self.p.width), block)

    def _load(self, rows: GmView) -> None:
        """Load keys or values into the next tile of their queue."""
        tile = self.loaded.alloc()
        pitch_bytes = FLOAT16.nbytes(self.pitch)
        dst = tile[: (rows.rows - 1) * self.pitch + self.p.width]
        self.core.data_copy(dst, rows.operand, pitch_bytes if rows.rows > 1 else 0)
        self.loaded.enque(tile)

    # ---- scores ----

    def _score(self, key: GmView) -> None:
        for first, count in pieces(key.rows, self.chunk):
            self._load(key[first : first + count, :])
            tile = self.loaded.deque()
            self._products(self.scores[first:], tile, count)
            self.loaded.free(tile)

    def _products(self, scores: Local, keys: Local, rows: int) -> None:
        """Write 16 running sums of each of *rows* keys, four keys per repeat, to *scores*."""
        core, lanes = self.core, HALVES_OF_BLOCK
        repeats, pitch = ceil_div(rows, ROWS_OF_REPEAT), self.pitch // HALVES_OF_BLOCK
        count = repeats * FLOATS_PER_REPEAT
        sums = self.sums[:count]
        core.duplicate(sums, 0.0)
        for column in range(0, self.p.width, lanes):
            a, b = (x.offset_bytes + FLOAT16.nbytes(column) for x in (self.query, keys))
            core.mul_add_dst(
                sums,
                Local("ub", a, FLOAT16, count, 0, 0, ROWS_OF_REPEAT),
                Local("ub", b, FLOAT16, count, pitch, pitch * ROWS_OF_REPEAT, ROWS_OF_REPEAT),
            )
        halves = [
            Local("ub", sums.offset_bytes + side, FLOAT32, rows * FLOATS_PER_BLOCK, 1, 2, 1)
            for side in (0, BLOCK_BYTES)
        ]
        core.add(halves[0], *halves)
        # Rounded up to the number of keys that fill a block.
        filled = align_up(rows, FLOATS_PER_BLOCK)
        eights = Local("ub", sums.offset_bytes, FLOAT32, filled * FLOATS_PER_BLOCK, 2, 16)
        core.block_reduce("sum", scores[:filled], eights)

    def _softmax(self, count: int) -> None:
        """Convert scores to weights; earlier results are rescaled by *shrink*."""
        core, plane = self.core, WidePlane(self.scores, 1, count, align_up(count, WIDTH_UNIT))
        lanes = self.work[:FLOATS_PER_REPEAT]
        reduce_rows(core, "max", self.found[:1], plane, lanes)
        core.brcb(self.work[: FLOATS_PER_BLOCK * FLOATS_PER_BLOCK], self.found)
        core.max(self.found, self.largest, self.work[:FLOATS_PER_BLOCK])
        core.sub(self.shrink, self.largest, self.found)
        core.copy(self.largest, self.found)
        core.exp(self.shrink, self.shrink)
        by_rows(core, "sub", plane, self.largest)
        weights = self.scores[:count]
        core.exp(weights, weights)
        reduce_rows(core, "sum", self.found[:1], plane, lanes)
        core.brcb(self.work[: FLOATS_PER_BLOCK * FLOATS_PER_BLOCK], self.found)
        core.mul(self.total, self.total, self.shrink)
        core.add(self.total, self.total, self.work[:FLOATS_PER_BLOCK])

    # ---- values ----

    def _add_values(self, value: GmView, chunks: list[tuple[int, int]]) -> None:
        """Add the weighted *chunks* of *value* to the result; the first is being loaded."""
        core, width = self.core, self.p.width
        sums = running_sums(width, chunks[0][1])
        core.duplicate(self.work[: sums * width], 0.0)
        for first, count in chunks:
            filled = align_up(count, FLOATS_PER_BLOCK)
            weights = self.scores.at(first, filled)
            half = weights.as_dtype(FLOAT16, filled)
            core.cast(half[:count], weights[:count], "none")
            blocks = self.blocks[: filled * HALVES_OF_BLOCK]
            core.brcb(blocks, half)
            if first:
                self._load(value[first : first + count, :])
            tile = self.loaded.deque()
            for row, rows in pieces(count, sums):
                self._weigh(tile, row, rows)
            self.loaded.free(tile)
        self._fold(sums)
        core.add(self.result, self.result, self.work[:width])

    def _weigh(self, values: Local, row: int, rows: int) -> None:
        """Add *rows* values from *row* on to as many running sums."""
        core, width = self.core, self.p.width
        with core.independent():
            for column, columns in pieces(width, FLOATS_PER_REPEAT):
                count, blocks = rows * columns, columns // HALVES_OF_BLOCK
                start = self.blocks.offset_bytes + row * BLOCK_BYTES
                place = FLOAT16.nbytes(row * self.pitch + column)
                there = self.work.offset_bytes + FLOAT32.nbytes(column)
                core.mul_add_dst(
                    Local("ub", there, FLOAT32, count, 1, width // FLOATS_PER_BLOCK, 2 * blocks),
                    Local("ub", start, FLOAT16, count, 0, 1, blocks),
                    Local(
                        *("ub", values.offset_bytes + place, FLOAT16, count, 1),
                        *(self.pitch // HALVES_OF_BLOCK, blocks),
                    ),
                )

    def _fold(self, sums: int) -> None:
        """Reduce the running sums to one: first those beyond a power of two, then by halves."""
        half = 1 << (sums.bit_length() - 1)
        if sums > half:
            self._add_rows(half, sums - half)
        while half > 1:
            half //= 2
            self._add_rows(half, half)

    def _add_rows(self, first: int, rows: int) -> None:
        width = self.p.width
        here = self.work[: rows * width]
        self.core.add(here, here, self.work.at(first * width, rows * width))


def running_sums(width: int, chunk: int) -> int:
    """How many rows of values are summed separately."""
    return min(CHUNK_BYTES // FLOAT32.nbytes(width), MOST_SUMS, chunk)


# ---- oracle ----


def attend(p: VectorProblem, q: Array, k: Array, v: Array) -> Array:
    """The output for *q*, *k* and *v* as given."""
    pairs, width = p.requests * p.heads, p.width
    queries = q.reshape(pairs, width)
    found = np.empty((pairs, width), np.float16)
    for pair in range(pairs):
        request, head = divmod(pair, p.heads)
        if p.keys_lie_apart:
            own = [x.reshape(p.requests, p.keys, p.heads, width)[request, :, head] for x in (k, v)]
        else:
            own = [x.reshape(pairs, p.keys, width)[pair] for x in (k, v)]
        length = p.lengths[request]
        found[pair] = _attend(p.scale, queries[pair], *(x[:length] for x in own))
    return found.reshape(q.shape)


def _attend(scale: float, q: Array, k: Array, v: Array) -> Array:
    one = np.float32
    largest, total, result = one(LOWEST), one(0), np.zeros(q.size, one)
    chunk = CHUNK_BYTES // FLOAT16.nbytes(1) // q.size // FLOATS_PER_BLOCK * FLOATS_PER_BLOCK
    chunk = min(chunk, SCALES_BYTES // BLOCK_BYTES)
    with np.errstate(all="ignore"):
        for first in range(0, len(k), MOST_KEYS):
            keys, values = (x[first : first + MOST_KEYS].astype(one) for x in (k, v))
            scores = _scores(q.astype(one), keys) * one(scale)
            before, largest = largest, np.maximum(largest, scores.max())
            shrink, weights = (
                np.exp((x - largest).astype(np.float64)).astype(one) for x in (before, scores)
            )
            total = total * shrink + row_sums(weights[None])[0]
            if first:
                result = result * shrink
            half = weights.astype(np.float16).astype(one)
            result = result + _weighed(half, values, chunk)
        return away(result / total, FLOAT16)


def _scores(q: Array, keys: Array) -> Array:
    sums = np.zeros((len(keys), HALVES_OF_BLOCK), np.float32)
    for column in range(0, q.size, HALVES_OF_BLOCK):
        here = slice(column, column + HALVES_OF_BLOCK)
        sums = sums + keys[:, here] * q[here]
    sums = sums[:, :FLOATS_PER_BLOCK] + sums[:, FLOATS_PER_BLOCK:]
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return np.asarray(sums[:, 0])


def _weighed(weights: Array, values: Array, chunk: int) -> Array:
    count = running_sums(values.shape[1], min(chunk, len(values)))
    sums = np.zeros((count, values.shape[1]), np.float32)
    for first in range(0, len(values), chunk):
        part = slice(first, first + chunk)
        products = weights[part, None] * values[part]
        for row in range(0, len(products), count):
            more = products[row : row + count]
            sums[: len(more)] += more
    half = 1 << (count.bit_length() - 1)
    sums[: count - half] += sums[half:]
    while half > 1:
        half //= 2
        sums[:half] += sums[half : 2 * half]
    return np.asarray(sums[0])
