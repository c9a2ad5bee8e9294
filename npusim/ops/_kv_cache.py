"""Writing keys and values to a paged cache, shared by two functions of torch_npu.

A cache has pages, called blocks, of *block_size* tokens each; a slot is the position of a token,
``block * block_size + offset``. Tokens with a negative slot are skipped. Nothing is computed:
values are copied unchanged.

The scalar unit reads a token's slot from global memory, then mte2 loads the token into the buffer
and mte3 stores it to its slot. A few tokens are copied one after the other, key before value,
through one buffer, or together if the cache is in fractals; for many the copies overlap.

Sources: ops-transformer@05c401f9 attention/scatter_pa_kv_cache, and ascend-transformer-boost
ddcc8b62 src/kernels/mixkernels/reshape_and_cache. 310P first copies the list of slots to the buffer
if the cache is in fractals. That slots are read one by one even if copies overlap is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import INT8, INT32, UINT8, Array, DType
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.data.tensor import Operand, Tensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, MAX_BURSTS, Global, Load, Local, ScalarLoadGlobal
from npusim.kernel import (
    Block,
    GmView,
    GmViews,
    Step,
    TileQueue,
    VectorCore,
    bindings,
    pieces,
    share,
)
from npusim.kernel.steps import Integers
from npusim.kernel.table import spread
from npusim.ops import _vocabulary as ops


@dataclass(frozen=True, slots=True)
class Side:
    """The keys, or the values: `(tokens, numbers)` in the kernel."""

    name: str
    """key or value."""
    element: DType
    numbers: int
    """Elements of a token: heads x width."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        return self.element.nbytes(self.numbers)

    @property
    def fractal_columns(self) -> int:
        """C0: elements in a block of 32 bytes."""
        return BLOCK_BYTES * 8 // self.element.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    tokens: int
    sides: tuple[Side, Side]
    blocks: int
    block_size: int
    is_nz: bool
    """Whether a block is `(numbers / C0, block_size, C0)` rather than `(block_size, numbers)`."""
    slots: tuple[int, ...]
    """The slot of each token; without values consecutive ones."""

    @property
    def slot_dtype(self) -> DType:
        """The type of the slots, which are the last input."""
        return self.inputs[-1].element


def support_of(
    dtypes: tuple[DType, ...],
    slots: str,
    slot_dtypes: tuple[DType, ...] = (INT32,),
    *,
    layouts: tuple[str, ...] = ("ND",),
    mixed: tuple[str, ...] = (),
    **more: Any,
) -> tuple[ops.Row, ...]:
    """Rows of tokens and caches of one type, in *layouts*, or of two, in those that are *mixed*.

    Of two types only keys are int8 (ops-transformer@3a280bc, scatter_pa_kv_cache_def.cpp).
    """
    more[slots] = ops.Operands(slot_dtypes, shape="tokens")
    kinds = [(dtype, dtype, layouts) for dtype in dtypes]
    if mixed:
        floats = [dtype for dtype in dtypes if dtype is not INT8]
        kinds += [(key, value, mixed) for key in dtypes for value in floats if key is not value]
    return tuple(
        ops.Row(
            key=ops.Operands((key,), shape="tokens heads width"),
            value=ops.Operands((value,), shape="tokens heads value_width"),
            key_cache=ops.Operands((key,), own),
            value_cache=ops.Operands((value,), own),
            **more,
        )
        for key, value, own in kinds
    )


def tokens_of(contract: ops.Contract) -> tuple[Operand, Operand]:
    """key and value, `(tokens, heads, width)`, whose widths may differ."""
    k, v = contract.operand("key"), contract.operand("value")
    for operand in (k, v):
        contract.require(
            operand.shape[1] * operand.shape[2] > 0,
            f"{operand.name} must have heads and a width, not shape {operand.shape}; leave the "
            f"call out",
        )
    return k, v


def caches_of(contract: ops.Contract) -> tuple[Operand, Operand]:
    """Both caches, of the types of their tokens and in one layout."""
    k, v = contract.matrix("key_cache"), contract.matrix("value_cache")
    contract.require(
        k.spec.layout == v.spec.layout,
        f"value_cache must have the layout of key_cache, {k.spec.layout}, not {v.spec.layout}; "
        f"pass one of them through npu_format_cast",
    )
    for cache in (k, v):
        block_size = cache.shape[-2]
        contract.require(
            k.spec.layout == "ND" or block_size % FRACTAL_ROWS == 0,
            f"{cache.name} must have blocks of a multiple of {FRACTAL_ROWS} tokens in FRACTAL_NZ, "
            f"not {block_size}; choose other blocks",
        )
    return k, v


def checked(
    contract: ops.Contract,
    tokens: tuple[Operand, Operand],
    caches: tuple[Operand, Operand],
    name: str,
    *,
    is_nz: bool,
) -> Problem:
    """The call, if the caches fit the tokens and the slots, called *name*, lie in them."""
    count = tokens[0].shape[0]
    sides = [Side(each.name, each.element, each.shape[1] * each.shape[2]) for each in tokens]
    pages = [
        _pages(contract, cache, operand, is_nz)
        for cache, operand in zip(caches, tokens, strict=True)
    ]
    contract.require(
        pages[0] == pages[1],
        f"value_cache must have the blocks of key_cache, {pages[0][0]} of {pages[0][1]} tokens, "
        f"not {pages[1][0]} of {pages[1][1]}; make both alike",
    )
    blocks, block_size = pages[0]
    where = contract.operand(name)
    return Problem(
        inputs=(*tokens, *caches, where),
        outputs={cache.name: cache.spec for cache in caches},
        tokens=count,
        sides=(sides[0], sides[1]),
        blocks=blocks,
        block_size=block_size,
        is_nz=is_nz,
        slots=_slots(contract, name, where, blocks * block_size),
    )


def _pages(contract: ops.Contract, cache: Operand, tokens: Operand, is_nz: bool) -> tuple[int, int]:
    """Number of blocks of *cache*, and of tokens per block."""
    _, heads, width = tokens.shape
    lanes = BLOCK_BYTES * 8 // tokens.element.bits
    shape, numbers = cache.shape, heads * width
    if not is_nz:
        contract.require(
            len(shape) == 4 and shape[2:] == (heads, width),
            f"{cache.name} must have shape (blocks, block_size, {heads}, {width}) for "
            f"{tokens.name} of shape {tokens.shape}, not {shape}; make it so",
        )
        return shape[0], shape[1]
    contract.require(
        numbers % lanes == 0,
        f"{tokens.name} must have a multiple of {lanes} elements a token for a cache in fractals, "
        f"not {numbers}; pad the width",
    )
    contract.require(
        len(shape) == 4 and (shape[1], shape[3]) == (numbers // lanes, lanes),
        f"{cache.name} must have shape (blocks, {numbers // lanes}, block_size, {lanes}) for "
        f"{tokens.name} of shape {tokens.shape}, not {shape}; make it so",
    )
    return shape[0], shape[2]


def _slots(contract: ops.Contract, name: str, where: Operand, room: int) -> tuple[int, ...]:
    """The slot of each token, which must be unique and in the cache."""
    if where.array is None:
        contract.require(
            where.spec.size <= room,
            f"{name} must name at most the {room} slots of the caches, not {where.spec.size}; "
            f"make the caches larger",
        )
        return tuple(range(where.spec.size))
    largest = int(where.array.max(initial=-1))
    contract.require(
        largest < room,
        f"{name} must name slots below {room}, which the caches have, not {largest}; "
        f"make the caches larger, or pass -1 to leave the token out",
    )
    named, counts = np.unique(where.array[where.array >= 0], return_counts=True)
    for twice in named[counts > 1][:1]:
        contract.fail(
            f"{name} must name each slot once, not {twice} twice: which token is kept is open on a "
            f"card; leave one of the tokens out with -1"
        )
    return tuple(where.array.tolist())


# ---- tiling ----

MANY_TOKENS = 1000
"""Number of tokens from which on copies overlap (scatter_pa_kv_cache_tiling.cpp)."""
PIECE_BYTES = {"2201": 48 * 1024, "2002": 32 * 1024}
"""Architecture -> bytes copied at a time if copies overlap (reshape_and_cache of
ascend-transformer-boost; 310P reserves room for the list of slots)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has a contiguous run of tokens."""

    tokens_of_core: tuple[int, ...]
    piece_bytes: int
    """Most bytes that one copy moves."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """Tokens are divided evenly; a few are copied one after the other. None without tokens.

    That tokens too long for the buffer are handled like many tokens is assumed.
    """
    if not p.tokens:
        return None
    cores = min(p.tokens, len(spec.vector_cores))
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    sizes = [side.token_bytes for side in p.sides]
    need_bytes = sum(sizes) if p.is_nz else max(sizes)
    whole = all(size % BLOCK_BYTES == 0 for size in sizes)
    in_turn = p.tokens < MANY_TOKENS and whole and need_bytes <= ub_bytes
    layout, pace = "nz_" if p.is_nz else "", "in_turn" if in_turn else "pieces"
    why = f"fewer than {MANY_TOKENS} tokens, of whole blocks, that fit the buffer"
    other = f"{MANY_TOKENS} tokens or more, or some that are no whole blocks or too long"
    return Plan(
        block_dim=cores,
        template=layout + pace,
        reason=why if in_turn else other,
        tokens_of_core=tuple(len(share(p.tokens, cores, core)) for core in range(cores)),
        piece_bytes=max(sizes) if in_turn else PIECE_BYTES[spec.arch],
    )


# ---- kernel ----

LINE_BYTES = 64
"""Bytes of a line of the scalar unit's data cache, which also holds the slots next to the one that
was read (asc-devkit, DataCacheCleanAndInvalid.md)."""
SLOT = "slot"
"""The register of a token's slot."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A run of tokens for each core; cores with equally many have equal lists of slots."""
    names = GmView.vector(p.inputs[-1].name, p.slot_dtype, p.tokens)
    bound = bindings(*(view for side in p.sides for view in _views(p, side)), names)
    counts = np.array(plan.tokens_of_core)
    core, number = spread(counts, 0 * counts)
    slot = np.array(p.slots)
    blocks: list[Block] = []
    for count in sorted({*plan.tokens_of_core}, reverse=True):
        own = np.flatnonzero(counts[core] == count)
        writer = TokenWriter(VectorCore("kv_cache", spec, alone=True), p, plan, count)
        steps = writer.reads(names, own, core[own], number[own])
        kept = own[slot[own] >= 0]
        views: list[GmViews] = []
        for side in p.sides:
            tokens, _ = _views(p, side)
            views.append(GmViews.of(tokens, kept, 0, 1, side.numbers))
            views.append(_places(p, side, slot[kept]))
        steps.append(Step(writer.token, tuple(views), core[kept], kept))
        blocks += writer.core.launch(*steps, bound=lambda _: bound)
    return tuple(blocks)


def _views(p: Problem, side: Side) -> tuple[GmView, GmView]:
    """The tokens of *side*, `(tokens, numbers)`, and its cache, `(slots, numbers)`."""
    slots = p.blocks * p.block_size
    tokens = GmView.of(side.name, side.element, p.tokens, side.numbers)
    return tokens, GmView.of(f"{side.name}_cache", side.element, slots, side.numbers)


def _places(p: Problem, side: Side, slots: Integers) -> GmViews:
    """The places of *slots* in a cache: `(1, numbers)`, in fractals `(numbers / C0, C0)`."""
    _, cache = _views(p, side)
    if not p.is_nz:
        return GmViews.of(cache, slots, 0, 1, cache.columns)
    lanes, (block, offset) = side.fractal_columns, np.divmod(slots, p.block_size)
    first = block * p.block_size * cache.columns + offset * lanes
    rows, columns = np.full_like(slots, cache.columns // lanes), np.full_like(slots, lanes)
    offset_bytes = side.element.nbytes(1) * first
    return GmViews(cache.name, side.element, rows, columns, p.block_size * lanes, offset_bytes)


class TokenWriter:
    """The buffers of a core that has *count* tokens, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan, count: int) -> None:
        # Four pieces of 48 KiB fill the whole unified buffer.
        self.core, self.p, self.plan, self.count = core, p, plan, count
        self.listed: Local | None = None
        """The slots of the core's tokens, if the buffer holds them."""
        if core.is_310p and p.is_nz:
            # A load copies whole blocks.
            self.listed = core.tile(p.slot_dtype, count)
        if plan.template == "in_turn":
            # Values use the buffer of the keys after these have been stored.
            self.queues = [self._queue(plan.piece_bytes)] * 2
        elif plan.template == "nz_in_turn":
            self.queues = [self._queue(side.token_bytes) for side in p.sides]
        else:
            self.queues = [self._queue(plan.piece_bytes, 2) for _ in p.sides]

    def _queue(self, nbytes: int, depth: int = 1) -> TileQueue:
        return self.core.tiles(UINT8, nbytes, "mte2", "mte3", depth)

    # ---- slots ----

    def reads(self, names: GmView, token: Integers, core: Integers, number: Integers) -> list[Step]:
        """Read the slot of each *token*, including skipped ones."""
        if self.listed is not None:
            first = number == 0
            lists = GmViews.of(names, 0, token[first], 1, self.count)
            load = Step(self.load_slots, (lists,), core[first], token[first])
            return [load, Step(self.read_listed, (number,), core, token)]
        is_cached = (number > 0) & (self.p.slot_dtype.nbytes(1) * token % LINE_BYTES > 0)
        places = GmViews.of(names, 0, token, 1, 1)
        return [Step(self.read_slot, (places, is_cached), core, token)]

    def load_slots(self, slots: GmView) -> None:
        """Load *slots* `(tokens,)` of a core into the buffer."""
        assert self.listed is not None
        whole_bytes = align_up(slots.nbytes, BLOCK_BYTES)
        src = Global(slots.name, slots.offset_bytes, whole_bytes)
        self.core.emit(Load(self.listed.as_dtype(UINT8), src))
        self.core.sync("mte2", "scalar")

    def read_listed(self, number: int) -> None:
        """Read the slot of token *number* of the core from the buffer."""
        assert self.listed is not None
        self.core.get_value(SLOT, self.listed[number : number + 1])

    def read_slot(self, slot: GmView, is_cached: bool) -> None:
        """Read the slot of a token from global memory."""
        self.core.emit(ScalarLoadGlobal(SLOT, slot.operand, slot.dtype, is_cached))

    # ---- tokens ----

    def token(self, key: GmView, key_slot: GmView, value: GmView, value_slot: GmView) -> None:
        """Copy *key* and *value*, `(1, numbers)`, to their slots, see :func:`_places`."""
        pairs = [(self.queues[0], key, key_slot), (self.queues[1], value, value_slot)]
        if self.plan.template == "nz_in_turn":
            # Both loads are issued before the first store.
            loaded = [self._load(queue, token) for queue, token, _ in pairs]
            for tile, (queue, _, place) in zip(loaded, pairs, strict=True):
                self._store(queue, tile, place)
            return
        for queue, token, place in pairs:
            step = self.plan.piece_bytes * 8 // token.dtype.bits
            for start, count in pieces(token.columns, step):
                tile = self._load(queue, token[:, start : start + count])
                self._store(queue, tile, self._part(place, start, count))

    def _part(self, place: GmView, start: int, count: int) -> GmView:
        """*count* elements of a token from *start*, at its slot."""
        if not self.p.is_nz:
            return place[:, start : start + count]
        lanes = place.columns
        return place[start // lanes : (start + count) // lanes, :]

    def _load(self, queue: TileQueue, token: GmView) -> Local:
        tile = queue.alloc()
        self.core.data_copy(tile[: token.nbytes], token.operand)
        queue.enque(tile)
        return queue.deque()

    def _store(self, queue: TileQueue, tile: Local, place: GmView) -> None:
        """Store *tile* to *place*, one burst for each of its rows, and free it."""
        for first, count in pieces(place.rows, MAX_BURSTS):
            part = place[first : first + count, :]
            src = tile.at(first * place.row_bytes, part.nbytes)
            self.core.data_copy(part.operand, src, part.row_bytes if part.rows > 1 else 0)
        queue.free(tile)


# ---- oracle ----


def written(cache: Array, tokens: Array, slots: Array, *, is_nz: bool) -> Array:
    """*cache* with *tokens* `(tokens, heads, width)` at their *slots*; negative ones are skipped.

    *cache* is `(blocks, block_size, heads, width)`, or `(blocks, numbers / C0, block_size, C0)`.
    """
    result = np.array(cache)
    kept = slots >= 0
    count = tokens.shape[1] * tokens.shape[2]
    numbers, places = tokens.reshape(-1, count)[kept], slots[kept]
    if not is_nz:
        result.reshape(-1, count)[places] = numbers
        return result
    _, fractals, block_size, lanes = result.shape
    blocks, offsets = np.divmod(places, block_size)
    result[blocks, :, offsets, :] = numbers.reshape(-1, fractals, lanes)
    return result


def caches_after(
    given: ops.Given, slots: Array, *, is_nz: bool
) -> tuple[Array | Tensor, Array | Tensor]:
    """Both caches with the tokens of a call; those in FRACTAL_NZ keep their layout."""
    found: list[Array | Tensor] = []
    for cache, tokens in ((given.key_cache, given.key), (given.value_cache, given.value)):
        if isinstance(cache, Tensor):
            new = written(cache.numpy(), tokens, slots, is_nz=is_nz)
            found.append(Tensor.of(new, cache.spec.layout))
        else:
            found.append(written(cache, tokens, slots, is_nz=is_nz))
    return found[0], found[1]


def outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    """Both caches, as torch has them."""
    return tuple((given[name].shape, given[name].dtype) for name in ("key_cache", "value_cache"))
