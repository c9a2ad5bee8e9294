"""Operations of torch itself that are computed by a kernel of the card.

Sums, functions, comparisons and the like of npu tensors run as operators of npusim, with the card's
bits and time, if an operator accepts the call. Tensors of two types are first cast to one, and a
view is first copied, by separate kernels (:mod:`npusim.torch.views`). An in-place operation writes
to the tensor itself, which must be contiguous. All other calls, including those with `out=`, run on
the host like operations without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from npusim.torch import arguments, arithmetic, card, known, products, shapes
from npusim.torch.arguments import FLOATS
from npusim.torch.card_ops import COMPARISONS, LOGIC, CardOp, KernelOp, Take, run
from npusim.torch.fallback import UNKNOWN, HostOp, is_on_host
from npusim.torch.relabel import overwrite, to_host, to_npu
from npusim.torch.repeats import Repeats
from npusim.torch.views import cast, contiguous, copied, is_plain
from npusim.torch.works.training import FOREACH

__all__ = ["kernels"]

MOST_JOINED = 32
"""Most tensors that one ConcatD joins (aclnn_cat.cpp)."""


class ReductionOp(CardOp):
    """A reduction over one axis, over several adjacent axes, or over all axes.

    If the caller asks for a type, the input is cast to it first. Assumed: adjacent axes are reduced
    as one.
    """

    def on_card(
        self,
        x: torch.Tensor,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        axes = _axes(x, dim)
        if not axes or axes != [*range(axes[0], axes[-1] + 1)] or not is_plain(x):
            return None
        if dtype not in (None, x.dtype):
            x = arguments.as_type(x, dtype)
        if x is None or x.dtype not in FLOATS:
            return None
        shape = [1 if place in axes else size for place, size in enumerate(x.shape)]
        given = contiguous(x).flatten(axes[0], axes[-1]) if len(axes) > 1 else x
        found = run(self._name, {"x": given, "dim": axes[0]})
        if found is None:
            return None
        if self._name == "argmax":
            found = _as_int64(found)
        return found.view(shape) if keepdim else found


def _axes(x: torch.Tensor, dim: object) -> list[int]:
    """The axes that *dim* names, in order; all axes if it names none. Empty for a tensor without
    dimensions, and if *dim* is out of range."""
    if x.dim() == 0:
        return []
    dims = dim if isinstance(dim, list | tuple) else () if dim is None else (dim,)
    if not all(-x.dim() <= each < x.dim() for each in dims):
        return []
    return sorted(each % x.dim() for each in dims or range(x.dim()))


def _as_int64(indices: torch.Tensor) -> torch.Tensor:
    """*indices* as int64, as torch returns them. The kernel is assumed to write int64 itself."""
    if card.computes_values():
        return to_npu(to_host(indices).long())
    return shapes.like(torch.empty(indices.shape, dtype=torch.int64, device="meta"))


class JoinOp(CardOp):
    """`cat`: empty tensors are dropped, the rest are cast to one type; a single one is copied."""

    def on_card(self, tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor | None:
        full = [x for x in tensors if x.numel()]
        if not 0 < len(full) <= MOST_JOINED or not all(map(is_plain, full)):
            return None
        if full[0].dim() != max(x.dim() for x in tensors):
            return None
        if len(full) == 1:
            return copied(full[0], torch.contiguous_format) if _is_one_type(tensors) else None
        if full[0].dtype == torch.bool and _is_one_type(tensors):
            found = self.on_card([x.view(torch.uint8) for x in full], dim)
            return None if found is None else found.view(torch.bool)
        cast_to = full[0].dtype
        if not _is_one_type(tensors):
            for x in tensors:
                cast_to = torch.promote_types(cast_to, x.dtype)
        given = [x if x.dtype == cast_to else arguments.as_type(x, cast_to) for x in full]
        if any(x is None for x in given):
            return None
        return run(self._name, {"tensors": given, "dim": dim})


def _is_one_type(tensors: list[torch.Tensor]) -> bool:
    return len({x.dtype for x in tensors}) == 1


class InPlaceOp:
    """An in-place operation: its result overwrites the first tensor."""

    __slots__ = ("_host", "_kernel")

    def __init__(self, op: torch._ops.OpOverload, kernel: CardOp) -> None:
        self._host, self._kernel = HostOp(op), kernel

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> object:
        others = [value for value in args if isinstance(value, torch.Tensor)]
        fits = x.is_contiguous() and all(_is_broadcast(other, x) for other in others)
        is_on_card = fits and not is_on_host()
        found = self._kernel.launched((x, *args), kwargs) if is_on_card else None
        if found is not None and found.dtype != x.dtype:
            found = cast(found, x.dtype) if torch.can_cast(found.dtype, x.dtype) else None
        if found is None:
            return self._host(x, *args, **kwargs)
        overwrite(x, found)
        if not card.computes_values() and self._host.decided((x, *args), kwargs) is UNKNOWN:
            known.forget(x)
        return x


def _is_broadcast(other: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether *other* broadcasts to the shape of *x*."""
    behind = x.shape[x.dim() - other.dim() :] if other.dim() <= x.dim() else None
    return behind is not None and all(
        own in (1, size) for own, size in zip(other.shape, behind, strict=True)
    )


class CopyOp:
    """`clone`: a view is copied by the kernels that make it contiguous."""

    __slots__ = ("_again", "_host")

    def __init__(self) -> None:
        self._host = HostOp(torch.ops.aten.clone.default)
        self._again = Repeats()

    def __call__(self, x: torch.Tensor, *, memory_format: object = None) -> object:
        found = None if is_on_host() else self._again.run(copied, (x, memory_format))
        if found is None:
            return self._host(x, memory_format=memory_format)
        decided = found
        if not card.computes_values():
            decided = self._host.decided((x,), {"memory_format": memory_format})
        return found if decided is UNKNOWN else decided


class OneHotOp:
    """`one_hot`: ones scattered into zeros for int64; other types run on the host."""

    __slots__ = ("_host",)

    def __init__(self) -> None:
        self._host = HostOp(torch.ops.aten.one_hot.default)

    def __call__(self, index: torch.Tensor, num_classes: int = -1) -> object:
        if index.dtype == torch.int64 and index.numel():
            return _scattered_ones(index, num_classes)
        return self._host(index, num_classes)


def _scattered_ones(index: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`one_hot` of int64, with the operations that torch launches for it on a card."""
    if num_classes == -1:
        num_classes = int(index.max().item()) + 1
    zeros = torch.zeros((*index.shape, num_classes), dtype=index.dtype, device=index.device)
    return zeros.scatter_(-1, index.unsqueeze(-1), 1)


def kernels() -> dict[str, Callable[..., object]]:
    """Operation of aten -> its kernel for the card."""
    taken: dict[str, CardOp] = {
        full: KernelOp(_named(full), name, take) for full, (name, take) in _TABLE.items()
    }
    taken |= {
        full: kind(_named(full), name, take)
        for full, (kind, name, take) in arithmetic.TABLE.items()
    }
    taken |= {full: ReductionOp(_named(full), name) for full, name in _REDUCTIONS.items()}
    taken["cat"] = JoinOp(_named("cat"), "concat")
    whole = {name: HostOp(_named(name)) for name in (*_WHOLE, *_of_lists())}
    found: dict[str, Callable[..., object]] = {
        **taken, **whole, **products.kernels(), "clone": CopyOp(), "one_hot": OneHotOp()
    }  # fmt: skip
    for full in _IN_PLACE:
        packet, dot, overload = full.partition(".")
        in_place = f"{packet}_{dot}{overload}"
        found[in_place] = InPlaceOp(_named(in_place), taken[full])
    return found


def _of_lists() -> list[str]:
    """Names, with every overload, of the operations on lists that a card runs as one kernel."""
    names = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names())
    found = []
    for name in names:
        packet, _, overload = name.partition(".")
        if packet.removesuffix("_") in FOREACH and not overload.endswith("out"):
            found.append(name)
    return found


def _named(full: str) -> torch._ops.OpOverload:
    packet, _, overload = full.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


_OF_ONE = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "silu",
           "gelu", "relu")  # fmt: skip
_WITH_GRADIENTS = ("silu", "sigmoid", "tanh")
_TABLE: dict[str, tuple[str, Take]] = {
    **{name: (name, arguments.one) for name in _OF_ONE},
    "gelu": ("gelu", arguments.gelu),
    **{f"{name}.Tensor": (name, arguments.two) for name in COMPARISONS},
    **{f"{name}.Scalar": (name, partial(arguments.compared, name)) for name in COMPARISONS},
    **{name: (name, arguments.flags) for name in LOGIC},
    "bitwise_and.Tensor": ("logical_and", arguments.flags),
    "bitwise_or.Tensor": ("logical_or", arguments.flags),
    **dict.fromkeys(("logical_not", "bitwise_not"), ("logical_not", arguments.flag)),
    "gelu_backward": ("gelu_backward", arguments.gelu_backward),
    "pow.Tensor_Scalar": ("pow", arguments.power),
    "clamp": ("clamp", arguments.bounded),
    **{f"{name}_backward": (f"{name}_backward", arguments.backward) for name in _WITH_GRADIENTS},
    "_softmax": ("softmax", arguments.rows),
    "_log_softmax": ("log_softmax", arguments.rows),
    "embedding": ("embedding", arguments.table),
    "index_select": ("index_select", arguments.selected),
    **dict.fromkeys(("fill.Scalar", "fill.Tensor", "zero"), ("fill", arguments.filled)),
}
"""Operation of aten -> the operator, and the function that converts the arguments."""
_REDUCTIONS = {
    **dict.fromkeys(("sum", "sum.dim_IntList"), "sum"),
    **dict.fromkeys(("mean", "mean.dim"), "mean"),
    **{name: name for name in ("amax", "argmax")},
}
"""Reduction of aten -> the operator."""
_WHOLE = (
    *("native_layer_norm", "native_group_norm", "mish_backward"),
    "_nnpack_spatial_convolution",
)
"""Operations that torch would decompose, but that a card runs as one kernel."""
_IN_PLACE = (
    *(name for name in _OF_ONE if name not in ("silu", "gelu")),
    *(f"{name}.Tensor" for name in ("add", "sub", "mul", "div")),
    *("clamp", "fill.Scalar", "fill.Tensor", "zero"),
)
"""Operations of the tables above that also have an in-place form."""
