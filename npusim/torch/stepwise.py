"""Operations on the host in the steps of a card's kernels, each step rounded as on the card.

* A card rounds the factor of `addcmul` and `addcdiv` and the weight of `lerp` to the type of the
  tensors. Addcmul and Addcdiv round each step to it, also in float16, while bfloat16 is computed in
  float32; Lerp computes both in float32.
* Variances of 16-bit floats are about their mean rounded to 16 bits, because a kernel of its own
  writes it. Assumed: the order of the sums.
* `floor_divide`, `remainder` and `fmod` round a quotient, in float32 even for int32, and only
  FloorDiv in float16: 1 // 0.1 is 10. FloorMod and Mod subtract its whole part times the divisor.
  If the number is a float, all but `remainder` run in float64 on the AI CPU.

Sources: ops-math@c419332 math/{addcmul,addcdiv,lerp,reduce_var,reduce_std_v2,div,floor_div,
floor_mod,mod}/op_api; CANN 8.1.RC1, impl/dynamic/{addcmul,addcdiv,lerp,reduce_mean,
reduce_std_v2_update,reduce_std_with_mean,floor_div,floor_mod,mod}.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

__all__ = ["is_known", "run_of"]

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)
NUMBERS = (*FLOATS, torch.int32)
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Rule = Callable[..., Any]


def is_known(op: torch._ops.OpOverload) -> bool:
    """Whether a function here runs *op*; it takes numbers for tensors."""
    return _packet(op) in RULES and "names" not in op._overloadname


def _packet(op: torch._ops.OpOverload) -> str:
    """The name of *op*, in place or not."""
    return str(op._schema.name.removeprefix("aten::").removesuffix("_"))


def run_of(op: torch._ops.OpOverload) -> Rule | None:
    """The function that runs *op* on the host; None if torch rounds in the same way as a card."""
    if not is_known(op):
        return None
    rule, types = RULES[_packet(op)]
    is_in_place = op._schema.is_mutable and not op._overloadname.endswith("out")

    def run(*args: Any, out: torch.Tensor | None = None, **named: Any) -> Any:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        is_one_type = len({x.dtype for x in tensors}) == 1
        is_own = is_one_type and tensors[0].dtype in types
        result = rule(*args, **named) if is_own else None
        if result is None or (is_in_place and result.shape != args[0].shape):
            # A number may be given in place of a tensor, which another overload takes.
            plain = op.overloadpacket
            return plain(*args, **named) if out is None else plain(*args, **named, out=out)
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
    x, a, b = torch.broadcast_tensors(x, a, b)
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


def _floor_divide(x: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor | None:
    if isinstance(other, float):
        return None
    divisor = _divisor(x, other)
    return None if divisor is None else (_wide(x) / _wide(divisor)).floor().to(x.dtype)


def _truncated(x: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor | None:
    divisor = _divisor(x, other)
    return None if divisor is None else (_wide(x) / _wide(divisor)).trunc().to(x.dtype)


def _divide(
    x: torch.Tensor, other: torch.Tensor | float, *, rounding_mode: str | None = None
) -> torch.Tensor | None:
    """`div` with a rounding mode; without one it is the card's own."""
    modes = {"floor": _floor_divide, "trunc": _truncated}
    return modes[rounding_mode](x, other) if rounding_mode in modes else None


def _remainder(x: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor | None:
    divisor = _divisor(x, other)
    if divisor is None:
        return None
    a, b = x.float(), divisor.float()
    whole = (a / b).floor()
    if x.dtype == torch.int32:
        return x - whole.to(torch.int32) * divisor
    used = torch.float16 if x.dtype == torch.float16 else torch.float32
    found, a, b = (a - whole * b).to(used), a.to(used), b.to(used)
    found = torch.where(b.isinf(), a, found)
    found = torch.where(a.isinf(), float("nan"), found)
    is_turned = (found != 0) & (found.signbit() != b.signbit())
    return torch.where(is_turned, found + b, found).to(x.dtype)


def _fmod(x: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor | None:
    if isinstance(other, float):
        return None
    divisor = _divisor(x, other)
    if divisor is None:
        return None
    a, b = x.float(), divisor.float()
    return (a - (a / b).trunc() * b).to(x.dtype)


def _divisor(x: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor | None:
    """*other* as a tensor like *x*; None if torch decides about the division."""
    if not isinstance(x, torch.Tensor):
        return None
    if not isinstance(other, torch.Tensor):
        if isinstance(other, float) and not x.is_floating_point():
            return None
        other = torch.tensor(other, dtype=x.dtype)
    is_whole = not x.is_floating_point()
    return None if is_whole and not bool(other.all()) else other


def _wide(x: torch.Tensor) -> torch.Tensor:
    """*x* in the type in which the card divides it."""
    return x if x.dtype == torch.float16 else x.float()


RULES: dict[str, tuple[Rule, tuple[torch.dtype, ...]]] = {
    "addcmul": (partial(_added, torch.mul), FLOATS),
    "addcdiv": (partial(_added, torch.div), FLOATS),
    "lerp": (_between, HALF),
    "var": (partial(_moment, False, False), HALF),
    "std": (partial(_moment, True, False), HALF),
    "var_mean": (partial(_moment, False, True), HALF),
    "std_mean": (partial(_moment, True, True), HALF),
    "div": (_divide, NUMBERS),
    "floor_divide": (_floor_divide, NUMBERS),
    "remainder": (_remainder, NUMBERS),
    "fmod": (_fmod, NUMBERS),
}
"""Operation -> its computation, and the types of tensors, all of one, for which it differs from
torch's."""
