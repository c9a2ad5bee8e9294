"""Scales of int8 keys and values: the shapes they may have, and what each of them multiplies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from npusim.data.dtypes import INT8
from npusim.data.tensor import Operand
from npusim.ops._attention.problem import Antiquant, Per, Scales

BOTH, APART = "antiquant_scale", ("key_antiquant_scale", "value_antiquant_scale")
"""The scales of keys and of values in one tensor, or in one each."""


def mode_of(scale: str) -> str:
    """The parameter that selects the granularity of *scale*."""
    return scale.replace("scale", "mode")


def offset_of(scale: str) -> str:
    """The parameter whose values are added before multiplying by *scale*."""
    return scale.replace("scale", "offset")


class ScaleRooms(NamedTuple):
    """The dimensions that scales may have: heads of keys, and tokens of requests."""

    inner: str
    """The order of the keys' dimensions."""
    heads: int
    size: int
    """Columns of a head."""
    requests: int
    tokens: int
    """Tokens per request."""

    def shapes(self, scale: Operand, mode: int) -> Mapping[tuple[int, ...], Per]:
        """The shapes that *scale* may have, and the granularity of each.

        Assumed: those for keys or values alone have the shape of one half of `antiquant_scale`,
        with or without its first axis.
        """
        kinds: list[tuple[Per, tuple[int, ...]]] = [("token", (self.requests, self.tokens))]
        if not mode:
            by_head = {"BNSD": [(self.heads, 1, self.size), (self.heads, self.size)]}
            by_head["BSND"] = [(self.heads, self.size)]
            by_head["TND"] = [(self.heads, self.size), (self.heads * self.size,)]
            own = by_head.get(self.inner, [(self.heads * self.size,)])
            kinds = [("tensor", ()), *(("channel", each) for each in own)]
        is_both = scale.name in (BOTH, offset_of(BOTH))
        found: dict[tuple[int, ...], Per] = {}
        for kind, each in kinds:
            found[(2 if is_both else 1, *each)] = kind
            if not is_both and each:
                found[each] = kind
        return found

    def antiquant(
        self, scales: Sequence[tuple[Operand, int]], offsets: Sequence[Operand]
    ) -> Antiquant:
        """How *scales* of keys and values apply, by their modes, after *offsets* are added."""
        key, value = self._sides(scales)
        pair = self._sides([(each, 0) for each in offsets]) if offsets else None
        return Antiquant(INT8, key, value, pair)

    def _sides(self, operands: Sequence[tuple[Operand, int]]) -> tuple[Scales, Scales]:
        """The part for keys, and the part for values."""
        found = []
        for operand, mode in operands:
            per = self.shapes(operand, mode).get(operand.shape, "tensor")
            found.append(Scales(operand.name, operand.element, per, 0, self.tokens))
        if len(found) == 1:
            # Those of values follow those of keys.
            (both,) = found
            half = operands[0][0].spec.size // 2
            found.append(Scales(both.name, both.dtype, both.per, half, both.tokens))
        key, value = found
        return key, value
