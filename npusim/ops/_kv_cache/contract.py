"""Keys and values, their caches and slots: what must hold of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import INT32, DType
from npusim.data.layout import FRACTAL_ROWS
from npusim.data.tensor import Operand
from npusim.isa import BLOCK_BYTES
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._support import Operands, Row

__all__ = ["Problem", "Side", "caches_of", "checked", "support_of", "tokens_of"]


@dataclass(frozen=True, slots=True)
class Side:
    """The keys, or the values: `(tokens, numbers)` to the kernel."""

    name: str
    """key or value."""
    numbers: int
    """Of a token: heads x width."""

    @property
    def cache(self) -> str:
        """The operand that is written to."""
        return f"{self.name}_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    element: DType
    tokens: int
    sides: tuple[Side, Side]
    blocks: int
    block_size: int
    is_nz: bool
    """Whether a block holds `(numbers / C0, block_size, C0)`, and not `(block_size, numbers)`."""
    slots: tuple[int, ...]
    """Of each token; without values one after the other."""

    @property
    def fractal_columns(self) -> int:
        """C0: numbers in a block of 32 bytes."""
        return BLOCK_BYTES * 8 // self.element.bits

    def token_bytes(self, side: Side) -> int:
        """Bytes of a token."""
        return self.element.nbytes(side.numbers)


def support_of(dtypes: tuple[DType, ...], slots: str, *, nz: bool, **more: Any) -> tuple[Row, ...]:
    """Rows of tokens and caches of one type each; caches in fractals too if *nz* says so."""
    layouts = ("ND", "FRACTAL_NZ") if nz else ("ND",)
    more[slots] = INT32
    return tuple(
        Row(
            key=dtype,
            value=dtype,
            key_cache=Operands((dtype,), layouts),
            value_cache=Operands((dtype,), layouts),
            **more,
        )
        for dtype in dtypes
    )


def tokens_of(contract: Contract) -> tuple[Operand, Operand]:
    """key and value, `(tokens, heads, width)` of one type; their widths may differ."""
    k, v = contract.operand("key"), contract.operand("value")
    for operand in (k, v):
        contract.require(
            len(operand.shape) == 3,
            f"{operand.name} must have three dimensions, (tokens, heads, width), not shape "
            f"{operand.shape}; reshape it",
        )
        contract.require(
            operand.shape[1] * operand.shape[2] > 0,
            f"{operand.name} must have heads and a width, not shape {operand.shape}; leave the "
            f"call out",
        )
    contract.require(
        v.shape[:2] == k.shape[:2],
        f"value must have the tokens and heads of key, {k.shape[:2]}, not {v.shape[:2]}; "
        f"pass the same tokens",
    )
    return k, v


def caches_of(contract: Contract) -> tuple[Operand, Operand]:
    """Both caches, of the type of the tokens and in one layout."""
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
    contract: Contract,
    tokens: tuple[Operand, Operand],
    caches: tuple[Operand, Operand],
    name: str,
    *,
    is_nz: bool,
) -> Problem:
    """The call, if the caches hold such tokens and the slots, called *name*, name places there."""
    element, count = tokens[0].element, tokens[0].shape[0]
    sides = [Side(each.name, each.shape[1] * each.shape[2]) for each in tokens]
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
    contract.require(
        where.shape == (count,),
        f"{name} must have shape ({count},), a slot for each token, not {where.shape}; "
        f"pass one for each",
    )
    return Problem(
        inputs=(*tokens, *caches, where),
        outputs={cache.name: cache.spec for cache in caches},
        element=element,
        tokens=count,
        sides=(sides[0], sides[1]),
        blocks=blocks,
        block_size=block_size,
        is_nz=is_nz,
        slots=_slots(contract, name, where, blocks * block_size),
    )


def _pages(contract: Contract, cache: Operand, tokens: Operand, is_nz: bool) -> tuple[int, int]:
    """How many blocks *cache* has, of how many of *tokens*."""
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
        f"{tokens.name} must have a multiple of {lanes} numbers a token for a cache in fractals, "
        f"not {numbers}; pad the width",
    )
    contract.require(
        len(shape) == 4 and (shape[1], shape[3]) == (numbers // lanes, lanes),
        f"{cache.name} must have shape (blocks, {numbers // lanes}, block_size, {lanes}) for "
        f"{tokens.name} of shape {tokens.shape}, not {shape}; make it so",
    )
    return shape[0], shape[2]


def _slots(contract: Contract, name: str, where: Operand, room: int) -> tuple[int, ...]:
    """The slot of each token; each at most once, and in the cache."""
    if where.array is None:
        contract.require(
            where.spec.size <= room,
            f"{name} must name at most the {room} slots of the caches, not {where.spec.size}; "
            f"make the caches larger",
        )
        return tuple(range(where.spec.size))
    slots = where.array.tolist()
    for slot in slots:
        contract.require(
            slot < room,
            f"{name} must name slots below {room}, which the caches have, not {slot}; "
            f"make the caches larger, or pass -1 to leave the token out",
        )
    twice = _twice([slot for slot in slots if slot >= 0])
    contract.require(
        twice is None,
        f"{name} must name each slot once, not {twice} twice: which token is kept is open on a "
        f"card; leave one of the tokens out with -1",
    )
    return tuple(slots)


def _twice(slots: Sequence[int]) -> int | None:
    """The smallest number that *slots* has more than once."""
    numbers, counts = np.unique(np.array(slots, np.int64), return_counts=True)
    repeated = numbers[counts > 1]
    return int(repeated[0]) if repeated.size else None
