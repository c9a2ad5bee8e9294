"""Views, copies and storages of npu tensors, which the fallback cannot handle by relabelling.

A view must share the storage of its base, not only the memory: autograd and `.data =` rely on it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from npusim.torch import card, half_types, known, numbering, shapes, timed
from npusim.torch.clock import clock
from npusim.torch.errors import invalid_device
from npusim.torch.fallback import is_on_host
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.repeats import Repeats
from npusim.torch.views import cast, copied

__all__ = ["KERNELS", "new_storage"]

aten = torch.ops.aten


def _empty(
    size: object,
    *,
    dtype: object = None,
    device: object = None,
    memory_format: object = None,
    **_: object,
) -> torch.Tensor:
    _check(device)
    if not card.computes_values():
        order = _order(memory_format)
        return shapes.like(torch.empty(size, dtype=dtype, device="meta", memory_format=order))
    return to_npu(torch.empty(size, dtype=dtype, device="cpu", memory_format=_order(memory_format)))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: object = None,
    device: object = None,
    **_: object,
) -> torch.Tensor:
    _check(device)
    if not card.computes_values():
        of_type = dtype or torch.get_default_dtype()
        return shapes.like(torch.empty_strided(size, stride, dtype=of_type, device="meta"))
    return to_npu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _check(device: torch.device | None) -> None:
    if device is not None and not numbering.is_current(device.index):
        raise invalid_device(device)


def _order(memory_format: torch.memory_format | None) -> torch.memory_format:
    return torch.contiguous_format if memory_format is None else memory_format


def _view(op: torch._ops.OpOverload) -> Callable[..., torch.Tensor]:
    """The kernel of a view: that of the CPU, which only changes shape, strides and offset, so the
    view has the storage and device of its base."""

    def view(*args: object) -> torch.Tensor:
        found: torch.Tensor = op.redispatch(_CPU, *args)
        return found

    return view


_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    given = source
    if source.is_npu and target.is_npu and target.numel():
        source = _moved(source, target)
    elif source.is_npu:
        clock.wait()
    if card.computes_values():
        to_host(target).copy_(to_host(source), non_blocking)
    else:
        _copy_what_is_known(given, target)
    return target


def _copy_what_is_known(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy *source* to *target* where shapes alone are simulated: only known values."""
    has_values = not source.is_npu or known.is_known(source)
    if not target.is_npu and not has_values:
        shapes.refuse("a copy to the host")
    if has_values and (not target.is_npu or known.is_backed(target)):
        to_host(target).copy_(to_host(source))
        if target.is_npu and target.numel() == target.untyped_storage().nbytes() // target.itemsize:
            known.learn(target)
    else:
        known.forget(target)


def _moved(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """*source* in the type and order of *target*, converted by a kernel of the card if there is
    one; advances the clock."""
    found = None
    if target.is_contiguous() and source.shape == target.shape and not is_on_host():
        is_copy = source.dtype == target.dtype
        order = torch.contiguous_format
        found = copied(source, order) if is_copy else cast(source, target.dtype)
    if found is None:
        is_kernel = not is_on_host()
        if not (is_kernel and timed.moved(source, target)):
            clock.host("aten.copy_.default", is_kernel)
    return source if found is None else found


def _copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.shape != source.shape:
        target.resize_(source.shape)
    return _copy_from(source, target)


def _to_copy(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> torch.Tensor:
    """A copy of another type, or on another device: `.to()`, `.half()`, `.cpu()`."""
    if device is not None and device.type not in ("npu", "cpu"):
        return torch.empty_like(tensor, dtype=dtype, device=device, memory_format=memory_format)
    is_there = device is None or device.type == "npu"
    if is_there:
        _check(device)
    is_kernel = is_there and tensor.is_npu and tensor.numel() > 0 and not is_on_host()
    given = tensor, dtype, memory_format
    found = _conversions.run(_converted, given) if is_kernel else None
    if found is not None and (card.computes_values() or not known.is_known(tensor)):
        return found
    is_timed = found is not None
    found = _copied_by_host(tensor, dtype, memory_format, is_there)
    if is_timed:
        return found
    if is_there and tensor.is_npu and not (is_kernel and timed.moved(tensor, found)):
        clock.host("aten._to_copy.default", is_kernel)
    return found


def _copied_by_host(
    tensor: torch.Tensor,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    is_there: bool,
) -> torch.Tensor:
    """The same copy made by the host: if no kernel makes it, or if it is a copy to the host."""
    if not card.computes_values() and not _is_decided(tensor):
        if not is_there:
            shapes.refuse("a copy to the host")
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return shapes.like(aten._to_copy(meta, dtype=dtype, memory_format=memory_format))
    if not is_there:
        clock.wait()
    on_host: torch.Tensor = aten._to_copy(to_host(tensor), dtype=dtype, memory_format=memory_format)
    if not is_there:
        return on_host
    found = to_npu(on_host)
    if not card.computes_values():
        known.own(found)
        known.learn(found)
    return found


def _is_decided(tensor: torch.Tensor) -> bool:
    """Whether the values of *tensor* are known where shapes alone are simulated."""
    if tensor.is_npu:
        return known.is_known(tensor)
    return known.may_be_known(tensor.shape, tensor.dtype)


_conversions = Repeats()


def _converted(tensor: torch.Tensor, dtype: object, memory_format: object) -> torch.Tensor | None:
    """A copy or cast by kernels of the card; None if there are none."""
    if dtype in (None, tensor.dtype):
        return copied(tensor, memory_format)
    return cast(tensor, dtype) if memory_format in (None, torch.preserve_format) else None


def _resize(tensor: torch.Tensor, size: object, *, memory_format: object = None) -> torch.Tensor:
    """Replace the memory by new memory, since memory imported through DLPack cannot grow."""
    if not card.computes_values():
        order = _order(memory_format)
        new = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=order)
        tensor.data = shapes.like(new)
        return tensor
    old = to_host(tensor)
    new = torch.empty(size, dtype=old.dtype, memory_format=_order(memory_format))
    kept = min(old.numel(), new.numel())
    new.view(-1)[:kept] = old.reshape(-1)[:kept]
    tensor.data = to_npu(new)
    return tensor


def _set_storage(
    tensor: torch.Tensor,
    storage: torch.UntypedStorage,
    storage_offset: int = 0,
    size: object = None,
    stride: object = (),
) -> torch.Tensor:
    flat = torch.empty(0, dtype=tensor.dtype)
    whole = storage.nbytes() // tensor.element_size()
    if whole:
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        memory.kept = storage
        flat = torch.frombuffer(memory, dtype=tensor.dtype, count=whole)
    if size is None:
        size, stride = (whole,), (1,)
    tensor.data = to_npu(torch.as_strided(flat, size, stride, storage_offset))
    return tensor


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: Any, *rest: Any) -> torch.Tensor:
    run = half_types.run_of(aten.convolution.default)
    on_host = None if bias is None else to_host(bias)
    found = to_npu(run(to_host(x), to_host(weight), on_host, *rest))
    _passed(aten.convolution.default, (x, weight, bias, *rest), found)
    return found


def _convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    how, mask = rest[:-1], rest[-1]
    bias_sizes = [grad.shape[1]] if mask[2] else None
    tensors = to_host(grad), to_host(x), to_host(weight)
    run = half_types.run_of(aten.convolution_backward.default)
    parts = run(*tensors, bias_sizes, *how, mask)
    found = tuple(None if part is None else to_npu(part) for part in parts)
    args = grad, x, weight, bias_sizes, *how, mask
    _passed(aten.convolution_backward.default, args, found)
    return found


def _passed(op: torch._ops.OpOverload, args: tuple[Any, ...], found: object) -> None:
    if is_on_host() or not timed.ran(op._schema, args, {}, found):
        clock.host(str(op), not is_on_host())


def _fit_together(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether `.data =` accepts one tensor in place of the other, each on the host or the card.

    `Module.to` then moves parameters without replacing the objects (Ascend/pytorch@9e73e70,
    csrc/aten/ops/HasCompatibleShallowCopyType.cpp).
    """
    return all(x.layout is torch.strided and x.device.type in ("cpu", "npu")
               for x in (first, second))  # fmt: skip


KERNELS: dict[str, Callable[..., object]] = {
    "_has_compatible_shallow_copy_type": _fit_together,
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_to_copy": _to_copy,
    **{
        name: _view(getattr(aten, name).default)
        for name in ("as_strided", "_reshape_alias", "view", "unfold")
    },
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "resize_": _resize,
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _set_storage,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}
"""Operation of aten -> its kernel for the card."""

_new_on_host = torch.UntypedStorage.__new__


def new_storage(cls: object, *args: object, device: object = None, **kwargs: object) -> object:
    """Replace `torch.UntypedStorage(...)`: torch has no allocator for the card and would crash."""
    if device is None or torch.device(device).type != "npu":
        given = kwargs if device is None else kwargs | {"device": device}
        return _new_on_host(cls, *args, **given)
    if len(args) > 1 or kwargs or (args and not isinstance(args[0], int)):
        raise TypeError(
            "npusim.torch: a storage on npu must be made from a size, "
            f"not {args[0] if args else kwargs!r}; make it on the CPU and copy it"
        )
    size = args[0] if args else 0
    return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
