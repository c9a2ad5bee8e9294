"""The result of a collective, bit for bit: which data is added, in what order and type.

Every addition, product, maximum or minimum is rounded to the type of the tensors, as by copy
engines and atomic stores of vector cores that reduce on writing (fp16 and bf16 are added in fp32
and rounded once). Copies change nothing. The order is that in which slices move:

.. code-block:: text

    direct                  rank 0, 1, 2, ... for every slice
    staged, mesh or plane   slice r: rank r, r + 1, ..., and round to r - 1
    staged, ring            slice r: rank r + 1, r + 2, ..., and round to r
    servers of a mesh       the same within each server; of their results, in a ring from that
                            of slice r on, neighbours in pairs, then pairs, then fours

A slice of all_reduce is a share of its elements, rounded up to 128 bytes; that of the last rank is
shorter. Which algorithm runs where is published; in what order a card adds data from its peers is
not, nor whether it is reproducible unless HCCL_DETERMINISTIC is set. All rows are assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Literal, get_args

import numpy as np

from npusim.collectives.times import Estimate, Kind, Way, estimate
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array, Overflow, cast
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec

__all__ = ["OPERATIONS", "REDUCED", "Operation", "all_reduce", "reduce_scatter"]

Operation = Literal["sum", "prod", "max", "min"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
REDUCED = ("int8", "int16", "int32", "int64", "float16", "float32", "bfloat16")
"""Types that HCCL reduces (assumed to be the same on every chip)."""
SLICE_UNIT_BYTES = 128
"""Slices of all_reduce are multiples of this (assumed)."""

_UFUNCS: dict[Operation, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def all_reduce(
    parts: Sequence[Array], operation: Operation, device: DeviceSpec, servers: int | None = None
) -> Array:
    """The result of every rank for all_reduce of *parts*, the tensor of each rank, on *device*.

    *servers* is as for :func:`npusim.collectives.time_us`. Raises ValueError for parts that do not
    match, types that are not reduced, and cards that cannot take part.
    """
    first = _checked("all_reduce", parts, operation)
    found = estimate("all_reduce", first.nbytes, len(parts), device, servers)
    flat = [np.ascontiguousarray(part).reshape(-1) for part in parts]
    output = np.empty_like(flat[0])
    for place, piece in enumerate(_slices(first, len(parts))):
        own = [part[piece] for part in flat]
        output[piece] = _reduced(own, place, operation, found, device)
    return output.reshape(first.shape)


def reduce_scatter(
    parts: Sequence[Array], operation: Operation, device: DeviceSpec, servers: int | None = None
) -> list[Array]:
    """The result of each rank for reduce_scatter of *parts*, along their first dimension.

    Raises ValueError like :func:`all_reduce`, and if that dimension is no multiple of the ranks.
    """
    first, cards = _checked("reduce_scatter", parts, operation), len(parts)
    if not first.ndim or first.shape[0] % cards:
        raise ValueError(
            f"collectives: reduce_scatter: the first dimension must be a multiple of {cards}, the "
            f"number of ranks, not that of shape {first.shape}; pad it"
        )
    found = estimate("reduce_scatter", first.nbytes // cards, cards, device, servers)
    cut = [np.split(part, cards) for part in parts]
    return [
        _reduced([own[place] for own in cut], place, operation, found, device)
        for place in range(cards)
    ]


def _checked(kind: Kind, parts: Sequence[Array], operation: str) -> Array:
    """The first of *parts*, after checking that the others match it."""
    if not parts:
        raise ValueError(
            f"collectives: {kind}: there must be a part for each rank, not none; pass a list"
        )
    if operation not in OPERATIONS:
        raise ValueError(
            f"collectives: {kind}: the operation must be one of {', '.join(OPERATIONS)}, not "
            f"{operation!r}; use one of these"
        )
    first = parts[0]
    for rank, part in enumerate(parts):
        if part.shape != first.shape or part.dtype != first.dtype:
            raise ValueError(
                f"collectives: {kind}: every rank must pass the shape and type of rank 0, "
                f"{first.dtype} {first.shape}, but rank {rank} passes {part.dtype} {part.shape}; "
                f"make them alike"
            )
    if first.dtype.name not in REDUCED:
        raise ValueError(
            f"collectives: {kind}: the type must be one of {', '.join(REDUCED)}, not "
            f"{first.dtype}; convert the tensors"
        )
    return first


def _slices(first: Array, cards: int) -> Iterator[slice]:
    """The elements that each rank reduces."""
    unit = max(1, SLICE_UNIT_BYTES // first.itemsize)
    length = align_up(ceil_div(first.size, cards), unit)
    for place in range(cards):
        begin = min(place * length, first.size)
        yield slice(begin, min(begin + length, first.size))


# ---- the order ----


def _reduced(
    own: Sequence[Array], place: int, operation: Operation, found: Estimate, device: DeviceSpec
) -> Array:
    """The slice that ends at rank *place*, reduced over the data of all ranks."""
    join, cards = _joining(operation, own[0], device.half_overflow), len(own)
    group = cards // found.servers
    order = _order(group, place % group, found.way, device)
    subtotals = [reduce(join, [own[at + rank] for rank in order]) for at in range(0, cards, group)]
    begin = place // group
    return _in_pairs(join, subtotals[begin:] + subtotals[:begin])


def _order(cards: int, place: int, way: Way, device: DeviceSpec) -> list[int]:
    """The ranks in the order in which they are added."""
    if way == "direct":
        return list(range(cards))
    begin = place + 1 if device.links.layout == "ring" else place
    return [(begin + step) % cards for step in range(cards)]


def _in_pairs(join: Callable[[Array, Array], Array], parts: Sequence[Array]) -> Array:
    left = list(parts)
    while len(left) > 1:
        joined = [join(*left[at : at + 2]) for at in range(0, len(left) - 1, 2)]
        left = joined + left[len(joined) * 2 :]
    return left[0]


def _joining(
    operation: Operation, like: Array, overflow: Overflow
) -> Callable[[Array, Array], Array]:
    """The reduction of two slices, rounded to their type; integers wrap (assumed)."""
    ufunc = _UFUNCS[operation]
    narrow = next((each for each in (FLOAT16, BFLOAT16) if each.numpy == like.dtype), None)

    def join(left: Array, right: Array) -> Array:
        with np.errstate(all="ignore"):
            if narrow is None:
                return np.asarray(ufunc(left, right))
            wide = ufunc(cast(left, FLOAT32), cast(right, FLOAT32))
            return cast(np.asarray(wide), narrow, "rint", overflow)

    return join
