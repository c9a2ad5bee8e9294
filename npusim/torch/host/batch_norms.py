"""The parts of a batch norm across cards, on host tensors; torch does not have them for the CPU.

Channels are the second axis. Statistics are computed in float32. The functions of torch are defined
by aten/src/ATen/native/cuda/Normalization.cuh, those of torch_npu by the documents of its functions
and by sync_batch_norm_gather_stats.py of CANN 8.1.RC1.
"""

from __future__ import annotations

import torch

__all__ = [
    "backward_elemt",
    "backward_reduce",
    "elemt",
    "elemt_into",
    "gather_stats",
    "gather_stats_update",
    "gather_stats_with_counts",
    "reduce",
    "stats",
]

Pair = tuple[torch.Tensor, torch.Tensor]


def _others(x: torch.Tensor) -> list[int]:
    """The axes of *x* except that of the channels."""
    return [axis for axis in range(x.dim()) if axis != 1]


def _along(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Reshape one value for each channel so that it broadcasts over *x*, in float32."""
    return channels.float().reshape(1, -1, *(1,) * (x.dim() - 2))


def stats(x: torch.Tensor, eps: float) -> Pair:
    """`batch_norm_stats`: means and inverse standard deviations."""
    variance, mean = torch.var_mean(x.float(), _others(x), correction=0)
    return mean, 1 / torch.sqrt(variance + eps)


def elemt(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,  # noqa: ARG001
) -> torch.Tensor:
    """`batch_norm_elemt`: *x* normed by the given statistics."""
    found = (x.float() - _along(mean, x)) * _along(invstd, x)
    found = found if weight is None else found * _along(weight, x)
    found = found if bias is None else found + _along(bias, x)
    return found.to(x.dtype)


def elemt_into(*args: object, out: torch.Tensor) -> torch.Tensor:
    """:func:`elemt` written to *out*."""
    found = elemt(*args)  # type: ignore[arg-type]
    return out.resize_(found.shape).copy_(found)


def gather_stats_with_counts(
    x: torch.Tensor,  # noqa: ARG001
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> Pair:
    """Combine the statistics of each card, `(cards, channels)`; updates the running statistics."""
    weights = counts.float().reshape(-1, 1)
    count = weights.sum()
    whole = (mean.float() * weights).sum(0) / count
    variances = 1 / (invstd.float() * invstd.float()) - eps
    apart = mean.float() - whole
    total = ((variances + apart * apart) * weights).sum(0)
    _follow(running_mean, whole, momentum)
    _follow(running_var, total / (count - 1), momentum)
    return whole.to(mean.dtype), (1 / torch.sqrt(total / count + eps)).to(mean.dtype)


def gather_stats(
    x: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> Pair:
    """:func:`gather_stats_with_counts` for cards that each have *count* elements."""
    running = running_mean, running_var
    counts = torch.full(mean.shape[:1], count, dtype=torch.float32)
    return gather_stats_with_counts(x, mean, invstd, *running, momentum, eps, counts)


def _follow(running: torch.Tensor | None, found: torch.Tensor, momentum: float) -> None:
    """Update *running* in place with *found*."""
    if running is not None:
        running.copy_(running.float() * (1 - momentum) + found * momentum)


def backward_reduce(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """The sums of the gradient, the sums of its products with `x - mean`, and the gradients of
    weight and bias."""
    dtype = mean.dtype if weight is None else weight.dtype
    total = grad.float().sum(_others(x))
    with_x = (grad.float() * (x.float() - _along(mean, x))).sum(_others(x))
    return (
        total.to(mean.dtype) if of_input else None,
        with_x.to(mean.dtype) if of_input else None,
        (with_x * invstd.float()).to(dtype) if of_weight else None,
        total.to(dtype) if of_bias else None,
    )


def backward_elemt(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    total: torch.Tensor,
    with_x: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    """The gradient of *x*, from the sums of :func:`backward_reduce` over all cards."""
    count = counts.float().sum()
    slope = with_x.float() / count * invstd.float() * invstd.float()
    apart = grad.float() - _along(total.float() / count, x)
    found = apart - (x.float() - _along(mean, x)) * _along(slope, x)
    found = found * _along(invstd, x)
    found = found if weight is None else found * _along(weight, x)
    return found.to(x.dtype)


def reduce(input: torch.Tensor, eps: float) -> Pair:  # noqa: ARG001
    """Sums and sums of squares of each channel, in float32."""
    if input.dim() < 2:
        raise RuntimeError(
            "The dim input tensor must more than 1\nbatch_norm_reduce: input must have at least 2 "
            f"axes, not {input.dim()}; give it one of channels"
        )
    wide = input.float()
    return wide.sum(_others(input)), (wide * wide).sum(_others(input))


def gather_stats_update(
    input: torch.Tensor,  # noqa: ARG001
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> Pair:
    """The statistics over all cards, from the sums of each card (:func:`reduce`), which are passed
    as *mean* and *invstd*."""
    count = counts.float().sum()
    whole = mean.float().sum(0) / count
    variance = invstd.float().sum(0) / count - whole * whole
    _follow(running_mean, whole, momentum)
    _follow(running_var, variance * (count / (count - 1)), momentum)
    return whole.to(mean.dtype), (1 / torch.sqrt(variance + eps)).to(mean.dtype)
