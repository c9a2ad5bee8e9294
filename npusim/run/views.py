"""The cost of a view: kernels that make it contiguous before a kernel reads it.

On A2, A3 and 310P an operand that is a view is copied before the launch, by at most one of each of
these kernels, in this order (ops-math, conversion/contiguous/op_host/op_api/contiguous.cpp):

===========  =================  ================================================
kernel       operator here      what it undoes
===========  =================  ================================================
Slice        ``narrow``         rows are parts of longer ones
Transpose    ``permute``        axes are in another order than in memory
BroadcastTo  ``broadcast_to``   an axis has one element in memory
===========  =================  ================================================

Views cut along two axes, or with negative strides, are copied by AsStrided, which is not simulated.
Elements that are apart, such as those of a column, are assumed to be parts of rows; for some of
them the vendor has StridedSlice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim import ops
from npusim.data.errors import OpError
from npusim.data.tensor import Tensor, TensorSpec, lies_both_ways
from npusim.devices.schema import DeviceSpec

__all__ = ["Copies", "Copy", "EarlierCall", "by_operand", "copies_before", "copies_of"]

EarlierCall = tuple[str, dict[str, Any]]
"""An operator and its arguments."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A kernel: its operator, the shape of its operand, and its attributes."""

    op: str
    shape: tuple[int, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Copies:
    """How to copy a view, stored in *rows* of *pitch* elements."""

    rows: int
    pitch: int
    start: int
    """Offset of the view in its row."""
    kernels: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of a view that is longer than 1 and has a non-zero stride."""

    place: int
    size: int
    stride: int


def copies_of(
    shape: Sequence[int], strides: Sequence[int], offset: int = 0, stored: int | None = None
) -> Copies | None:
    """How to copy a view of *strides* elements that begins *offset* elements into its memory.

    The memory has *stored* elements, if known. None if no kernel here can copy it.
    """
    axes = [
        _Axis(place, size, stride)
        for place, (size, stride) in enumerate(zip(shape, strides, strict=True))
        if size > 1 and stride
    ]
    by_stride = sorted(axes, key=lambda axis: -axis.stride)
    cut = _cut(by_stride)
    if cut is None:
        return None
    rows, length, pitch = cut
    start, kernels = 0, []
    if length < pitch:
        # Offset of a part in its row, as if the storage began with a row, if that is possible.
        least = 0 if stored is None else max(0, offset + rows * pitch - stored)
        most = min(offset, pitch - length)
        if least > most:
            return None
        start = min(max(offset % pitch, least), most)
        kernels.append(Copy("narrow", (rows, pitch), {"dim": 1, "start": start, "length": length}))
    order = tuple(by_stride.index(axis) for axis in axes)
    if order != tuple(range(len(order))):
        kernels.append(Copy("permute", tuple(axis.size for axis in by_stride), {"dims": order}))
    if rows * length < prod(shape):
        places = {axis.place for axis in axes}
        own = tuple(size if place in places else 1 for place, size in enumerate(shape))
        kernels.append(Copy("broadcast_to", own, {"shape": tuple(shape)}))
    return Copies(rows, pitch, start, tuple(kernels))


def _cut(axes: list[_Axis]) -> tuple[int, int, int] | None:
    """Rows, elements of each that *axes* cover, from the longest stride on, and the pitch of rows;
    None if they are cut more than once."""
    found: tuple[int, int, int] | None = None
    run = 1
    for place, axis in reversed([*enumerate(axes)]):
        if axis.stride != run:
            if found is not None or axis.stride < run:
                return None
            rows = prod(outer.size for outer in axes[: place + 1])
            found = rows, run, axis.stride
        run = axis.stride * axis.size
    return found or (1, run, run)


# ---- of a call ----


def copies_before(
    spec: DeviceSpec, problem: ops.Problem, arguments: Mapping[str, object]
) -> tuple[EarlierCall, ...]:
    """The kernels that copy those operands of *problem* that are views among *arguments*.

    A view that the kernel accepts directly, as products accept a transposed matrix, needs none. The
    same is assumed for one that the kernel updates in place.
    """
    given, found = by_operand(arguments), []
    for operand in problem.inputs:
        value = given.get(operand.name)
        if operand.spec.transposed or operand.name in problem.updated:
            continue
        lie = _lie(value)
        copies = None if lie is None or 0 in lie[0] else copies_of(*lie)
        if copies is not None:
            element = "uint8" if _is_mask(value) else operand.spec.dtype
            calls = [
                (each.op, {"x": TensorSpec(each.shape, element), **each.attributes})
                for each in copies.kernels
            ]
            found += calls if _are_taken(spec, calls) else []
    return tuple(found)


def by_operand(arguments: Mapping[str, object]) -> dict[str, object]:
    """*arguments*, with elements of lists under the names of their operands: `x[0]`, `x[1]`, ..."""
    found: dict[str, object] = {}
    for name, value in arguments.items():
        if not isinstance(value, list):
            found[name] = value
        elif len(value) == 1:
            found[name] = value[0]
        else:
            found |= {f"{name}[{place}]": part for place, part in enumerate(value)}
    return found


def _lie(value: object) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides, in elements, of *value* if it is a view; else None."""
    if isinstance(value, np.ndarray):
        if value.flags.c_contiguous:
            return None
        return value.shape, tuple(stride // value.itemsize for stride in value.strides)
    spec = value.spec if isinstance(value, Tensor) else value
    if not isinstance(spec, TensorSpec) or not spec.transposed or spec.layout != "ND":
        return None
    if lies_both_ways(spec):
        return None
    *outer, rows, columns = spec.shape
    steps = [rows * columns * prod(outer[place + 1 :]) for place in range(len(outer))]
    return spec.shape, (*steps, 1, rows)


def _is_mask(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_


def _are_taken(spec: DeviceSpec, calls: list[EarlierCall]) -> bool:
    """Whether the chip has kernels for all *calls*, which depends on the type."""
    try:
        for op, own in calls:
            ops.load(op).check(spec, **own)
    except OpError:
        return False
    return True
