"""Scales and offsets of a weight on a vector core, made ready to meet a piece of it.

A piece of the weight meets one number (per tensor), a vector along its columns (per channel or
group, k down its rows), or a number a row (k along its rows). Vectors are read again for each row;
numbers a row are spread first, a block of copies each (Brcb).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up
from npusim.data.layout import c0
from npusim.isa import BLOCK_BYTES, Broadcast, Cast, Global, Local, Register, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot

__all__ = ["ROW", "Parameter", "Room", "Way"]

Way = Literal["single", "along", "down"]
"""One number for all; a number a column; a number a row."""
ROW = 128
"""Rows in the unified buffer are filled up to repeats of this many fp16."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a scale or offset of type *raw* takes of the unified buffer as one of type *kind*."""

    way: Way
    raw: DType
    kind: DType
    line: int
    """Numbers in a row of global memory: n along, all groups down."""

    def pitch(self, columns: int, groups: int) -> int:
        """Elements from one group (along) or row (down) to the next."""
        if self.way == "along":
            return align_up(columns, ROW)
        return 1 if self.line == 1 else align_up(groups, c0(FLOAT16))

    def count(self, rows: int, columns: int, groups: int) -> int:
        """Elements for a piece of *rows* x *columns* that meets so many *groups*."""
        if self.way == "single":
            return c0(FLOAT16)
        lines = groups if self.way == "along" else align_up(rows, c0(FLOAT16))
        return lines * self.pitch(columns, groups)

    def nbytes(self, rows: int, columns: int, groups: int) -> int:
        """All that a :class:`Parameter` claims."""
        count = self.count(rows, columns, groups)
        cast = 0 if self.raw is self.kind else FLOAT32.nbytes(count)
        spread = BLOCK_BYTES * count if self.way == "down" else 0
        return self.raw.nbytes(count) + cast + spread


class Parameter:
    """A scale or offset: loaded for a piece, cast to the type of the arithmetic, spread."""

    def __init__(
        self, builder: Builder, name: str, room: Room, rows: int, columns: int, groups: int
    ) -> None:
        """Claim what pieces of up to *rows* x *columns* and *groups* groups need."""
        self._builder, self.name, self.room = builder, name, room
        count = room.count(rows, columns, groups)
        self._raw = builder.queue("ub", room.raw.nbytes(count), "mte2", "vector")
        is_cast, is_spread = room.raw is not room.kind, room.way == "down"
        self._cast = builder.claim("ub", FLOAT32.nbytes(count)) if is_cast else None
        self._blocks = builder.claim("ub", BLOCK_BYTES * count) if is_spread else None
        self._taken: Slot | None = None
        self._ready: Slot | None = None
        self._pitch = 0

    @property
    def register(self) -> Register:
        """What holds the one number."""
        return self.name

    def take_single(self) -> None:
        """Load the number that all pieces meet, if it is one, into its register."""
        if self.room.way != "single":
            return
        slot = self._load(Global(self.name, 0, self.room.raw.nbytes(1)), 0, 1)
        ready = self._as_kind(slot, c0(FLOAT16))
        self._builder.sync("vector", "scalar")
        self._builder.emit(ScalarLoad(self.register, ready.of(self.room.kind, 1)))
        self._raw.free(slot)

    def take(self, rows: int, columns: int, groups: int) -> None:
        """Load what a piece of *rows* x *columns* meets; `drop` it when the piece is done."""
        room, raw = self.room, self.room.raw
        if room.way == "single":
            return
        pitch, count = room.pitch(columns, groups), room.count(rows, columns, groups)
        line = raw.nbytes(room.line)
        if room.way == "along":
            place = Global(self.name, 0, raw.nbytes(columns), groups, line)
            self._taken = self._load(place, raw.nbytes(pitch), columns)
            self._pitch = pitch // c0(room.kind)
        elif room.line == 1:
            self._taken = self._load(Global(self.name, 0, raw.nbytes(rows)), 0, rows)
            self._pitch = 1
        else:
            place = Global(self.name, 0, raw.nbytes(groups), rows, line)
            self._taken = self._load(place, raw.nbytes(pitch), groups)
            self._pitch = pitch
        self._ready = self._as_kind(self._taken, count)
        if self._blocks is not None:
            spread = self._blocks.of(room.kind, count * c0(room.kind))
            step(self._builder, Broadcast(spread, self._ready.of(room.kind, count)))
            self._ready = self._blocks
        if self._ready is not self._taken:
            self._raw.free(self._taken)
            self._taken = None

    def drop(self) -> None:
        """What `take` brought is not needed any more."""
        if self._taken is not None:
            self._raw.free(self._taken)
        self._taken = self._ready = None

    def along(self, group: int, block: int, blocks: int, repeat_stride: int) -> Local:
        """So many blocks from *block* on of the vector of *group*; stride 0 repeats eight."""
        return self._strided(group * self._pitch + block, blocks, 1, repeat_stride)

    def again(self, group: int, block: int, blocks: int) -> Local:
        """One block of the vector of *group*, repeated."""
        return self._strided(group * self._pitch + block, blocks, 0, 0)

    def down(self, group: int, blocks: int, is_row_a_repeat: bool) -> Local:
        """The rows' numbers of *group*: of a row each repeat, or of a row each block."""
        block, repeat = (0, self._pitch) if is_row_a_repeat else (self._pitch, 8 * self._pitch)
        return self._strided(group, blocks, block, repeat)

    def across(self, group: int, blocks: int) -> Local:
        """The numbers of eight groups from *group* on, of a row each repeat."""
        return self._strided(group, blocks, 1, self._pitch)

    def _strided(self, first: int, blocks: int, block: int, repeat: int) -> Local:
        assert self._ready is not None
        offset, kind = self._ready.offset_bytes + first * BLOCK_BYTES, self.room.kind
        return Local("ub", offset, kind, blocks * c0(kind), block, repeat)

    def _load(self, place: Global, pitch_bytes: int, count: int) -> Slot:
        slot = self._raw.alloc()
        self._builder.load(slot.of(self.room.raw, count), place, pitch_bytes)
        self._raw.enque(slot)
        return self._raw.deque()

    def _as_kind(self, slot: Slot, count: int) -> Slot:
        """The numbers in *slot* as the type of the arithmetic: bf16 goes by way of fp32."""
        if self._cast is None:
            return slot
        room, wide = self.room, self._cast.of(FLOAT32, count)
        step(self._builder, Cast(wide, slot.of(room.raw, count)))
        if room.kind is FLOAT16 and room.raw is BFLOAT16:
            step(self._builder, Cast(self._cast.of(FLOAT16, count), wide, "rint"))
        return self._cast
