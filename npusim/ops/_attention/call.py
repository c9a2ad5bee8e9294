"""A call of attention as given: its masks, pages, scales and kernel; see `Shapes`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property
from itertools import chain
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT8, Array
from npusim.data.errors import shown
from npusim.data.integers import align_up, ceil_div
from npusim.ops._attention.problem import (
    LARGEST_TOKENS,
    LAYOUTS,
    MASK_EXTENT,
    TEMPLATES,
    Antiquant,
    Attention,
    Choice,
    Paging,
    Template,
    choose,
    unmet,
)
from npusim.ops._attention.scales import ScaleRooms
from npusim.ops._attention.shapes import Shapes, columns_of
from npusim.ops._contract import listed

LARGEST_SCALE = float(np.finfo(np.float32).max)
ATTRIBUTES = (
    *("actual_seq_lengths", "actual_seq_lengths_kv", "num_heads", "scale", "pre_tokens"),
    *("next_tokens", "input_layout", "num_key_value_heads", "sparse_mode", "inner_precise"),
    *("block_size", "softmax_lse_flag", "template", "antiquant_mode", "key_antiquant_mode"),
    "value_antiquant_mode",
)
"""The attributes that are simulated; for tensors the rows of support name them."""


class Call(Shapes):
    """The request of a call."""

    # ---- masks ----

    @cached_property
    def sparse_mode(self) -> int:
        """The effective mode."""
        return 0 if self.is_single else self.contract.integer("sparse_mode")

    @cached_property
    def tokens(self) -> tuple[int, int]:
        """pre_tokens and next_tokens, if they apply."""
        if self.mask is None or self.sparse_mode not in (0, 4) or self.is_single:
            return LARGEST_TOKENS, LARGEST_TOKENS
        given = (self.contract.integer(name) for name in ("pre_tokens", "next_tokens"))
        pre, after = (min(max(each, -LARGEST_TOKENS), LARGEST_TOKENS) for each in given)
        return pre, after

    @property
    def inner_precise(self) -> int:
        return self.contract.integer("inner_precise")

    @cached_property
    def mask_keys(self) -> int:
        """Least columns of a mask: whole blocks if keys are in pages."""
        if not self.is_paged:
            return self.longest_kv
        return align_up(max(self.kv_lengths, default=0), self.page_tokens)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        return () if self.mask is None else self.mask.shape

    @property
    def is_mask_large_enough(self) -> bool:
        """Whether a mask that is used directly has a row for each token and a column for each key.

        It may have more of both.
        """
        if not 2 <= len(self.mask_shape) <= 4:
            return False
        *outer, rows, columns = self.mask_shape
        if not outer and self.longest_query == 1:
            return rows == self.requests and columns >= self.mask_keys
        fits = not outer or (outer[0] in (1, self.requests) and outer[1:] in ([], [1]))
        return fits and rows >= self.longest_query and columns >= self.mask_keys

    @property
    def is_mask_exact(self) -> bool:
        """Whether it has no more than these."""
        *_, rows, columns = self.mask_shape
        is_flat = len(self.mask_shape) == 2 and self.longest_query == 1
        return (is_flat or rows == self.longest_query) and columns == self.longest_kv

    @property
    def is_stencil(self) -> bool:
        """Whether the mask is 2048 x 2048."""
        extents = MASK_EXTENT, MASK_EXTENT
        return self.mask_shape in (extents, (1, *extents), (1, 1, *extents))

    @property
    def is_triangle(self) -> bool:
        """Whether the mask has ones only above its diagonal, as far as its values are known."""
        return self.mask is None or is_triangle(self.mask.array)

    # ---- pages ----

    @property
    def table_shape(self) -> tuple[int, ...]:
        return () if self.table is None else self.table.shape

    @cached_property
    def blocks_needed(self) -> tuple[int, ...]:
        """Blocks that each request needs."""
        return tuple(ceil_div(length, self.page_tokens) for length in self.kv_lengths)

    @property
    def has_rows_of_table(self) -> bool:
        """Whether the block table has a row for each request and enough columns for its blocks."""
        rows, columns = self.table_shape
        return rows >= self.requests and columns >= max(self.blocks_needed, default=0)

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The blocks of each request; consecutive ones, repeated, if the table has no values."""
        assert self.table is not None
        rows: Iterable[Array] | None = self.table.array
        needed = self.blocks_needed
        if rows is None:
            places = np.arange(sum(needed)) % max(1, self.key.shape[0])
            rows = np.split(places, np.cumsum(needed)[:-1])
        return tuple(tuple(row[:n].tolist()) for row, n in zip(rows, needed, strict=False))

    @property
    def stray_block(self) -> int | None:
        """A block that the table names and the cache does not have."""
        every = chain.from_iterable(self.blocks)
        return next((block for block in every if not 0 <= block < self.key.shape[0]), None)

    @cached_property
    def paging(self) -> Paging | None:
        if self.table is None:
            return None
        return Paging(
            self.key.shape[0],
            self.page_tokens,
            self.rank == 4,
            self.blocks,
            self.table.shape[1],
            self.table.array is None,
            self.is_nz,
        )

    # ---- scales of int8 ----

    @property
    def is_int8(self) -> bool:
        return self.key.element is INT8

    @cached_property
    def scale_rooms(self) -> ScaleRooms:
        heads, size = self.kv_heads, self.size
        tokens = self.longest_kv
        if self.table is not None:
            tokens = self.table.shape[1] * self.page_tokens
        return ScaleRooms(self.inner, heads, size, self.requests, tokens)

    @property
    def misfit(self) -> str | None:
        """A scale with a wrong shape, and the shapes allowed; None if all match."""
        for scale, mode in (*self.scales, *((each, 0) for each in self.offsets)):
            shapes = self.scale_rooms.shapes(scale, mode)
            if scale.shape not in shapes:
                return f"{scale.name} {scale.shape} in place of {listed(tuple(map(str, shapes)))}"
        return None

    @cached_property
    def antiquant(self) -> Antiquant | None:
        """How scales and offsets apply to keys and values; None without any."""
        return self.scale_rooms.antiquant(self.scales, self.offsets) if self.scales else None

    @property
    def has_wide_scales(self) -> bool:
        return {each.element for each in self.offsets} == {FLOAT32}

    @property
    def has_columns(self) -> bool:
        """Whether scales and offsets are per column."""
        a = self.antiquant
        assert a is not None
        return {each.per for each in (a.key, a.value, *(a.offsets or ()))} == {"channel"}

    # ---- what is not simulated ----

    @cached_property
    def strays(self) -> tuple[str, ...]:
        """Parameters that are given, but not simulated."""
        known = {*ATTRIBUTES, *(x for row in self.contract.support for x in row.entries)}
        return tuple(x for x in self.contract.arguments if x not in known and not self._is_out(x))

    def gives(self, names: tuple[str, ...]) -> bool:
        """Whether one of *names* is given."""
        return not set(names).isdisjoint(self.strays)

    def _is_out(self, name: str) -> bool:
        value = self.contract.value(name)
        # Comparing a tensor does not give a single bool.
        return value is None or (name.endswith("_mode") and value == 0)

    @property
    def stray(self) -> str:
        """The first such parameter, and its value."""
        return f"{self.strays[0]}={shown(self.contract.value(self.strays[0]))}"

    # ---- what kernels see ----

    @cached_property
    def attention(self) -> Attention:
        return Attention(
            element=self.query.element,
            layout=next(name for name in LAYOUTS if name == self.layout),
            query_heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.size,
            value_size=self.value_size,
            rope_size=self.rope_size,
            query_lengths=self.query_lengths,
            kv_lengths=self.kv_lengths,
            longest_query=self.longest_query,
            longest_kv=self.longest_kv,
            scale=self.scale,
            has_mask=self.mask is not None,
            mask_shape=self.mask_shape,
            returns_lse=self.returns_lse,
            paging=self.paging,
            sparse_mode=self.sparse_mode,
            pre_tokens=self.tokens[0],
            next_tokens=self.tokens[1],
            inner_precise=self.inner_precise,
            antiquant=self.antiquant,
        )

    @property
    def returns_lse(self) -> bool:
        return self.contract.boolean("softmax_lse_flag")

    @property
    def scale(self) -> float:
        value = self.contract.value("scale")
        self.contract.require(
            abs(value) <= LARGEST_SCALE,
            f"scale must be a finite number of fp32, not {shown(value)}; pass 1 / sqrt(columns of "
            f"a head), say",
        )
        return float(value)

    @property
    def rope_size(self) -> int:
        """Columns of the rotary part of a head."""
        (rope, _) = self.ropes
        return 0 if rope is None else int(columns_of(rope.shape, self.heads, self.layout))

    # ---- the kernel ----

    @property
    def kernel(self) -> str:
        """FAI, in any of its forms, FIA or IFA."""
        return self.choice.template.partition("-")[0]

    @property
    def has_sink_of_fai(self) -> bool:
        """Whether FAI runs the call with learnable_sink."""
        is_taken = self.sink is not None and self.kernel == "FAI"
        return is_taken and (self.size, self.query.element) != (64, BFLOAT16)

    @property
    def sink_fits_fia(self) -> bool:
        return self.sink is not None and (
            (self.sink.element, self.sink.shape) == (BFLOAT16, (self.heads,))
        )

    @cached_property
    def choice(self) -> Choice:
        cores = self.contract.spec.cores["aic"].count
        return choose(self.attention, cores, self._named(cores))

    def _named(self, cores: int) -> Template | None:
        """The template that the caller selects."""
        asked = self.contract.value("template")
        named = next((x for x in TEMPLATES if isinstance(asked, str) and x == asked), None)
        leave_out = "leave it out to get the vendor's choice"
        self.contract.require(
            asked is None or named is not None,
            f"template must be {listed(TEMPLATES)}, not {shown(asked)}; {leave_out}",
        )
        need = unmet(named, self.attention, cores) if named is not None else None
        self.contract.require(
            need is None, f"template {named!r} can run only if {need}; {leave_out}"
        )
        return named


def is_triangle(mask: Array | None) -> bool:
    """Whether a mask of MASK_EXTENT has ones only above its diagonal, as far as it is known."""
    extents = MASK_EXTENT, MASK_EXTENT
    if mask is None or mask.shape[-2:] != extents or mask.size != MASK_EXTENT**2:
        return True
    return bool(np.array_equal(mask.reshape(extents), _triangle(extents, mask.dtype)))


@cache
def _triangle(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Ones only above the diagonal."""
    return np.asarray(np.triu(np.ones(shape, dtype), 1))
