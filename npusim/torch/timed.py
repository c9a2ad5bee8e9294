"""Time operations that torch computes on the host, by the kernels that a card launches for them.

Values are those of the host, bit for bit. Times follow from the work of the kernels, by the table
in :mod:`npusim.torch.works`. Views are first copied by separate kernels, and results are copied to
views. An operation that is not in the table, or that runs on the AI CPU of a card, counts as not
timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from npusim import ops
from npusim.data.errors import OpError
from npusim.data.tensor import TensorSpec
from npusim.run.memory_cache import key_of
from npusim.run.views import copies_of
from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.works.call import Call, Launch, elements
from npusim.torch.works.rules import strided
from npusim.torch.works.table import KERNELS
from npusim.torch.works.work import Work

__all__ = ["copied", "moved", "ran"]

BY_AI_CPU = frozenset({torch.float64, torch.complex64, torch.complex128, torch.complex32})
"""Types for which almost no operation has a kernel on the AI core."""


def packet_of(schema: torch.FunctionSchema) -> str:
    """The name of an operation, in place or not: `index_add` of `aten::index_add_`."""
    name: str = schema.name.removeprefix("aten::")
    return name if name in KERNELS else name.removesuffix("_")


def ran(
    schema: torch.FunctionSchema,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    found: object,
) -> bool:
    """Advance the clock for an operation that has run; returns whether its time is known."""
    packet = packet_of(schema)
    if packet not in KERNELS:
        return False
    written = zip(schema.arguments, args, strict=False)
    outputs = _tensors(found) or _tensors([x for each, x in written if each.is_write])
    outs = {id(kwargs.get(each.name)) for each in schema.arguments if each.is_out}
    inputs = [x for x in _tensors((args, list(kwargs.values()))) if id(x) not in outs]
    if not outputs or any(x.dtype in BY_AI_CPU for x in (*inputs, *outputs)):
        return False
    kernel, rule = KERNELS[packet]
    works = rule(Call(args, kwargs, inputs, outputs), kernel)
    if works is None or not all(map(_is_here, works)):
        return False
    before = [x for x in inputs if not x.is_contiguous() and x.numel() > 1]
    given = {id(x) for x in inputs} | outs
    after = [y for y in outputs if id(y) in given and not y.is_contiguous() and y.numel() > 1]
    if (before or after) and card.spec().series == "Atlas inference":
        return False
    for x in before:
        copied(x)
    _launch(works)
    for y in after:
        _launch(strided(_dense(y), y) or ())
    return True


def moved(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Advance the clock for a copy of *source* to *target*; returns whether its time is known."""
    if any(x.dtype in BY_AI_CPU for x in (source, target)):
        return False
    are_plain = source.is_contiguous(), target.is_contiguous()
    if not all(are_plain) and card.spec().series == "Atlas inference":
        return False
    if source.dtype == target.dtype and are_plain == (False, False):
        _launch(strided(source.expand(target.shape), target) or ())
        return True
    if not are_plain[0]:
        copied(source)
    if source.dtype != target.dtype or are_plain == (True, True):
        kernel = "TensorMove" if source.dtype == target.dtype else "Cast"
        _launch([elements(kernel, [source], [target], (), target.numel())])
    if not are_plain[1]:
        _launch(strided(_dense(target), target) or ())
    return True


def copied(x: torch.Tensor) -> None:
    """Advance the clock for the kernels that make a view contiguous, without copying it."""
    if x.dtype in BY_AI_CPU:
        clock.host("aten.clone.default")
        return
    size = x.element_size()
    stored = x.untyped_storage().nbytes() // size
    copies = copies_of(tuple(x.shape), x.stride(), x.storage_offset(), stored)
    calls = None if copies is None else [*_calls(x.dtype, copies.kernels)]
    if calls and all(_is_taken(op, given) for op, given in calls):
        for op, given in calls:
            card.play_as(None, op, given)
    else:
        _launch(strided(x, _dense(x)) or ())


def _dense(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor like *x*."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def _calls(dtype: torch.dtype, kernels: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = "uint8" if dtype == torch.bool else str(dtype).removeprefix("torch.")
    for each in kernels:
        yield each.op, {"x": TensorSpec(each.shape, name), **each.attributes}


def _is_taken(op: str, given: dict[str, Any]) -> bool:
    return card.known(("taken", op, key_of(given)), lambda: _checks(op, given))


def _checks(op: str, given: dict[str, Any]) -> bool:
    try:
        ops.load(op).check(card.spec(), **given)
    except (OpError, ValueError):
        return False
    return True


def _is_here(work: Work | Launch) -> bool:
    if isinstance(work, Launch):
        return _is_taken(work.op, work.arguments)
    return work.on_inference or card.spec().series != "Atlas inference"


def _launch(works: Sequence[Work | Launch]) -> None:
    for work in works:
        if isinstance(work, Launch):
            card.play_as(work.kernel, work.op, work.arguments)
        elif work.size:
            card.play(work)


def _tensors(found: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.is_npu]
