"""Sizes derived from the tensors and lists of a call of attention: heads, columns, lengths.

Arguments have the names of npu_fused_infer_attention_score. A property is only meaningful if the
rules hold that precede its uses, see :mod:`npusim.ops._attention.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npusim.data.dtypes import Array
from npusim.data.errors import shown
from npusim.data.tensor import Operand
from npusim.ops._attention.problem import LATENT_COLUMNS, PACKED
from npusim.ops._contract import Contract, listed

ORDERS = {
    "BSH": "(requests, tokens, heads x columns)",
    "BSND": "(requests, tokens, heads, columns)",
    "BNSD": "(requests, heads, tokens, columns)",
    "TND": "(tokens, heads, columns)",
    "NTD": "(heads, tokens, columns)",
}
UNMASKED_TOKENS = ("BSH", "BSND", "BNSD")
"""Layouts in which a single token per request sees what its mask shows, in every mode."""
ROPE_COLUMNS = 64
"""Columns of the rotary part of a head."""
NZ_BYTES = 32
"""Bytes of a row of a fractal: 16 columns of 16 bits, 32 of int8."""


@dataclass(frozen=True)
class Shapes:
    """The tensors of a call, and the contract that has its attributes."""

    contract: Contract
    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None
    table: Operand | None
    ropes: tuple[Operand | None, Operand | None]
    """The rotary parts of query and of key."""
    sink: Operand | None
    """Addends of each head to the sums of its tokens."""
    scales: tuple[tuple[Operand, int], ...]
    """The scales of int8 with their modes: one for both, or two."""
    offsets: tuple[Operand, ...]
    """Offsets added to int8 first: likewise, or none."""

    # ---- query and its heads ----

    @cached_property
    def layout(self) -> str:
        value = self.contract.value("input_layout")
        return value if isinstance(value, str) else shown(value)

    @property
    def shown_layout(self) -> str:
        return shown(self.layout)

    @property
    def inner(self) -> str:
        """The dimension order of query, key and value."""
        return self.layout.partition("_")[0]

    @property
    def order(self) -> str:
        """The same in words."""
        return ORDERS[self.inner]

    @property
    def is_packed(self) -> bool:
        return self.layout in PACKED

    @cached_property
    def heads(self) -> int:
        return self.contract.integer("num_heads")

    @property
    def given_kv_heads(self) -> int:
        return self.contract.integer("num_key_value_heads")

    @cached_property
    def kv_heads(self) -> int:
        """Number of key heads, equal to that of query if 0 is given."""
        return self.given_kv_heads or self.heads

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The dimensions of query, by letter."""
        return dict(zip(self.inner, self.query.shape, strict=True))

    def has_heads(self, shape: tuple[int, ...], heads: int) -> bool:
        """Whether a tensor of *shape* in the layout of query has that many *heads*."""
        sizes = dict(zip(self.inner, shape, strict=True))
        return sizes["H"] % heads == 0 if "H" in sizes else sizes["N"] == heads

    @cached_property
    def size(self) -> int:
        """Columns of a head of query."""
        return int(columns_of(self.query.shape, self.heads, self.layout))

    # ---- keys, in pages or not ----

    @property
    def is_paged(self) -> bool:
        return self.table is not None

    @property
    def rank(self) -> int:
        """Dimensions of keys, which determine the layout of pages."""
        return len(self.key.shape)

    @property
    def page_tokens(self) -> int:
        """Tokens of a cache block."""
        return self.key.shape[{3: 1, 4: 2, 5: 3}[self.rank]]

    @property
    def is_nz(self) -> bool:
        return self.is_paged and self.rank == 5

    def cache_shape(self, columns: int) -> tuple[int, ...]:
        """The shape of a cache with as many dimensions as that of keys, for such heads."""
        blocks, tokens, heads = self.key.shape[0], self.page_tokens, self.kv_heads
        unit = NZ_BYTES // self.key.element.nbytes(1)
        return {
            3: (blocks, tokens, heads * columns),
            4: (blocks, heads, tokens, columns),
            5: (blocks, heads, columns // unit, tokens, unit),
        }[self.rank]

    def fits_query(self, shape: tuple[int, ...]) -> bool:
        """Whether keys of *shape*, not in pages, match query: requests and heads."""
        same_requests = "B" not in self.sizes or shape[0] == self.query.shape[0]
        return same_requests and self.has_heads(shape, self.kv_heads)

    @cached_property
    def value_size(self) -> int:
        """Columns of a head of values."""
        shape, is_paged = self.value.shape, self.is_paged
        return int(columns_of(shape, self.kv_heads, self.layout, is_paged))

    @property
    def value_fits(self) -> bool:
        """Whether values have the shape of keys, except for columns."""
        value = self.value
        if self.is_paged:
            return value.shape == self.cache_shape(self.value_size)
        return self.fits_query(value.shape) and self.room_of(value) == self.room_of(self.key)

    @property
    def has_rope(self) -> bool:
        return self.ropes != (None, None)

    @property
    def rope_fits(self) -> bool:
        """Whether rotary parts have the shapes of query and key, except for head columns."""
        found = tuple(each.shape for each in self.ropes if each is not None)
        key = self._resized(self.key.shape, self.kv_heads)
        if self.is_paged:
            key = self.cache_shape(ROPE_COLUMNS)
        return found == (self._resized(self.query.shape, self.heads), key)

    def _resized(self, shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
        return *shape[:-1], ROPE_COLUMNS * heads if self.inner == "BSH" else ROPE_COLUMNS

    @property
    def shown_ropes(self) -> str:
        return listed(tuple(str(each.shape) for each in self.ropes if each is not None), "and")

    @property
    def is_mla(self) -> bool:
        """Whether keys are latent: one head of 512 columns, which are also the values."""
        return self.has_rope and self.size == LATENT_COLUMNS

    @property
    def is_value_key(self) -> bool:
        """Whether value has the values of key, as far as they are known."""
        return are_alike(self.key.array, self.value.array)

    @property
    def block_size(self) -> int:
        return self.contract.integer("block_size")

    # ---- lengths ----

    @cached_property
    def query_list(self) -> tuple[int, ...] | None:
        return _listed(self.contract, "actual_seq_lengths")

    @cached_property
    def kv_list(self) -> tuple[int, ...] | None:
        return _listed(self.contract, "actual_seq_lengths_kv")

    @property
    def lists(self) -> tuple[tuple[int, ...], ...]:
        """The lists that are given and used."""
        found = (self.kv_list,) if self.is_single else (self.query_list, self.kv_list)
        return tuple(each for each in found if each is not None)

    @property
    def is_rising(self) -> bool:
        """Whether cumulative lengths, in TND and NTD, do not decrease."""
        sums = self.lists[:1] if self.is_paged else self.lists
        return all(list(each) == sorted(each) for each in sums)

    @property
    def shown_lists(self) -> str:
        return _shown(self.lists)

    @property
    def shown_lengths(self) -> str:
        return _shown((self.query_lengths, self.kv_lengths))

    @property
    def has_keys_for_tokens(self) -> bool:
        """Whether each request has at least as many keys as tokens."""
        pairs = zip(self.query_lengths, self.kv_lengths, strict=True)
        return all(tokens <= keys for tokens, keys in pairs)

    @cached_property
    def requests(self) -> int:
        return len(self.query_list or ()) if self.is_packed else self.sizes["B"]

    @cached_property
    def room(self) -> tuple[int, int]:
        """Query tokens and keys per request, or of all in TND and NTD, that tensors can hold."""
        return self.room_of(self.query), 0 if self.is_paged else self.room_of(self.key)

    def room_of(self, operand: Operand) -> int:
        """The same for *operand* in the layout of query."""
        return operand.shape[self.inner.index("T" if self.is_packed else "S")]

    @cached_property
    def query_lengths(self) -> tuple[int, ...]:
        if self.is_packed:
            return _apart(self.query_list or ())
        return self._each(None if self.room[0] == 1 else self.query_list, self.room[0])

    @cached_property
    def kv_lengths(self) -> tuple[int, ...]:
        if self.is_packed and not self.is_paged:
            return _apart(self.kv_list or ())[: self.requests]
        return self._each(self.kv_list, self.room[1])

    def _each(self, given: tuple[int, ...] | None, room: int) -> tuple[int, ...]:
        """One of *given* for all requests, or the first one for each; *room* if there are none."""
        if given is None:
            return (room,) * self.requests
        return given * self.requests if len(given) == 1 else given[: self.requests]

    @cached_property
    def is_single(self) -> bool:
        """Whether each request has one token, for which modes and tokens do not apply."""
        is_plain = self.layout in UNMASKED_TOKENS and not self.has_rope
        return is_plain and self.room[0] == 1 and self.value_size == self.size

    @cached_property
    def longest_query(self) -> int:
        return max(self.query_lengths, default=0) if self.is_packed else self.room[0]

    @cached_property
    def longest_kv(self) -> int:
        is_room = not self.is_packed and not self.is_paged
        return self.room[1] if is_room else max(self.kv_lengths, default=0)


def are_alike(key: Array | None, value: Array | None) -> bool:
    """Whether both have the same bytes, as far as they are known."""
    if key is value or key is None or value is None:
        return True
    first = (0,) * key.ndim
    is_like = key.shape == value.shape and key.dtype == value.dtype
    # Most tensors differ in their first element.
    is_like = is_like and (key.size == 0 or key[first].tobytes() == value[first].tobytes())
    return is_like and key.tobytes() == value.tobytes()


def _listed(contract: Contract, name: str) -> tuple[int, ...] | None:
    """Parameter *name*, which has at least one entry; None if it was not given."""
    value = contract.value(name)
    contract.require(
        value is None or len(value) > 0,
        f"{name} must have an entry for each request, not be empty; pass the lengths",
    )
    return None if value is None else tuple(value)


def columns_of(shape: tuple[Any, ...], heads: Any, layout: str, is_paged: bool = False) -> Any:
    """Columns of a head of a tensor of *shape*: in *layout*, or in pages; sizes may be symbols."""
    if is_paged and len(shape) == 5:
        return shape[-3] * shape[-1]
    is_joined = len(shape) == 3 if is_paged else layout.startswith("BSH")
    return shape[-1] // heads if is_joined else shape[-1]


def _shown(lists: tuple[tuple[int, ...], ...]) -> str:
    return listed(tuple(shown(list(each)) for each in lists), "and")


def _apart(ends: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths of requests with these cumulative ends."""
    return tuple(end - start for start, end in zip((0, *ends[:-1]), ends, strict=True))
