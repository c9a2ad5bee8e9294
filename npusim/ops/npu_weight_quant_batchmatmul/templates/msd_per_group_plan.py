"""How msd per_group is split, and the steps that it goes in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_digits import workspaces
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan

__all__ = ["BLOCK_N", "PerGroupPlan", "Step", "steps", "tile"]

PACK_K = 1024
"""k of a pack of groups."""
BLOCK_N = 1024
"""Columns that a cube core multiplies a group by."""
STRIP_N = 128
"""Columns of a vector core in a full round; strips are multiples of it."""
RING_ELEMENTS = 18 * 1024 * 256
MOST_PLACES = 8
"""Of each half of the ring."""
DIGITS_K = 12288
"""Most of k that is written in digits at a time."""
PRODUCT_BYTES = 32768
"""Of products that a vector core loads at a time, if one group is not more; assumed."""


@dataclass(frozen=True, slots=True)
class PerGroupPlan(Plan):
    """How groups, rows and columns are split."""

    digits_k: int
    """k that a vector core writes in digits at a time."""
    round_n: int
    pack_groups: int
    strip_n: int
    """Columns of a vector core; of each strip it has `strip_m` rows."""
    strip_m: int
    places: int
    """Of the ring; vector cores give back half of them at a time."""
    place_bytes: int
    joint_groups: int
    """Put together at a time."""


class Step(NamedTuple):
    """A pack of groups in a round of columns."""

    number: int
    column: int
    columns: int
    group: int
    groups: int
    is_first: bool
    """Of its round; `is_last` likewise."""
    is_last: bool
    waits: bool
    """Whether its place in the ring was read just now, as vector cores have told."""
    tells: bool
    """Whether vector cores tell that they have read half of the ring, for a later step waits."""


def tile(spec: DeviceSpec, p: Problem) -> PerGroupPlan:
    """Split a call on *spec*."""
    f, products = p.traits, DigitProducts.of(p)
    aic, groups = spec.cores["aic"].count, f.k // f.group_size
    round_n = min(STRIP_N * 2 * aic, f.n)
    pack = min(PACK_K // f.group_size, groups)
    block_dim = min(aic, ceil_div(round_n, BLOCK_N) * pack)
    strip_n = align_up(ceil_div(round_n, 2 * block_dim), STRIP_N)
    parts = max(1, 2 * block_dim // ceil_div(round_n, strip_n))
    strip_m = ceil_div(f.m, parts)
    elements = pack * products.digit_rows * round_n
    half = min(max(RING_ELEMENTS // elements, 1), MOST_PLACES)
    place_bytes = products.dtype.nbytes(elements)
    group_bytes = products.dtype.nbytes(products.terms * strip_m * strip_n)
    return PerGroupPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=block_dim,
        is_mix=True,
        workspaces=workspaces(p, products) | {"products": 2 * half * place_bytes},
        digits_k=_digits_k(f.k, f.n),
        round_n=round_n,
        pack_groups=pack,
        strip_n=strip_n,
        strip_m=strip_m,
        places=2 * half,
        place_bytes=place_bytes,
        joint_groups=max(1, min(pack, PRODUCT_BYTES // group_bytes)),
    )


def _digits_k(k: int, n: int) -> int:
    """k cut into one piece, or four where it is much longer than n, or as many as make it fit."""
    count = 4 if k // n >= 30 else 1
    while align_up(ceil_div(k, count), PACK_K) > DIGITS_K:
        count += 1
    return align_up(ceil_div(k, count), PACK_K)


def steps(p: Problem, plan: PerGroupPlan) -> Iterator[Step]:
    """All steps, a round after the other."""
    f, half = p.traits, plan.places // 2
    groups = f.k // f.group_size
    packs = ceil_div(groups, plan.pack_groups)
    count = packs * ceil_div(f.n, plan.round_n)
    index = 0
    for column, columns in pieces(f.n, plan.round_n):
        for pack, (group, some) in enumerate(pieces(groups, plan.pack_groups)):
            yield Step(
                index,
                column,
                columns,
                group,
                some,
                pack == 0,
                pack == packs - 1,
                index >= plan.places and index % half == 0,
                (index + 1) % half == 0 and index + 1 + half < count,
            )
            index += 1
