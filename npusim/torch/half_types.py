"""float16 and bfloat16 on the host, computed as on a card: in float32, rounded once.

torch lacks some operations for these types on the CPU, and rounds others after each step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from npusim.torch import distances, generator, half_lists, stepwise

__all__ = ["in_float32", "is_lacking", "run_of"]

HALF = (torch.float16, torch.bfloat16)
_LACKING = re.compile(
    r"\" not implemented for '(Half|BFloat16)'$|Low precision dtypes not supported. Got (Half|BFl)"
)
WIDE = frozenset(
    f"aten::{name}{backward}"
    for backward in ("", "_backward")
    for name in (
        *("grid_sampler_2d", "grid_sampler_3d", "convolution"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "prod", "index_add"),
        *("index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"),
        *("_index_put_impl", "_index_put_impl_", "embedding_dense", "logit", "mse_loss"),
        *("upsample_linear1d", "upsample_trilinear3d", "upsample_bicubic2d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "avg_pool2d", "avg_pool3d"),
        *("index_reduce", "index_reduce_", "put", "put_", "unfold_backward"),
        *("_embedding_bag_backward", "_embedding_bag_dense"),
        *("slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d"),
        *("slow_conv_dilated3d", "slow_conv3d_forward", "_slow_conv2d_forward", "_slow_conv2d"),
        *("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d"),
    )
)
"""Operations that the CPU computes in 16-bit floats, including intermediate steps."""

LIKE: dict[str, tuple[int | None, ...]] = {
    "aten::native_batch_norm": (0, None, None),
    "aten::native_batch_norm_backward": (0, 2, 2),
}
"""Operation whose weights may be float32 with 16-bit inputs -> for each result the argument whose
type it has; None means float32."""
UPDATED = {"aten::native_batch_norm": (3, 4)}
"""Arguments that are written to although the schema does not say so."""

Run = Callable[..., Any]


OWN: dict[str, Run] = {
    "aten.normal_.default": generator.normal,
    "aten._cdist_backward.default": distances.backward,
}
"""Operation -> the function that computes it by the card's rule."""


def run_of(op: torch._ops.OpOverload) -> Run:
    """The function that runs *op* on the host."""
    own = OWN.get(str(op)) or half_lists.run_of(op) or stepwise.run_of(op)
    return generator.drawing(op, own or _run_of(op))


def _run_of(op: torch._ops.OpOverload) -> Run:
    name = op._schema.name
    if name in LIKE and not op._schema.is_mutable:
        return partial(_alike, op, name)
    if name not in WIDE and name not in LIKE:
        found: Run = op
        return found

    def run(*args: object, **kwargs: object) -> Any:
        floats = [x for x in tree_leaves((args, kwargs)) if _is_real(x)]
        # With a wider type among the operands, torch promotes.
        is_half = all(x.dtype in HALF for x in floats)
        return in_float32(op, args, kwargs) if is_half else op(*args, **kwargs)

    return run


def _is_real(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _alike(op: Run, name: str, *args: object, **kwargs: object) -> Any:
    """Run *op*, called *name*, in float32, and cast the results to the types of its operands."""
    wide = [*map(_wide, args)]
    found = op(*wide, **kwargs)
    for place in UPDATED.get(name, ()):
        own, updated = args[place], wide[place]
        if isinstance(own, torch.Tensor) and own is not updated:
            own.copy_(updated)
    operands = (None if place is None else args[place] for place in LIKE[name])
    return tuple(map(_as, found, operands))


def _wide(value: object) -> object:
    """*value*; a 16-bit floating-point tensor, or such a dtype, becomes float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF else value


def _as(result: object, operand: object) -> object:
    """*result* cast to the type of *operand*, if both are tensors."""
    both = isinstance(result, torch.Tensor) and isinstance(operand, torch.Tensor)
    return result.to(operand.dtype) if both else result  # type: ignore[attr-defined]


def is_lacking(error: RuntimeError) -> bool:
    """Whether *error* means that the CPU lacks an operation only for a 16-bit float."""
    return _LACKING.search(str(error)) is not None


def in_float32(run: Run, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """Run *run* with 16-bit floats widened, and cast the results to the requested type, by default
    to the first one.

    Arguments that it writes to, by its schema, are written in their own type.
    """
    types: list[torch.dtype] = []
    asked: list[torch.dtype] = []
    lent: dict[int, torch.Tensor] = {}

    def widened(value: object) -> object:
        found = _wide(value)
        if isinstance(value, torch.dtype):
            asked.append(value)
        elif isinstance(value, torch.Tensor) and found is not value:
            types.append(value.dtype)
            lent[id(found)] = value
        return found

    args, kwargs = tree_map(widened, (list(args), dict(kwargs)))
    result = run(*args, **kwargs)
    narrow = next((each for each in (*asked, *types)), None)

    def narrowed(value: Any) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        own = lent.get(id(value))
        if own is not None:
            return own.resize_(value.shape).copy_(value)
        return value.to(narrow) if value.dtype == torch.float32 and narrow in HALF else value

    return tree_map(narrowed, result)
