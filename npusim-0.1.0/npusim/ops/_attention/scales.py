"""Scales of keys and values of int8: the shapes they may have, and what each of them multiplies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from npusim.data.dtypes import INT8
from npusim.data.tensor import Operand
from npusim.ops._attention.problem import Antiquant, Per, Scales

BOTH, APART = "antiquant_scale", ("key_antiquant_scale", "value_antiquant_scale")
"""The scales of keys and of values in one tensor, and in one each."""


def mode_of(scale: str) -> str:
    """The parameter that says what has its own scale."""
    return scale.replace("scale", "mode")


def offset_of(scale: str) -> str:
    """The parameter that is added to what *scale* multiplies, before."""
    return scale.replace("scale", "offset")


class ScaleRooms(NamedTuple):
    """What scales are for: heads of keys, and tokens of requests."""

    inner: str
    """The order of keys."""
    heads: int
    size: int
    """Columns of a head."""
    requests: int
    tokens: int
    """Places of a request."""

    def shapes(self, scale: Operand, mode: int) -> Mapping[tuple[int, ...], Per]:
        """What *scale* may be, and of what each is one.

        Assumed: that those for keys or values alone have the shape of a half of `antiquant_scale`,
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
        """What *scales* of keys and values multiply, by their modes, once *offsets* are added."""
        key, value = self._sides(scales)
        pair = self._sides([(each, 0) for each in offsets]) if offsets else None
        return Antiquant(INT8, key, value, pair)

    def _sides(self, operands: Sequence[tuple[Operand, int]]) -> tuple[Scales, Scales]:
        """What is for keys, and what for values."""
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
