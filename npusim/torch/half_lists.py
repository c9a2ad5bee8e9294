"""Operations on lists of float16 and bfloat16, rounded as by the kernels of a card.

bfloat16 is computed in float32 and rounded once. Most kernels also do that for float16, but some
compute in float16 itself and round each step (ops-nn@e5c3fa9, foreach/*/op_kernel). Whether a
product is rounded before it is added follows op-plugin's tests (517f2e7, test_foreach_*).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["run_of"]

Tensors = Sequence[torch.Tensor]


IN_FLOAT16: dict[str, Callable[..., torch.Tensor]] = {
    "_foreach_sub.List": lambda x, other, alpha=1: x - other * alpha,
    "_foreach_addcdiv.ScalarList": lambda x, a, b, value: x + a / b * value,
    "_foreach_addcdiv.Tensor": lambda x, a, b, value: x + a / b * value,
    "_foreach_addcmul.ScalarList": lambda x, a, b, value: x + a * b * value,
    "_foreach_addcmul.Tensor": lambda x, a, b, value: x + a * b * value,
}
"""Operation -> the computation of its kernel on the float16 tensors at one index of the lists."""
WITH_FACTORS = (
    *IN_FLOAT16,
    *("_foreach_add.List", "_foreach_addcdiv.Scalar", "_foreach_addcmul.Scalar"),
)
"""Operations that compute more than one step."""


def run_of(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The function that runs *op* on the host; None if torch rounds in the same way as a card."""
    packet = op._schema.name.removeprefix("aten::").removesuffix("_")
    name = f"{packet}.{op._overloadname}"
    if name not in WITH_FACTORS:
        return None
    functional = getattr(getattr(torch.ops.aten, packet), op._overloadname)

    def run(tensors: Tensors, *others: Any, **named: Any) -> Any:
        types = {x.dtype for each in (tensors, *others) for x in _tensors(each)}
        if types == {torch.float16} and name in IN_FLOAT16:
            found = _each(IN_FLOAT16[name], tensors, [*others, *named.values()])
        elif types == {torch.bfloat16}:
            wide = ([x.float() for x in _tensors(each)] or each for each in (tensors, *others))
            found = [x.to(torch.bfloat16) for x in functional(*wide, **named)]
        else:
            return op(tensors, *others, **named)
        if not op._schema.is_mutable:
            return found
        for x, y in zip(tensors, found, strict=True):
            x.copy_(y)
        return None

    return run


def _tensors(value: Any) -> Tensors:
    """The tensors of a list."""
    is_list = isinstance(value, list | tuple) and bool(value)
    return value if is_list and isinstance(value[0], torch.Tensor) else ()


def _each(rule: Callable[..., torch.Tensor], tensors: Tensors, others: Sequence[Any]) -> Any:
    """Apply *rule* at each index of the lists; a scalar factor is used at every index."""
    spread = []
    for each in others:
        each = each.tolist() if isinstance(each, torch.Tensor) else each
        spread.append(each if isinstance(each, list | tuple) else [each] * len(tensors))
    return [rule(*parts) for parts in zip(tensors, *spread, strict=True)]
