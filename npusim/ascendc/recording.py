"""The recording of a kernel: its calls, each with its arguments and its call site.

A record is a row of four columns: the number of the call, the core, and the start of its operand in
global memory. Repeated calls with the same arguments share one number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.ascendc.errors import AscendCError
from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

__all__ = [
    "COUNTER",
    "Argument",
    "Called",
    "GlobalOperand",
    "Lanes",
    "LocalOperand",
    "Number",
    "Recording",
]

TYPES: tuple[tuple[str, DType | None], ...] = (
    ("int8_t", INT8),
    ("uint8_t", UINT8),
    ("int16_t", INT16),
    ("uint16_t", UINT16),
    ("int32_t", INT32),
    ("uint32_t", UINT32),
    ("int64_t", INT64),
    ("uint64_t", UINT64),
    ("half", FLOAT16),
    ("bfloat16_t", BFLOAT16),
    ("float", FLOAT32),
    ("int4b_t", INT4),
    ("double", None),
    ("bool", UINT8),
)
"""By number: the type in C++, and the type with the same bits in buffers."""

RECORD = np.dtype([("called", np.int32), ("core", np.int32), ("address", np.int64)])


class LocalOperand(NamedTuple):
    """A tensor in a buffer of the core."""

    position: int
    address_bytes: int
    type: int
    size: int
    """Elements from here to the end of its buffer; 0 if that is unknown."""
    block_stride: int
    repeat_stride: int

    @property
    def dtype(self) -> DType:
        name, dtype = TYPES[self.type]
        if dtype is None:
            raise AscendCError(f"elements must be of a type that cores have, not {name}; cast them")
        return dtype


class GlobalOperand(NamedTuple):
    """A tensor in global memory; its start is in the record."""

    type: int

    @property
    def dtype(self) -> DType:
        return LocalOperand(0, 0, self.type, 0, 1, 8).dtype


COUNTER = 3
"""The form of lanes in which the mask holds their number: `Lanes::COUNTER` in recorder.h."""


class Lanes(NamedTuple):
    """The active elements of each repeat: the fields of `Lanes` in recorder.h."""

    form: int
    low: int
    high: int
    repeats: int


class Number(NamedTuple):
    """A number with its C++ type."""

    type: int
    bits: int

    @property
    def value(self) -> float:
        """Its value in Python."""
        name, dtype = TYPES[self.type]
        nbytes = 8 if dtype is None else max(1, dtype.bits // 8)
        raw = np.array([self.bits], np.int64).view(np.uint8)[:nbytes]
        if name == "double":
            return float(raw.view(np.float64)[0])
        if name.startswith("uint"):
            return int(self.bits) & ((1 << 8 * nbytes) - 1)
        assert dtype is not None
        found = raw.view(dtype.numpy)[0]
        return int(found) if name.startswith(("int", "bool")) else float(found)


Argument = LocalOperand | GlobalOperand | Lanes | Number | int
KINDS: dict[int, tuple[type, int]] = {
    1: (LocalOperand, 6),
    2: (GlobalOperand, 1),
    3: (int, 1),
    4: (Number, 2),
    5: (Lanes, 4),
}
"""Number of a kind of argument, as in recorder.h -> its Python type, and its words."""


@dataclass(frozen=True, slots=True)
class Called:
    """A function of the API with its arguments, and the addresses of its callers."""

    name: str
    arguments: tuple[Argument, ...]
    addresses: tuple[int, ...]


@dataclass(slots=True)
class Recording:
    """The recording of a launch up to now."""

    kernel: str
    kind: int
    halves: int
    blocks: int
    pointers: tuple[int, ...]
    """The address in global memory of each pointer argument; -1 for other arguments."""
    called: list[Called] = field(default_factory=list)
    _parts: list[NDArray[np.void]] = field(default_factory=list)

    @classmethod
    def of(cls, payload: bytes) -> Recording:
        """The recording at the start of a launch."""
        kind, halves, blocks, count = struct.unpack_from("<4q", payload)
        pointers = struct.unpack_from(f"<{count}q", payload, 32)
        return cls(payload[32 + 8 * count :].decode(), kind, halves, blocks, pointers)

    def add(self, payload: bytes) -> NDArray[np.void]:
        """Append further records and return them."""
        descriptor_bytes, count = struct.unpack_from("<2q", payload)
        self.called += _called(payload[16 : 16 + descriptor_bytes])
        part = np.frombuffer(payload, RECORD, count, 16 + descriptor_bytes)
        self._parts.append(part)
        return part

    @property
    def records(self) -> NDArray[np.void]:
        """All records in the order of recording."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.zeros(0, RECORD), *self._parts])]
        return self._parts[0]


def _called(data: bytes) -> Iterator[Called]:
    place = 0
    while place < len(data):
        letters, count, depth = struct.unpack_from("<3q", data, place)
        place += 24
        name = data[place : place + letters].decode()
        place += letters
        words = struct.unpack_from(f"<{count}q", data, place)
        place += 8 * count
        addresses = struct.unpack_from(f"<{depth}Q", data, place)
        place += 8 * depth
        yield Called(name, tuple(_arguments(words)), addresses)


def _arguments(words: tuple[int, ...]) -> Iterator[Argument]:
    place = 0
    while place < len(words):
        make, size = KINDS[words[place]]
        yield make(*words[place + 1 : place + 1 + size])
        place += 1 + size
