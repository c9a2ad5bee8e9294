"""The kernels of npu_kv_rmsnorm_rope_cache: how tokens are split over cores, and the programs.

ops-transformer@05c401f9 posembedding/kv_rms_norm_rope_cache, op_kernel (b16_mtp, b16_b1sd, b16_pa)
and op_host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT32, INT64
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local, PlacesOf, ScalarLoadGlobal
from npusim.kernel import Binding, Block, GmView, Step, VectorCore
from npusim.kernel.rows import pieces
from npusim.ops import _vocabulary as ops
from npusim.ops._rotary import columns_of_rows
from npusim.ops.npu_kv_rmsnorm_rope_cache.check import (
    FRACTAL,
    LATENT,
    ROTATED,
    Problem,
    in_pages,
)

HALF = ROTATED // 2
LANES, BLOCK = 64, 8
"""float32 in a repeat, and in a block."""

# ---- tiling: op_host/kv_rms_norm_rope_cache_ds_tiling.cpp ----

LOOP_TOKENS, BATCHES = 16, 4
"""Tokens of a loop, and batches of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Runs of tokens, or of batches."""

    each: int
    """Tokens of a core, or batches of a block."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Choose a template."""
    cores, count = len(spec.vector_cores), p.batches * p.tokens
    writes_pages = in_pages(p.mode, outputs_kv=p.outputs_kv)
    if writes_pages or p.has_lines:
        each = ceil_div(count, cores)
        reason = "pages that are written so" if writes_pages else "each token has a line of cos"
        return Plan(block_dim=ceil_div(count, each), template="tokens", reason=reason, each=each)
    each = BATCHES if p.batches % BATCHES == 0 else 1
    blocks = p.batches // each
    reason = f"a line of cos for each of {p.batches} batches"
    return Plan(block_dim=min(blocks, cores), template="batches", reason=reason, each=each)


# ---- kernel ----

PAIRS: tuple[PlacesOf, ...] = ("even", "odd")
PLACE = "place"
"""The register of a token's place."""
LINE_ENTRIES = 8
"""Entries of index in a line of the scalar unit's cache, 64 bytes."""
ORDERS = 2 * LOOP_TOKENS + 4
"""Turns of a loop: rotation, its tokens, the norm, its tokens, and the end."""
CACHES = (("k_cache", "k_rope", ROTATED), ("ckv_cache", "c_kv", LATENT))
"""Caches, the outputs with the same values, and their columns."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Loop by loop: rotate tokens, store them one by one, norm them, store them one by one."""
    kernel = Rows(VectorCore("npu_kv_rmsnorm_rope_cache", spec), p, plan)
    rotate, norm, end = (_Calls(x) for x in (kernel.rotate, kernel.norm, kernel.end))
    give, look, store = (_Calls(x) for x in (kernel.store, kernel.look, kernel.store))
    for core, number, tokens in _loops(p, plan):
        turn, index = number * ORDERS, GmView.vector("index", INT64, len(tokens))
        rotate.add(core, turn, *_rotated(p, tokens), index.shifted_to(INT64.nbytes(tokens[0])))
        norm.add(core, turn + 1 + LOOP_TOKENS, _rows_of(p, tokens, 0, LATENT))
        end.add(core, turn + ORDERS - 1)
        for side, (cache, given, columns) in enumerate(CACHES):
            for row, token in enumerate(tokens):
                at = turn + 1 + side * (LOOP_TOKENS + 1) + row
                if p.outputs_kv:
                    view = GmView.vector(given, p.element, columns)
                    give.add(core, at, row, view.shifted_to(_bytes(p, token, columns)))
                look.add(core, at, row, *_entry(p, plan, token))
                if p.places[token] >= 0:
                    store.add(core, at, row, _target(p, cache, columns, p.places[token]))
    calls = (rotate, norm, give, look, store, end)
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), *p.outputs)}
    steps = [each.step() for each in calls if each.cores]
    return kernel.core.launch(*steps, begin=kernel.begin, bound=lambda _: bound)


class _Calls:
    """Calls of a stage: their cores, turns and arguments."""

    def __init__(self, stage: Callable[..., None]) -> None:
        self.stage, self.cores = stage, list[int]()
        self._turns, self._arguments = list[int](), list[tuple[Any, ...]]()

    def add(self, core: int, turn: int, *arguments: object) -> None:
        self.cores.append(core)
        self._turns.append(turn)
        self._arguments.append(arguments)

    def step(self) -> Step:
        columns = tuple(map(list, zip(*self._arguments, strict=True)))
        order = np.array(self._turns, np.int64)
        return Step(self.stage, columns, np.array(self.cores, np.int64), order, keeps_slots=True)


def _loops(p: Problem, plan: Plan) -> Iterator[tuple[int, int, list[int]]]:
    """Core, index of the loop on it, and tokens."""
    count = p.batches * p.tokens
    if plan.template == "tokens":
        for core, (start, size) in enumerate(pieces(count, plan.each)):
            for number, (first, some) in enumerate(pieces(size, LOOP_TOKENS)):
                yield core, number, list(range(start + first, start + first + some))
        return
    for block in range(p.batches // plan.each):
        core, before = block % plan.block_dim, block // plan.block_dim * p.tokens
        for token in range(p.tokens):
            batches = range(block * plan.each, (block + 1) * plan.each)
            yield core, before + token, [batch * p.tokens + token for batch in batches]


def _bytes(p: Problem, row: int, columns: int) -> int:
    return p.element.nbytes(row * columns)


def _rows_of(p: Problem, tokens: list[int], column: int, columns: int) -> GmView:
    """*columns* of kv of *tokens*, which are evenly apart."""
    width = LATENT + ROTATED
    apart = tokens[1] - tokens[0] if len(tokens) > 1 else 1
    place = p.element.nbytes(tokens[0] * width + column)
    return GmView("kv", p.element, len(tokens), columns, apart * width, place)


def _rotated(p: Problem, tokens: list[int]) -> tuple[GmView, ...]:
    """The part of kv of *tokens* that is rotated, and its cos and sin."""
    first = tokens[0] if p.has_lines else tokens[0] // p.tokens
    # A row for each token, or for each of as many batches.
    lines = [GmView.vector(name, p.element, len(tokens) * ROTATED) for name in ("cos", "sin")]
    place = _bytes(p, first, ROTATED)
    return _rows_of(p, tokens, LATENT, ROTATED), *(x.shifted_to(place) for x in lines)


def _entry(p: Problem, plan: Plan, token: int) -> tuple[GmView, bool]:
    """The index entry of *token*, and whether the scalar unit has read its line before."""
    number = token
    if p.mode == "PA_BLK_BNSD":
        batch, place = divmod(token, p.tokens)
        number = batch * ceil_div(p.tokens, p.block_size) + place // p.block_size
    entry = GmView.vector("index", INT64, 1).shifted_to(INT64.nbytes(number))
    is_first = number % LINE_ENTRIES == 0 or token % plan.each == 0
    return entry, not is_first


def _target(p: Problem, cache: str, columns: int, place: int) -> GmView:
    """The destination of a token in *cache*."""
    if p.mode != "PA_NZ":
        view = GmView.vector(cache, p.element, columns)
        return view.shifted_to(_bytes(p, place, columns))
    block, row = divmod(place, p.block_size)
    first = p.element.nbytes(block * p.block_size * columns + row * FRACTAL)
    pitch = p.block_size * FRACTAL
    return GmView(cache, p.element, columns // FRACTAL, FRACTAL, pitch, first)


class Rows:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        self.in_batches = plan.template == "batches"
        self.lists_places = not self.in_batches and p.mode in ("Norm", "PA", "PA_BNSD")
        self.lists_places = self.lists_places and not p.outputs_kv
        """Whether a loop's places are loaded into the buffer first."""
        rows, depth = (plan.each, 1) if self.in_batches else (LOOP_TOKENS, 2)
        size = rows * LATENT
        self.x = core.vecin(p.element, size, depth)
        self.out = core.vecout(p.element, size, depth)
        self.wide, self.square, self.sums = (core.tile(FLOAT32, size) for _ in range(3))
        self.column = core.tile(FLOAT32, align_up(rows, BLOCK))
        self.gamma = core.tile(FLOAT32, LATENT)
        self.gamma_in = core.vecin(p.element, LATENT)
        self.places = core.tiles(INT64, LOOP_TOKENS, "mte2", "scalar")

    def begin(self) -> None:
        """Load gamma as fp32; with batches it is loaded for each token."""
        if not self.in_batches:
            self._take_gamma()

    def _take_gamma(self) -> None:
        core, view = self.core, GmView.vector("gamma", self.p.element, LATENT)
        loaded = core.load(self.gamma_in, view)
        core.cast(self.gamma, loaded, "none")
        self.gamma_in.free(loaded)

    def rotate(self, rest: GmView, cos: GmView, sin: GmView, index: GmView) -> None:
        """Rotate *rest* `(rows, 64)` by rows of cos and sin; the result stays to be stored."""
        core, element, count = self.core, self.p.element, rest.rows * ROTATED
        tile = self.x.alloc()
        for place, view in enumerate((rest, cos, sin)):
            core.fill(tile[place * count :][:count], view)
        self.x.enque(tile)
        if self.lists_places:
            core.copy_in(self.places, index)
            self.places.deque()
        tile = self.x.deque()
        lines = [self.wide[:count], self.wide.at(count, count)]
        for number, line in enumerate(lines):
            core.cast(line, tile.at((number + 1) * count, count), "none")
        half = count // 2
        pairs = [self.sums[:half], self.sums.at(half, half)]
        narrow = [self.sums.at(place, half).as_dtype(element, half) for place in (count, 2 * count)]
        with core.independent():
            for places, part in zip(PAIRS, narrow, strict=True):
                core.gather_mask(places, part, tile[:count])
        for pair, part in zip(pairs, narrow, strict=True):
            core.cast(pair, part, "none")
        self.x.free(tile)
        first, second = self.square[:count], self.square.at(count, count)
        self._multiply(first, pairs, lines[0])
        core.mul(pairs[1], pairs[1], -1.0)
        self._multiply(second, pairs[::-1], lines[1])
        core.add(first, first, second)
        self._leave(first)

    def _multiply(self, dst: Local, pairs: list[Local], line: Local) -> None:
        """Both halves of *dst* `(rows, 64)` = *pairs* `(rows, 32)` x those of *line*."""
        with self.core.independent():
            for side, of in enumerate(pairs):
                here = range(side * HALF, (side + 1) * HALF)
                to, turns = (columns_of_rows(x, ROTATED, here) for x in (dst, line))
                factors = columns_of_rows(of, HALF, range(HALF))
                for result, factor, turn in zip(to, factors, turns, strict=True):
                    self.core.mul(result, factor, turn)

    def norm(self, x: GmView) -> None:
        """Norm *x* `(rows, 512)`; the rotated columns have been stored."""
        core, rows, count = self.core, x.rows, x.rows * LATENT
        self._free()
        loaded = core.load(self.x, x)
        wide = self.wide[:count]
        core.cast(wide, loaded[:count], "none")
        self.x.free(loaded)
        core.mul(self.square[:count], wide, wide)
        if self.in_batches:
            self._take_gamma()
        # (rows, 512) -> (rows, 256) -> (rows, 128) -> (rows, 64) -> (rows,)
        source, target = self.square, self.sums
        for columns in (256, 128, 64):
            size = rows * columns
            each = [replace(source.at(x, size), repeat_stride=16) for x in (0, LANES)]
            core.add(target[:size], *each)
            source, target = target, source
        column = self.column[:rows]
        core.whole_reduce("sum", column, source[: rows * LANES])
        core.mul(column, column, 1 / LATENT)
        core.add(column, column, self.p.epsilon)
        core.sqrt(column, column)
        filled = align_up(rows, BLOCK)
        blocks = target[: filled * BLOCK]
        core.brcb(blocks, self.column[:filled])
        with core.independent():
            for row in range(rows):
                here = wide.at(row * LATENT, LATENT)
                root = replace(blocks.at(row * BLOCK, BLOCK), count=LATENT)
                core.div(here, here, replace(root, block_stride=0, repeat_stride=0))
        with core.independent():
            for row in range(rows):
                here = wide.at(row * LATENT, LATENT)
                core.mul(here, here, self.gamma)
        self._leave(wide)

    def _leave(self, found: Local) -> None:
        """Round *found* into the output queue."""
        core, out = self.core, self.out.alloc()
        core.cast(out[: found.count], found)
        self.out.enque(out)
        self.out.deque()
        if self.lists_places:
            core.barrier()

    def _free(self) -> None:
        if self.lists_places:
            self.core.barrier()
        self.out.free(*self.out.in_use)

    def look(self, row: int, entry: GmView, is_cached: bool) -> None:
        """Read the place of token *row* of the loop."""
        core = self.core
        if self.lists_places:
            (places,) = self.places.in_use
            core.get_value(PLACE, places[row : row + 1])
        else:
            core.emit(ScalarLoadGlobal(PLACE, entry.operand, INT64, is_cached))
        if self.in_batches:
            core.barrier()
        else:
            core.sync("scalar", "mte3")

    def store(self, row: int, target: GmView) -> None:
        """Store token *row* to *target*."""
        (out,), count = self.out.in_use, target.rows * target.columns
        pitch = target.columns if target.rows > 1 else None
        self.core.put_rows(out.at(row * count, count), target, pitch)

    def end(self) -> None:
        """Signal that all tokens of the loop have been stored."""
        self._free()
        if self.lists_places:
            self.places.free(*self.places.in_use)
