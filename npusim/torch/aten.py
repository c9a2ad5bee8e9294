"""Operations of torch itself that a kernel of the card computes.

Sums, functions, comparisons and the like of npu tensors run as operators of npusim, with the card's
bits and time, where the operator takes the call: contiguous tensors of one type that it knows, of
shapes that it broadcasts. All other calls run on the host, as operations without a kernel do: those
with views, whose copies are kernels of their own that are not simulated, in place, and with `out=`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

import torch

from npusim import ops
from npusim.data.errors import OpError
from npusim.run.kept import key_of
from npusim.run.result import Output
from npusim.torch import card, formats
from npusim.torch.fallback import HostOp
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.values import argument, result

__all__ = ["kernels", "on_host"]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, or a number."""
Take = Callable[..., Given | None]
"""The arguments of an operation as the operator takes them; None where it does not."""
REALS = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
FLOATS = REALS[:3]
MULTIPLIED = (torch.float32, torch.float16, torch.int32)
MOST_SELECTED = 1 << 14
"""Rows that a kernel selects: it has a micro-op for each, so that more take seconds to write."""
COPIED = (*REALS, torch.int64, torch.int8, torch.uint8)


SEES_VALUES = ("embedding", "index_select")
"""Operators whose calls may depend on the values of tensors, not on shapes and types alone."""

_on_host: list[str] = []
"""Why operations are to run on the host, while they are."""


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """*function*, whose operations on npu tensors take no time: torch prints tensors with them."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        _on_host.append(function.__name__)
        try:
            return function(*args, **kwargs)
        finally:
            _on_host.pop()

    return run


class CardOp:
    """An operation of torch with an operator of npusim."""

    __slots__ = ("_choices", "_host")

    def __init__(self, op: Any, choices: tuple[tuple[str, Take], ...]) -> None:
        self._host = HostOp(op)
        self._choices = [(ops.load(name), take) for name, take in choices]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for operator, take in () if _on_host else self._choices:
            given = take(*args, **kwargs)
            if given is not None and all(map(_is_taken, given.values())):
                found = self._on_card(operator, given)
                if found is not None:
                    return found
        return self._host(*args, **kwargs)

    def _on_card(self, operator: ops.Operator, given: Given) -> Any:
        """What *operator* makes of *given*; None where it does not take them."""
        name = operator.name
        arguments: Given = {}
        key: list[Hashable] = []
        for parameter, value in given.items():
            if isinstance(value, torch.Tensor):
                arguments[parameter] = argument(name, parameter, to_host(value), formats.ND)
                key.append((value.dtype, value.shape))
            else:
                arguments[parameter] = value
                key.append(key_of(value))
        try:
            output = _output(operator, tuple(key), arguments)
        except OpError:
            return None
        found = result(output)
        return to_npu(found.view(torch.bool) if name in COMPARISONS else found)


def _output(operator: ops.Operator, key: Hashable, arguments: Given) -> Output:
    """What comes out; raises OpError for a call that *operator* does not take."""
    name = operator.name
    again = None if name in SEES_VALUES else card.run_again(name, key, arguments)
    if again is not None:
        return again["output"]
    operator.check(card.spec(), **arguments)
    return card.run(name, **arguments).outputs["output"]


def _is_taken(value: Any) -> bool:
    """Whether *value* is no tensor, or one that lies on the card as operators take it."""
    return not isinstance(value, torch.Tensor) or (
        value.is_npu
        and value.numel() > 0
        and value.is_contiguous()
        and formats.get(value) == formats.ND
        and not value.is_neg()
    )


def kernels() -> dict[str, Callable[..., Any]]:
    """Operation of aten -> its kernel for the card."""
    found: dict[str, Callable[..., Any]] = {}
    for full, choices in _TABLE.items():
        packet, _, overload = full.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        found[full] = CardOp(op, choices)
    for full in SCALED:
        found[full] = _scaled(found[full])
    return found


SCALED = ("add.Tensor", "sub.Tensor")


def _scaled(of_two: Callable[..., Any]) -> Callable[..., Any]:
    """*of_two* with a factor of the second operand, which of bfloat16 is a kernel of its own.

    Factor and product are rounded to bfloat16 then (aclnnAdd and aclnnSub of ops-math).
    """

    def call(x: Any, other: Any, *, alpha: Any = 1) -> Any:
        is_bf16 = all(isinstance(t, torch.Tensor) and t.dtype == torch.bfloat16 for t in (x, other))
        if alpha != 1 and is_bf16:
            return of_two(x, torch.mul(other, alpha))
        return of_two(x, other, alpha=alpha)

    return call


# ---- arguments ----


def _one(x: torch.Tensor, **_: Any) -> Given | None:
    return {"x": x} if x.dtype in REALS else None


def _two(x: Any, other: Any, *, alpha: Any = 1) -> Given | None:
    if alpha != 1 or not isinstance(x, torch.Tensor) or x.dtype not in REALS:
        return None
    number = _number(other)
    if number is None:
        return {"x": x, "other": other} if other.dtype == x.dtype else None
    is_whole = isinstance(number, int)
    return {"x": x, "other": number} if is_whole or x.dtype in FLOATS else None


def _multiple(sign: int) -> Take:
    """With a factor of the second operand: one kernel for both, the factor with *sign*."""

    def take(x: Any, other: Any, *, alpha: Any = 1) -> Given | None:
        given = _two(x, other)
        is_known = isinstance(x, torch.Tensor) and x.dtype in MULTIPLIED
        return given | {"alpha": sign * alpha} if given and is_known else None

    return take


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


def _where(condition: Any, x: Any, other: Any) -> Given | None:
    given = _two(x, other)
    if given is None or not condition.is_npu or condition.dtype != torch.bool:
        return None
    return {"condition": condition.view(torch.uint8)} | given


def _rows(x: torch.Tensor, dim: Any, *rest: Any, **more: Any) -> Given | None:
    """Along one axis, without a type or an axis to keep."""
    dims = dim if isinstance(dim, list | tuple) else [dim]
    if any((*rest, *more.values())) or len(dims) != 1 or x.dtype not in FLOATS:
        return None
    return {"x": x, "dim": dims[0]}


def _table(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Given | None:
    """What else there is is about gradients."""
    is_known = weight.dtype in REALS and indices.dtype in (torch.int32, torch.int64)
    return {"weight": weight, "indices": indices} if is_known else None


def _selected(x: torch.Tensor, dim: int, index: torch.Tensor) -> Given | None:
    is_known = x.dtype in COPIED and index.dtype in (torch.int32, torch.int64)
    is_few = x.shape[:dim].numel() * index.numel() <= MOST_SELECTED if x.dim() else False
    return {"x": x, "dim": dim, "index": index} if is_known and is_few else None


def _copied(x: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> Given | None:
    """A copy that lies as *x* does, which is contiguous."""
    kept = (None, torch.preserve_format, torch.contiguous_format)
    return {"x": x} if memory_format in kept and x.dtype in COPIED else None


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OF_ONE = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "silu",
           "gelu", "relu")  # fmt: skip
_TABLE: dict[str, tuple[tuple[str, Take], ...]] = {
    **{name: ((name, _one),) for name in _OF_ONE},
    **{f"{name}.Tensor": ((name, _two),) for name in ("mul", *COMPARISONS)},
    **{f"{name}.Scalar": ((name, _two),) for name in COMPARISONS},
    **{name: ((name, _two),) for name in ("maximum", "minimum")},
    "add.Tensor": (("add", _two), ("axpy", _multiple(1))),
    "sub.Tensor": (("sub", _two), ("axpy", _multiple(-1))),
    "div.Tensor": (("div", _floats),),
    "where.self": (("where", _where),),
    "_softmax": (("softmax", _rows),),
    "_log_softmax": (("log_softmax", _rows),),
    "sum.dim_IntList": (("sum", _rows),),
    "mean.dim": (("mean", _rows),),
    "amax": (("amax", _rows),),
    "embedding": (("embedding", _table),),
    "index_select": (("index_select", _selected),),
    "clone": (("clone", _copied),),
}
"""Operation of aten -> the operators that may take it, and how its arguments become theirs."""
