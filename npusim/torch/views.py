"""Copies and casts of npu tensors on the card, and the kernels that make a view contiguous.

A matrix in FRACTAL_NZ is copied and cast in that format, and the result has it too.

:mod:`npusim.run.views` chooses the kernels for a view. Views without kernels, or that the kernels
reject, are copied on the host and counted as not timed.
"""

from __future__ import annotations

import torch

from npusim.run.views import copies_of
from npusim.torch import card, formats, timed
from npusim.torch.clock import clock
from npusim.torch.kernels import launch, launched, takes
from npusim.torch.relabel import overwrite, to_host, to_npu

__all__ = ["cast", "contiguous", "copied", "is_plain"]


def is_plain(x: torch.Tensor) -> bool:
    """Whether *x* is a non-empty npu tensor in ND, and neither a conjugate nor a negative view."""
    return (
        x.is_npu
        and x.numel() > 0
        and formats.get(x) == formats.ND
        and not x.is_neg()
        and not x.is_conj()
    )


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """*x* in row-major order: *x* itself if it is contiguous, else a copy made by kernels."""
    if x.is_contiguous():
        return x
    found = None
    if is_plain(x):
        is_bool = x.dtype == torch.bool
        found = _in_order(x.view(torch.uint8) if is_bool else x)
        found = found.view(torch.bool) if found is not None and is_bool else found
    if found is None:
        if not is_plain(x) or card.spec().series == "Atlas inference":
            clock.host("aten.clone.default")
        else:
            timed.copied(x)
        found = torch.empty_like(x, memory_format=torch.contiguous_format)
        overwrite(found, x)
    return found


def copied(x: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor | None:
    """A copy of *x* on the card, with the strides of `torch.clone`; None if no kernel makes it."""
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
    """*x* cast to *dtype*, with the order of its axes in memory; None if no kernel casts it."""
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
    """A meta tensor with the strides of a copy of *x* that preserves its order of axes."""
    return torch.empty_like(x, device="meta")


def _is_dense(x: torch.Tensor) -> bool:
    """Whether the elements of *x* fill one run of memory, without gaps or overlaps."""
    return bool(_kept(x).stride() == x.stride())


def _is_whole_nz(x: torch.Tensor) -> bool:
    """Whether *x* is a whole matrix in FRACTAL_NZ, transposed or not."""
    return x.is_npu and formats.get(x) == formats.NZ and x.storage_offset() == 0 and _is_dense(x)


def _in_fractals(name: str, x: torch.Tensor, **options: str) -> torch.Tensor | None:
    """Operator *name* on the fractals of *x*; the result has the same order of fractals."""
    as_rows = to_npu(to_host(x).as_strided((x.numel(),), (1,), 0))
    found = _on_memory(name, as_rows, **options)
    if found is None:
        return None
    formats.put(found, formats.NZ)
    return found.as_strided(x.shape, x.stride(), 0)


def _on_memory(name: str, x: torch.Tensor, **options: str) -> torch.Tensor | None:
    """Operator *name* on the memory of the dense tensor *x*, whatever the order of its axes."""
    run = x.as_strided((x.numel(),), (1,), x.storage_offset())
    found = launched(name, {"x": run, **options})
    return None if found is None else found.as_strided(x.shape, x.stride(), 0)


def _in_order(x: torch.Tensor) -> torch.Tensor | None:
    """*x* copied to row-major order by kernels; None if there are none for it."""
    offset, stored = x.storage_offset(), x.untyped_storage().nbytes() // x.element_size()
    copies = copies_of(tuple(x.shape), x.stride(), offset, stored)
    if copies is None:
        return None
    rows, pitch = copies.rows, copies.pitch
    found = x.as_strided((rows, pitch), (pitch, 1), offset - copies.start)
    for kernel in copies.kernels:
        copy = launched(kernel.op, {"x": found.view(kernel.shape), **kernel.attributes})
        if copy is None:
            return None
        found = copy
    return found.view(x.shape)
