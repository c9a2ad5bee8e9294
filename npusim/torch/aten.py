"""Operations of torch itself that a kernel of the card computes.

Sums, functions, comparisons and the like of npu tensors run as operators of npusim, with the card's
bits and time, where the operator takes the call: tensors of one type that it knows, of shapes that
it broadcasts. A view is copied first, by kernels of its own (:mod:`npusim.torch.views`). In place,
a kernel writes to the tensor itself, which must be contiguous. All other calls run on the host, as
operations without a kernel do, and those with `out=`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npusim.torch import products
from npusim.torch.fallback import HostOp, is_on_host
from npusim.torch.kernels import Given, launch, takes
from npusim.torch.relabel import overwrite
from npusim.torch.views import contiguous, copied, is_plain

__all__ = ["kernels"]

Take = Callable[..., Given | None]
"""The arguments of an operation as the operator takes them; None where it does not."""
REALS = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
FLOATS = REALS[:3]
MULTIPLIED = (torch.float32, torch.float16, torch.int32)
SELECTED = (*REALS, torch.int64, torch.int8, torch.uint8)
MOST_SELECTED = 1 << 14
"""Rows that a kernel selects: it has a micro-op for each, so that more take seconds to write."""


class CardOp:
    """An operation of torch with an operator of npusim."""

    __slots__ = ("_host", "_name", "_take")

    def __init__(self, op: Any, name: str, take: Take) -> None:
        self._host, self._name, self._take = HostOp(op), name, take

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = None if is_on_host() else self.on_card(*args, **kwargs)
        return self._host(*args, **kwargs) if found is None else found

    def on_card(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """The result of the kernel; None where none takes the call."""
        return _launched(self._name, self._take(*args, **kwargs))


def _launched(name: str, given: Given | None) -> torch.Tensor | None:
    """What operator *name* makes of *given*, views copied first; None where it does not take it."""
    if given is None:
        return None
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    if not all(map(is_plain, tensors)) or not takes(name, given):
        return None
    found = launch(
        name,
        {
            key: contiguous(value) if isinstance(value, torch.Tensor) else value
            for key, value in given.items()
        },
    )
    return found.view(torch.bool) if name in COMPARISONS else found


class MultipleOp(CardOp):
    """A sum or difference, with a factor of the second operand: one kernel for both.

    Of bfloat16 there are two, and factor and product are rounded to it (aclnnAdd and aclnnSub of
    ops-math).
    """

    def on_card(self, x: Any, other: Any, *, alpha: Any = 1) -> Any:
        given = self._take(x, other)
        if alpha == 1 or given is None:
            return _launched(self._name, given)
        if x.dtype == torch.bfloat16 and isinstance(other, torch.Tensor):
            return _launched(self._name, self._take(x, torch.mul(other, alpha)))
        sign = -1 if self._name == "sub" else 1
        is_known = x.dtype in MULTIPLIED
        return _launched("axpy", given | {"alpha": sign * alpha}) if is_known else None


class SumOp(CardOp):
    """The same along an axis, which may stay as one of length 1."""

    def on_card(self, x: Any, dim: Any = (), keepdim: Any = False, **kwargs: Any) -> Any:
        found = super().on_card(x, dim, **kwargs)
        if found is None or not keepdim:
            return found
        return found.unsqueeze(dim[0] if isinstance(dim, list | tuple) else dim)


class InPlaceOp:
    """An operation whose result is written over the first tensor."""

    __slots__ = ("_host", "_kernel")

    def __init__(self, op: Any, kernel: CardOp) -> None:
        self._host, self._kernel = HostOp(op), kernel

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        others = [value for value in args if isinstance(value, torch.Tensor)]
        fits = x.is_contiguous() and all(_is_broadcast(other, x) for other in others)
        is_on_card = fits and not is_on_host()
        found = self._kernel.on_card(x, *args, **kwargs) if is_on_card else None
        if found is None:
            return self._host(x, *args, **kwargs)
        overwrite(x, found)
        return x


def _is_broadcast(other: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether *other* has the shape of *x* once it is broadcast."""
    behind = x.shape[x.dim() - other.dim() :] if other.dim() <= x.dim() else None
    return behind is not None and all(
        own in (1, size) for own, size in zip(other.shape, behind, strict=True)
    )


class CopyOp:
    """`clone`: a view is copied as its kernels do it."""

    __slots__ = ("_host",)

    def __init__(self) -> None:
        self._host = HostOp(torch.ops.aten.clone.default)

    def __call__(self, x: torch.Tensor, *, memory_format: Any = None) -> Any:
        found = None if is_on_host() else copied(x, memory_format)
        return self._host(x, memory_format=memory_format) if found is None else found


def kernels() -> dict[str, Callable[..., Any]]:
    """Operation of aten -> its kernel for the card."""
    known = {
        full: kind(_named(full), name, take)
        for kind, table in ((CardOp, _TABLE), (MultipleOp, _MULTIPLES), (SumOp, _SUMS))
        for full, (name, take) in table.items()
    }
    found: dict[str, Callable[..., Any]] = {**known, **products.kernels(), "clone": CopyOp()}
    for full in _IN_PLACE:
        packet, dot, overload = full.partition(".")
        in_place = f"{packet}_{dot}{overload}"
        found[in_place] = InPlaceOp(_named(in_place), known[full])
    return found


def _named(full: str) -> Any:
    packet, _, overload = full.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


# ---- arguments ----


def _one(x: torch.Tensor, **_: Any) -> Given | None:
    return {"x": x} if x.dtype in REALS else None


def _two(x: Any, other: Any) -> Given | None:
    if not isinstance(x, torch.Tensor) or x.dtype not in REALS:
        return None
    number = _number(other)
    if number is None:
        return {"x": x, "other": other} if other.dtype == x.dtype else None
    is_whole = isinstance(number, int)
    return {"x": x, "other": number} if is_whole or x.dtype in FLOATS else None


def _floats(x: Any, other: Any) -> Given | None:
    """Division: torch makes floats of integers first."""
    return _two(x, other) if isinstance(x, torch.Tensor) and x.dtype in FLOATS else None


def _number(value: Any) -> int | float | None:
    """*value* if it is a number, or a tensor of the host that torch made of one; else None."""
    if isinstance(value, torch.Tensor):
        is_number = value.dim() == 0 and not value.is_npu
        value = value.item() if is_number else None
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_real else None


def _bounded(x: torch.Tensor, low: Any = None, high: Any = None) -> Given | None:
    """Both bounds as torch promotes them: those of whole numbers must be whole too."""
    bounds = [_number(bound) for bound in (low, high) if bound is not None]
    if x.dtype not in REALS or None in bounds:
        return None
    is_whole = all(isinstance(bound, int) for bound in bounds)
    return {"x": x, "low": low, "high": high} if is_whole or x.dtype in FLOATS else None


def _where(condition: Any, x: Any, other: Any) -> Given | None:
    given = _two(x, other)
    if given is None or not condition.is_npu or condition.dtype != torch.bool:
        return None
    return {"condition": condition.view(torch.uint8)} | given


def _rows(x: torch.Tensor, dim: Any = (), *rest: Any, **more: Any) -> Given | None:
    """Along one axis, without a type."""
    dims = dim if isinstance(dim, list | tuple) else [dim]
    if any((*rest, *more.values())) or len(dims) != 1 or x.dtype not in FLOATS:
        return None
    return {"x": x, "dim": dims[0]}


def _table(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Given | None:
    """What else there is is about gradients."""
    is_known = weight.dtype in REALS and indices.dtype in (torch.int32, torch.int64)
    return {"weight": weight, "indices": indices} if is_known else None


def _selected(x: torch.Tensor, dim: int, index: torch.Tensor) -> Given | None:
    is_known = x.dtype in SELECTED and index.dtype in (torch.int32, torch.int64)
    is_few = x.shape[:dim].numel() * index.numel() <= MOST_SELECTED if x.dim() else False
    return {"x": x, "dim": dim, "index": index} if is_known and is_few else None


def _joined(tensors: list[torch.Tensor], dim: int = 0) -> Given | None:
    """Two tensors, as many as the operator takes."""
    if len(tensors) != 2 or tensors[0].dtype != tensors[1].dtype:
        return None
    return {"x": tensors[0], "other": tensors[1], "dim": dim}


def _filled(x: torch.Tensor, value: Any = 0) -> Given | None:
    number = _number(value)
    is_real = x.dtype in FLOATS and number is not None
    return {"x": x, "value": number} if is_real or isinstance(number, int) else None


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OF_ONE = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "silu",
           "gelu", "relu")  # fmt: skip
_TABLE: dict[str, tuple[str, Take]] = {
    **{name: (name, _one) for name in _OF_ONE},
    **{f"{name}.Tensor": (name, _two) for name in ("mul", *COMPARISONS)},
    **{f"{name}.Scalar": (name, _two) for name in COMPARISONS},
    **{name: (name, _two) for name in ("maximum", "minimum")},
    "div.Tensor": ("div", _floats),
    "clamp": ("clamp", _bounded),
    "where.self": ("where", _where),
    "_softmax": ("softmax", _rows),
    "_log_softmax": ("log_softmax", _rows),
    "cat": ("concat", _joined),
    "embedding": ("embedding", _table),
    "index_select": ("index_select", _selected),
    **dict.fromkeys(("fill.Scalar", "fill.Tensor", "zero"), ("fill", _filled)),
}
"""Operation of aten -> the operator, and how its arguments become the operator's."""
_MULTIPLES: dict[str, tuple[str, Take]] = {
    f"{name}.Tensor": (name, _two) for name in ("add", "sub")
}
"""The same with a factor of the second operand."""
_SUMS: dict[str, tuple[str, Take]] = {
    "sum.dim_IntList": ("sum", _rows),
    "mean.dim": ("mean", _rows),
    "amax": ("amax", _rows),
}
"""The same for operations along an axis."""
_IN_PLACE = (
    *(name for name in _OF_ONE if name not in ("silu", "gelu")),
    *(f"{name}.Tensor" for name in ("add", "sub", "mul", "div")),
    *("fill.Scalar", "fill.Tensor", "zero"),
)
"""Those that also write over their first tensor."""
