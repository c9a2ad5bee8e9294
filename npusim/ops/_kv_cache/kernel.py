"""The program that each core runs to write tokens into a paged cache.

The scalar unit reads a token's slot from global memory, then mte2 brings the token into the buffer
and mte3 takes it to its slot. Few tokens go one after the other, key before value, through one
buffer, or together where the cache lies in fractals; of many the copies overlap.

Sources: see :mod:`npusim.ops._kv_cache.tiling`. 310P copies the list of slots to the buffer first,
where the cache lies in fractals. Assumed: that slots are read one by one also where copies overlap.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import INT32, UINT8
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, MAX_BURSTS, Global, Load, ScalarLoad, ScalarLoadGlobal
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops._kv_cache.contract import Problem, Side
from npusim.ops._kv_cache.tiling import Plan

__all__ = ["build"]

LINE_BYTES = 64
"""Of the scalar unit's data cache, which keeps what lies beside a slot that was read (asc-devkit,
DataCacheCleanAndInvalid.md)."""
SLOT = "slot"
"""The register of a token's slot."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, each with a program of its own: slots differ."""
    names = GmView.vector(p.inputs[-1].name, INT32, p.tokens)
    tensors = [view for side in p.sides for view in _views(p, side)]
    blocks: list[Block] = []
    first = 0
    for core, count in enumerate(plan.tokens_of_core):
        program = TokenWriter(spec, p, plan, names, count).program(first)
        bound = bindings(*tensors, names)
        blocks.append(Block(core, spec.vector_cores[core], program, bound))
        first += count
    return tuple(blocks)


def _views(p: Problem, side: Side) -> tuple[GmView, GmView]:
    """The tokens of *side*, `(tokens, numbers)`, and its cache, `(slots, numbers)`."""
    tokens = GmView.of(side.name, p.element, p.tokens, side.numbers)
    return tokens, GmView.of(side.cache, p.element, p.blocks * p.block_size, side.numbers)


class TokenWriter:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan, slots: GmView, count: int) -> None:
        self.p, self.plan, self.slots, self.count = p, plan, slots, count
        # Four pieces of 48 KiB are all of the unified buffer.
        core = spec.cores[spec.vector_kinds[0]]
        self.builder = Builder("kv_cache", core, spec.sync, alone=True)
        self.listed: Slot | None = None
        """The slots of the core's tokens, where the buffer holds them."""
        if spec.arch == "2002" and p.is_nz:
            # A load brings whole blocks.
            self.listed = self.builder.claim("ub", INT32.nbytes(count))
        self.is_in_turn = plan.template in ("in_turn", "nz_in_turn")
        self.queues = self._queues()

    def _queues(self) -> dict[Side, Queue]:
        """The buffers through which keys and values pass."""
        p, queue = self.p, self.builder.queue
        if not self.is_in_turn:
            nbytes = self.plan.piece_bytes
            return {side: queue("ub", nbytes, "mte2", "mte3", 2) for side in p.sides}
        if p.is_nz:
            return {side: queue("ub", p.token_bytes(side), "mte2", "mte3") for side in p.sides}
        # Values use the buffer of the keys once these have left it.
        shared = queue("ub", self.plan.piece_bytes, "mte2", "mte3")
        return dict.fromkeys(p.sides, shared)

    def program(self, first: int) -> Program:
        """The tokens from number *first* on; those with a negative slot are read and left out."""
        if self.listed is not None:
            self._load_slots(first)
        for index, slot in enumerate(self.p.slots[first : first + self.count]):
            self._read_slot(first, index)
            if slot < 0:
                continue
            views: list[GmView] = []
            for side in self.p.sides:
                tokens, cache = _views(self.p, side)
                views += [tokens[first + index : first + index + 1, :], self._place(cache, slot)]
            repeat(self.builder, self._token, *views)
        return self.builder.build()

    # ---- slots ----

    def _load_slots(self, first: int) -> None:
        """The slots of the core's tokens into the buffer."""
        assert self.listed is not None
        nbytes = INT32.nbytes(self.count)
        src = Global(self.slots.name, INT32.nbytes(first), align_up(nbytes, BLOCK_BYTES))
        self.builder.emit(Load(self.listed.of(UINT8, nbytes), src))
        self.builder.sync("mte2", "scalar")

    def _read_slot(self, first: int, index: int) -> None:
        """The slot of token *index* of the core, whose first token is number *first*."""
        if self.listed is not None:
            self.builder.emit(ScalarLoad(SLOT, self.listed.of(INT32, self.count).at(index, 1)))
            return
        offset_bytes = INT32.nbytes(first + index)
        is_cached = index > 0 and offset_bytes % LINE_BYTES > 0
        src = Global(self.slots.name, offset_bytes, INT32.nbytes(1))
        self.builder.emit(ScalarLoadGlobal(SLOT, src, INT32, is_cached))

    # ---- tokens ----

    def _place(self, cache: GmView, slot: int) -> GmView:
        """Where *slot* of *cache* is: `(1, numbers)`, in fractals `(numbers / C0, C0)`."""
        p = self.p
        if not p.is_nz:
            return cache[slot : slot + 1, :]
        block, offset = divmod(slot, p.block_size)
        lanes = p.fractal_columns
        numbers = block * p.block_size * cache.columns + offset * lanes
        return replace(
            cache,
            rows=cache.columns // lanes,
            columns=lanes,
            pitch=p.block_size * lanes,
            offset_bytes=p.element.nbytes(numbers),
        )

    def _token(self, key: GmView, key_slot: GmView, value: GmView, value_slot: GmView) -> None:
        """*key* and *value*, `(1, numbers)`, to their slots, see :meth:`_place`."""
        pairs = dict(zip(self.p.sides, ((key, key_slot), (value, value_slot)), strict=True))
        if self.plan.template == "nz_in_turn":
            # Both are on their way in before the first leaves.
            slots = [self._load(self.queues[side], token) for side, (token, _) in pairs.items()]
            for slot, (side, (_, place)) in zip(slots, pairs.items(), strict=True):
                self._store(self.queues[side], slot, place)
            return
        for side, (token, place) in pairs.items():
            step = self.plan.piece_bytes * 8 // self.p.element.bits
            for start, count in pieces(token.columns, step):
                slot = self._load(self.queues[side], token[:, start : start + count])
                self._store(self.queues[side], slot, self._part(place, start, count))

    def _part(self, place: GmView, start: int, count: int) -> GmView:
        """*count* numbers of a token from *start* on, at its slot."""
        if not self.p.is_nz:
            return place[:, start : start + count]
        lanes = self.p.fractal_columns
        return place[start // lanes : (start + count) // lanes, :]

    def _load(self, queue: Queue, token: GmView) -> Slot:
        slot = queue.alloc()
        self.builder.data_copy(slot.of(UINT8, token.nbytes), token.operand)
        queue.enque(slot)
        return queue.deque()

    def _store(self, queue: Queue, slot: Slot, place: GmView) -> None:
        """What is in *slot* to *place*, a burst for each of its rows."""
        for first, count in pieces(place.rows, MAX_BURSTS):
            part = place[first : first + count, :]
            src = slot.of(UINT8, part.nbytes, first * place.row_bytes)
            self.builder.data_copy(part.operand, src, part.row_bytes if part.rows > 1 else 0)
        queue.free(slot)
