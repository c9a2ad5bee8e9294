"""A cache in pages: its layout, and the table that says where a request's blocks are."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand
from npusim.ops._attention.description import Paging
from npusim.ops._contract import Contract

__all__ = ["paging_of"]

PAGE_UNIT, MAX_PAGE = 16, 1024
"""Tokens of a block: multiples of the one up to the other (op-plugin@517f2e7, the document)."""


def paging_of(
    contract: Contract,
    key: Operand,
    table: Operand,
    heads: int,
    head_size: int,
    kv_lengths: tuple[int, ...],
    block_size: Any,
) -> Paging:
    """The pages of *key* and of value, which has its shape; raises OpError."""
    shape, row = key.shape, heads * head_size
    given = contract.integer("block_size", block_size)
    heads_first = len(shape) == 4 and (shape[1], shape[3]) == (heads, head_size)
    contract.require(
        heads_first or (len(shape) == 3 and shape[2] == row),
        f"key must have shape (blocks, block_size, {row}) or (blocks, {heads}, block_size, "
        f"{head_size}) with a block_table, not {shape}; reshape the cache",
    )
    tokens = shape[2] if heads_first else shape[1]
    contract.require(
        given == tokens,
        f"block_size must be that of the cache, {tokens}, not {given}; pass {tokens}",
    )
    contract.require(
        tokens % PAGE_UNIT == 0 and 0 < tokens <= MAX_PAGE,
        f"block_size must be a multiple of {PAGE_UNIT} up to {MAX_PAGE}, not {tokens}; make the "
        f"cache so",
    )
    needed = [ceil_div(length, tokens) for length in kv_lengths]
    contract.require(
        len(table.shape) == 2
        and table.shape[0] == len(kv_lengths)
        and table.shape[1] >= max(needed),
        f"block_table must have shape ({len(kv_lengths)}, blocks of the longest request), at least "
        f"{max(needed)} of them, not {table.shape}; pass a row for each request",
    )
    return Paging(
        blocks=shape[0],
        block_size=tokens,
        heads_first=heads_first,
        tables=_tables(contract, table, needed, shape[0]),
        width=table.shape[1],
        is_assumed=table.array is None,
    )


def _tables(
    contract: Contract, table: Operand, needed: list[int], blocks: int
) -> tuple[tuple[int, ...], ...]:
    """The blocks of each request; without values one after the other, over and over."""
    if table.array is None:
        firsts = np.cumsum([0, *needed])
        return tuple(
            tuple(((first + np.arange(count)) % max(1, blocks)).tolist())
            for first, count in zip(firsts[:-1], needed, strict=True)
        )
    found = []
    for request, count in enumerate(needed):
        own = table.array[request, :count]
        for number in (own.min(), own.max()) if count else ():
            contract.require(
                0 <= number < blocks,
                f"block_table must name blocks in [0, {blocks}) of the cache, not {number} for "
                f"request {request}; a card would read elsewhere: correct it",
            )
        found.append(tuple(own.tolist()))
    return tuple(found)
