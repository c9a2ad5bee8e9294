"""Elementwise steps and moments on the host, each rounded as by the kernels of a card.

A card rounds the factor of `addcmul` and `addcdiv` and the weight of `lerp` to the type of the
tensors; Addcmul and Addcdiv round each step to it, float16 too, while bfloat16 is computed in
float32, and Lerp computes both in float32. Variances of 16-bit floats are about their mean rounded
to 16 bits, because a kernel of its own writes it. Assumed: the order of the sums.

Sources: ops-math@c419332 math/{addcmul,addcdiv,lerp,reduce_var,reduce_std_v2}/op_api; CANN 8.1.RC1,
impl/dynamic/{addcmul,addcdiv,lerp,reduce_mean,reduce_std_v2_update,reduce_std_with_mean}.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

__all__ = ["run_of"]

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Rule = Callable[..., Any]


def run_of(op: torch._ops.OpOverload) -> Rule | None:
    """The function that runs *op* on the host; None if torch rounds in the same way as a card."""
    found = RULES.get(op._schema.name.removeprefix("aten::").removesuffix("_"))
    if found is None or "names" in op._overloadname:
        return None
    rule, types = found

    def run(*args: Any, out: torch.Tensor | None = None, **named: Any) -> Any:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        is_one_type = len({x.dtype for x in tensors}) == 1
        is_own = is_one_type and tensors[0].dtype in types
        result = rule(*args, **named) if is_own else None
        if result is None:
            return op(*args, **named) if out is None else op(*args, **named, out=out)
        if op._schema.is_mutable:
            written = tensors[0] if out is None else out.resize_(result.shape)
            return written.copy_(result)
        return result

    return run


def _added(
    step: Step, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    """`x + step(a, b) * value`."""
    used = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    factor = torch.tensor(value, dtype=x.dtype)
    own, a, b, factor = (each.to(used) for each in (x, a, b, factor))
    return (own + step(a, b) * factor).to(x.dtype)


def _between(x: torch.Tensor, end: torch.Tensor, weight: torch.Tensor | float) -> torch.Tensor:
    """`lerp`, from whichever end is nearer."""
    if not isinstance(weight, torch.Tensor) or weight.dim() == 0:
        weight = torch.as_tensor(weight).to(x.dtype)
    start, end, part = x.float(), end.float(), weight.float()
    apart = end - start
    found = torch.where(part < 0.5, start + part * apart, end - (1 - part) * apart)
    return found.to(x.dtype)


def _moments(
    x: torch.Tensor, dim: Sequence[int] | int | None, correction: float | None, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The variance in float32, and the mean; None if torch defines the result."""
    dims = [*range(x.dim())] if dim is None else [dim] if isinstance(dim, int) else [*dim]
    dims = dims or [*range(x.dim())]
    count = prod(x.shape[each] for each in dims)
    left = count - (1 if correction is None else correction)
    if not dims or left <= 0:
        return None
    wide = x.float()
    mean = (wide * (1 / count)).sum(dims, keepdim=True).to(x.dtype)
    apart = wide - mean.float()
    variance = (apart * apart * (1 / left)).sum(dims, keepdim=keepdim)
    return variance, mean if keepdim else mean.reshape(variance.shape)


def _moment(
    is_root: bool,
    has_mean: bool,
    x: torch.Tensor,
    dim: Sequence[int] | int | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Any:
    """`var`, `std` and their forms with the mean."""
    found = _moments(x, dim, correction, keepdim)
    if found is None:
        return None
    variance, mean = found
    moment = (variance.sqrt() if is_root else variance).to(x.dtype)
    return (moment, mean) if has_mean else moment


RULES: dict[str, tuple[Rule, tuple[torch.dtype, ...]]] = {
    "addcmul": (partial(_added, torch.mul), FLOATS),
    "addcdiv": (partial(_added, torch.div), FLOATS),
    "lerp": (_between, HALF),
    "var": (partial(_moment, False, False), HALF),
    "std": (partial(_moment, True, False), HALF),
    "var_mean": (partial(_moment, False, True), HALF),
    "std_mean": (partial(_moment, True, True), HALF),
}
"""Operation -> its computation, and the types for which it differs from torch's, if all tensors
have one."""
