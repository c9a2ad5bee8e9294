"""Convert arguments of torch's operations to those of operators; None if no operator accepts them.

Tensors of two types are cast to one, each by a separate kernel, unless one kernel accepts both
types (ops-math, the L2 code of aclnn): sums and products of float32 with a 16-bit type, and on
Atlas A2 and A3 quotients of any two floating-point types.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch

from npusim.torch import card, shapes
from npusim.torch.host.comparisons import is_in_float64
from npusim.torch.kernels import Given
from npusim.torch.relabel import to_npu
from npusim.torch.settings import settings
from npusim.torch.views import cast, is_plain

__all__ = [
    "FLOATS",
    "as_type",
    "backward",
    "both_as",
    "bounded",
    "compared",
    "element",
    "filled",
    "flag",
    "flags",
    "mixed",
    "number",
    "one",
    "power",
    "quotient",
    "rows",
    "selected",
    "table",
    "two",
    "where",
]

REALS = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
FLOATS = REALS[:3]
Pairs = Sequence[tuple[torch.dtype, torch.dtype]]
PAIRS: Pairs = [*permutations(FLOATS, 2)]
WITH_FLOAT32: Pairs = [pair for pair in PAIRS if torch.float32 in pair]
SELECTED = (*REALS, torch.int64, torch.int8, torch.uint8)
MOST_SELECTED = 1 << 14
"""Most rows that the simulated kernel selects. It has a micro-op for each row, so a kernel for more
would take seconds to write. For more rows the host computes the values, and the time is that of as
many rows read in order."""


def one(x: torch.Tensor, **_: object) -> Given | None:
    return {"x": x} if x.dtype in REALS else None


def gelu(x: torch.Tensor, *, approximate: str = "none") -> Given | None:
    """gelu; the kernel computes the tanh form, so it does not run if the erf form is computed."""
    return None if _is_exact(approximate) else one(x)


def _is_exact(approximate: str) -> bool:
    """Whether a card computes gelu by erf, which it does only on request (op-plugin@517f2e7,
    GeluOutKernelNpuOpApi.cpp)."""
    return settings.has_compatible_impl and approximate == "none"


def flag(x: torch.Tensor) -> Given | None:
    """A bool tensor, viewed as bytes."""
    return {"x": x.view(torch.uint8)} if x.dtype == torch.bool else None


def flags(x: object, other: object) -> Given | None:
    """Two bool tensors, viewed as bytes."""
    tensors = [each for each in (x, other) if isinstance(each, torch.Tensor)]
    if len(tensors) < 2 or any(each.dtype != torch.bool or not each.is_npu for each in tensors):
        return None
    return {"x": tensors[0].view(torch.uint8), "other": tensors[1].view(torch.uint8)}


def two(x: object, other: object) -> Given | None:
    """Two operands, cast to the type to which torch promotes them."""
    return _promoted(x, other, (), REALS)


def mixed(x: object, other: object) -> Given | None:
    """:func:`two`, but float32 with a 16-bit type is not cast, since one kernel accepts both."""
    return _promoted(x, other, WITH_FLOAT32, REALS)


def quotient(x: object, other: object) -> Given | None:
    """:func:`mixed` for a division: integers are cast to float32 first."""
    return _promoted(x, other, () if card.spec().series == "Atlas inference" else PAIRS, FLOATS)


def compared(name: str, x: torch.Tensor, other: object) -> Given | None:
    """Two operands of comparison *name*; None if the AI CPU of a card compares them."""
    value = number(other)
    return None if value is not None and is_in_float64(name, x, value) else two(x, other)


def _promoted(
    x: torch.Tensor | float,
    other: Any,
    mixes: Pairs,
    known: tuple[torch.dtype, ...],
) -> Given | None:
    """*x* and *other* with one type of *known*, or with a pair of types of *mixes*."""
    if not isinstance(x, torch.Tensor) or x.dtype not in REALS:
        return None
    if isinstance(other, torch.Tensor) and other.dim() and other.dtype == x.dtype in known:
        return {"x": x, "other": other}
    value = number(other)
    if value is None and not (isinstance(other, torch.Tensor) and other.is_npu):
        return None
    if value is None:
        dtype = torch.promote_types(x.dtype, other.dtype)
    else:
        dtype = torch.result_type(x, value)
    if dtype not in known:
        dtype = torch.float32
    if value is not None:
        of_type = as_type(x, dtype)
        return None if of_type is None else {"x": of_type, "other": value}
    if (x.dtype, other.dtype) in mixes:
        return {"x": x, "other": other}
    return both_as(x, other, dtype)


def both_as(x: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> Given | None:
    """Two tensors, each cast to *dtype*."""
    a, b = as_type(x, dtype), as_type(other, dtype)
    return None if a is None or b is None else {"x": a, "other": b}


def element(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of one element on the card, which the host uploads with the kernel's arguments."""
    if card.computes_values():
        return to_npu(torch.tensor(value, dtype=dtype))
    return shapes.like(torch.empty((), dtype=dtype, device="meta"))


def as_type(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """*x* as *dtype*, cast by a kernel if it has another type; None if no kernel casts it."""
    if x.dtype == dtype:
        return x
    return cast(x, dtype) if is_plain(x) and x.dtype in REALS else None


def number(value: torch.Tensor | float | None) -> int | float | None:
    """*value* as a number if it is one, or a host tensor that torch made of one; else None."""
    if isinstance(value, torch.Tensor):
        is_number = value.dim() == 0 and not value.is_npu
        value = value.item() if is_number else None
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_real else None


def backward(grad_output: torch.Tensor, x: torch.Tensor, **_: object) -> Given | None:
    """The output gradient and the saved tensor of a backward operation on floats."""
    is_known = x.dtype in FLOATS and grad_output.dtype == x.dtype
    return {"grad_output": grad_output, "x": x} if is_known else None


def gelu_backward(
    grad_output: torch.Tensor, x: torch.Tensor, *, approximate: str = "none"
) -> Given | None:
    """:func:`backward` for gelu, whose kernel computes the tanh form."""
    return None if _is_exact(approximate) else backward(grad_output, x)


def power(x: object, exponent: object) -> Given | None:
    """A power of floats; the operator checks which exponents it accepts."""
    value = number(exponent)
    if not isinstance(x, torch.Tensor) or value is None or x.dtype not in FLOATS:
        return None
    return {"x": x, "exponent": float(value)}


def bounded(x: torch.Tensor, low: object = None, high: object = None) -> Given | None:
    """clamp with one or both bounds; for integers the bounds must be integers too."""
    bounds = [number(bound) for bound in (low, high) if bound is not None]
    if x.dtype not in REALS or None in bounds:
        return None
    is_whole = all(isinstance(bound, int) for bound in bounds)
    return {"x": x, "low": low, "high": high} if is_whole or x.dtype in FLOATS else None


def where(condition: torch.Tensor, x: object, other: object) -> Given | None:
    if not condition.is_npu or condition.dtype != torch.bool:
        return None
    given = two(x, other)
    return None if given is None else {"condition": condition.view(torch.uint8)} | given


def rows(x: torch.Tensor, dim: int, is_wider: bool) -> Given | None:
    """An operation along one axis; a wider float32 result comes from a cast before it (assumed)."""
    wide = as_type(x, torch.float32) if is_wider else x
    return None if wide is None or wide.dtype not in FLOATS else {"x": wide, "dim": dim}


def table(weight: torch.Tensor, indices: torch.Tensor, *_: object, **__: object) -> Given | None:
    """embedding; its other arguments only affect gradients."""
    is_known = weight.dtype in REALS and indices.dtype in (torch.int32, torch.int64)
    is_few = indices.numel() <= MOST_SELECTED
    return {"weight": weight, "indices": indices} if is_known and is_few else None


def selected(x: torch.Tensor, dim: int, index: torch.Tensor) -> Given | None:
    is_known = x.dtype in SELECTED and index.dtype in (torch.int32, torch.int64)
    is_few = x.shape[:dim].numel() * index.numel() <= MOST_SELECTED if x.dim() else False
    return {"x": x, "dim": dim, "index": index} if is_known and is_few else None


def filled(x: torch.Tensor, value: object = 0) -> Given | None:
    found = number(value)
    is_real = x.dtype in FLOATS and found is not None
    return {"x": x, "value": found} if is_real or isinstance(found, int) else None
