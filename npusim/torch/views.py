"""Copies of npu tensors on the card: which kernels make a view contiguous, and casts.

A kernel that wants its operand row after row is preceded by at most one kernel each of these, in
this order (ops-math, conversion/contiguous/op_host/op_api/contiguous.cpp):

===========  =================  ================================================
kernel       operator here      what it undoes
===========  =================  ================================================
Slice        ``narrow``         rows are parts of longer ones
Transpose    ``permute``        axes are in another order than in memory
BroadcastTo  ``broadcast_to``   an axis has one element in memory
===========  =================  ================================================

A matrix in FRACTAL_NZ is copied and cast as it lies, and stays so.

Views cut along two axes, or whose copy the operators here do not take, are copied on the host and
counted as not timed. That elements which lie apart, as those of a column, are such parts of rows is
assumed: for some of them the vendor has StridedSlice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from npusim.torch import formats
from npusim.torch.clock import clock
from npusim.torch.kernels import launch, takes
from npusim.torch.relabel import overwrite, to_host, to_npu

__all__ = ["cast", "contiguous", "copied", "is_plain"]


def is_plain(x: torch.Tensor) -> bool:
    """Whether *x* is an npu tensor in ND with an element at least, whose bits are its values."""
    return (
        x.is_npu
        and x.numel() > 0
        and formats.get(x) == formats.ND
        and not x.is_neg()
        and not x.is_conj()
    )


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """*x* row after row: itself if it lies so, else what kernels copied."""
    if x.is_contiguous():
        return x
    found = None
    if is_plain(x):
        is_bool = x.dtype == torch.bool
        found = _in_order(x.view(torch.uint8) if is_bool else x)
        found = found.view(torch.bool) if found is not None and is_bool else found
    if found is None:
        clock.host("aten.clone.default")
        found = torch.empty_like(x, memory_format=torch.contiguous_format)
        overwrite(found, x)
    return found


def copied(x: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor | None:
    """A copy of *x* on the card, as `torch.clone` has it lie; None where no kernel makes it."""
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    if _is_whole_nz(x):
        return _in_fractals("clone", x)
    if not is_plain(x):
        return None
    keeps = memory_format != torch.contiguous_format
    if x.is_contiguous() or (keeps and _is_dense(x)):
        return _on_memory("clone", x)
    return contiguous(x) if not keeps or _kept(x).is_contiguous() else None


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """*x* as *dtype*, lying as it does; None where no kernel casts it."""
    name = str(dtype).removeprefix("torch.")
    if _is_whole_nz(x):
        return _in_fractals("cast", x, dtype=name)
    if not is_plain(x):
        return None
    if _is_dense(x):
        return _on_memory("cast", x, dtype=name)
    if not _kept(x).is_contiguous() or not takes("cast", {"x": x, "dtype": name}):
        return None
    return launch("cast", {"x": contiguous(x), "dtype": name})


# ---- geometry ----


def _kept(x: torch.Tensor) -> torch.Tensor:
    """How a copy of *x* lies that keeps the order of its axes in memory; without values."""
    return torch.empty_like(x, device="meta")


def _is_dense(x: torch.Tensor) -> bool:
    """Whether the elements of *x* are a run of memory, each of them once."""
    return bool(_kept(x).stride() == x.stride())


def _is_whole_nz(x: torch.Tensor) -> bool:
    """Whether *x* is all of a matrix in FRACTAL_NZ, turned or not."""
    return x.is_npu and formats.get(x) == formats.NZ and x.storage_offset() == 0 and _is_dense(x)


def _in_fractals(name: str, x: torch.Tensor, **options: str) -> torch.Tensor | None:
    """Operator *name* on the fractals of *x*, which lie as they did in what it gives."""
    as_rows = to_npu(to_host(x).as_strided((x.numel(),), (1,), 0))
    found = _on_memory(name, as_rows, **options)
    if found is None:
        return None
    formats.put(found, formats.NZ)
    return found.as_strided(x.shape, x.stride(), 0)


def _on_memory(name: str, x: torch.Tensor, **options: str) -> torch.Tensor | None:
    """Operator *name* on the run of memory that *x* is, whatever the order of its axes."""
    run = x.as_strided((x.numel(),), (1,), x.storage_offset())
    given = {"x": run, **options}
    return launch(name, given).as_strided(x.shape, x.stride(), 0) if takes(name, given) else None


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of a view that is longer than 1 and moves through memory."""

    place: int
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows of which each is a part of a longer one."""

    rows: int
    length: int
    """Elements of a part."""
    pitch: int
    """Elements from row to row."""


def _in_order(x: torch.Tensor) -> torch.Tensor | None:
    """*x* row after row, by kernels; None where there are none for it."""
    moving = [
        _Axis(place, size, stride)
        for place, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True))
        if size > 1 and stride
    ]
    by_stride = sorted(moving, key=lambda axis: -axis.stride)
    found = _together(x, by_stride)
    order = tuple(by_stride.index(axis) for axis in moving)
    if found is not None and order != tuple(range(len(order))):
        given = {"x": found.view([axis.size for axis in by_stride]), "dims": order}
        found = launch("permute", given) if takes("permute", given) else None
    if found is not None and found.numel() < x.numel():
        places = {axis.place for axis in moving}
        shape = [size if place in places else 1 for place, size in enumerate(x.shape)]
        given = {"x": found.view(shape), "shape": tuple(x.shape)}
        found = launch("broadcast_to", given) if takes("broadcast_to", given) else None
    return None if found is None else found.view(x.shape)


def _together(x: torch.Tensor, axes: list[_Axis]) -> torch.Tensor | None:
    """The elements of *x* in the order of memory, without gaps."""
    cut = _cut(axes)
    if cut is None:
        return None
    offset = x.storage_offset()
    if cut.length == cut.pitch:
        return x.as_strided((cut.rows * cut.pitch,), (1,), offset)
    # Where in its row a part begins: as if the storage began with a row, if that fits.
    stored = x.untyped_storage().nbytes() // x.element_size()
    least = max(0, offset + cut.rows * cut.pitch - stored)
    most = min(offset, cut.pitch - cut.length)
    if least > most:
        return None
    start = min(max(offset % cut.pitch, least), most)
    rows = x.as_strided((cut.rows, cut.pitch), (cut.pitch, 1), offset - start)
    given = {"x": rows, "dim": 1, "start": start, "length": cut.length}
    return launch("narrow", given) if takes("narrow", given) else None


def _cut(axes: list[_Axis]) -> _Cut | None:
    """The rows that *axes*, from the longest stride on, run through; None if cut more than once."""
    found: _Cut | None = None
    run = 1
    for place, axis in reversed([*enumerate(axes)]):
        if axis.stride != run:
            if found is not None or axis.stride < run:
                return None
            rows = prod(outer.size for outer in axes[: place + 1])
            found = _Cut(rows, run, axis.stride)
        run = axis.stride * axis.size
    return found or _Cut(1, run, run)
