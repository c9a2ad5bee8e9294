"""The first stage of the msd kernels with scales for groups of k: x in digits, a group alone.

See the docstring of the operator for the numbers, and `digits` for the work on a plane of groups.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT32
from npusim.isa import Global
from npusim.kernel.builder import Builder
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits import DigitStage
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts

__all__ = ["FILLED", "MET", "READ", "READY", "DigitWriter", "meet", "workspaces"]

READY, FILLED, READ = 0, 1, 2
"""Flags in a group: digits are there, products are there, products were read."""
MET = 3
"""Flag among vector cores."""


def workspaces(p: Problem, products: DigitProducts) -> dict[str, int]:
    """Digits `(terms x m, k)`, and largest magnitudes and sums `(m, groups)` in fp32."""
    f = p.traits
    numbers_bytes = FLOAT32.nbytes(f.m * (f.k // f.group_size))
    found = {
        "digits": products.scheme.dtype.nbytes(products.digit_rows * f.k),
        "largest": numbers_bytes,
    }
    return found | ({"sums": numbers_bytes} if f.has_offset else {})


def meet(builder: Builder) -> None:
    """Let all vector cores wait until each has stored what it had."""
    builder.cross_core_set_flag("all", "mte3", MET)
    builder.cross_core_wait_flag("all", "mte2", MET)


class DigitWriter:
    """Writes groups of x in digits."""

    def __init__(self, builder: Builder, p: Problem, most_groups: int) -> None:
        """Claim room for *most_groups* at a time."""
        self._builder, self._p, self._products = builder, p, DigitProducts.of(p)
        digit = self._products.scheme.dtype
        size = p.traits.group_size
        self._stage = DigitStage(builder, p.x.element, digit, most_groups, size)

    def write(self, row: int, group: int, groups: int) -> None:
        """Write *groups* groups of *row* from *group* on."""
        f = self._p.traits
        first, number = row * f.k + group * f.group_size, row * (f.k // f.group_size) + group
        shifts = {
            "x": self._p.x.element.nbytes(first),
            "digits": self._products.scheme.dtype.nbytes(first),
            "largest": FLOAT32.nbytes(number),
            "sums": FLOAT32.nbytes(number),
        }
        self._builder.call(("digits", groups), shifts, partial(self._write, groups))

    def _write(self, groups: int) -> None:
        f, stage, scheme = self._p.traits, self._stage, self._products.scheme
        size, count = f.group_size, groups * f.group_size
        place = Global("x", 0, self._p.x.element.nbytes(count))
        plane = stage.take(place, groups, size, size)
        if f.has_offset:
            stage.hand_out(stage.sums(plane), Global("sums", 0, FLOAT32.nbytes(groups)))
        largest = stage.largest(plane)
        stage.divide(plane, largest)
        stage.hand_out(largest, Global("largest", 0, FLOAT32.nbytes(groups)))
        digit = scheme.dtype.nbytes
        stage.split(
            plane, scheme, lambda term: Global("digits", digit(term * f.m * f.k), digit(count))
        )
