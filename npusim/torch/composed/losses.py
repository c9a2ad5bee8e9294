"""Cross entropy, also over a vocabulary that is split over cards, composed of torch operations.

Sources: op-plugin@517f2e7, the documents of these functions. The product is one launch, in the type
of its operands; the rest is computed in float32 (assumed, because the sources of the fused kernels
are not public).
"""

from __future__ import annotations

import torch

from npusim.torch.composed.bits import packed, unpacked
from npusim.torch.errors import require_choice, require_option

__all__ = [
    "cross_entropy_loss",
    "cross_entropy_with_max_sum",
    "linear_cross_entropy_backward",
    "online_max_sum",
]


def cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss of rows `(rows, classes)`, `(1)` or with *reduction* "none" `(rows)`, the logarithms
    of their softmax, and two empty tensors in place of what z-loss would give."""
    function = "npu_cross_entropy_loss"
    zloss = (
        ("lse_square_scale_for_zloss", lse_square_scale_for_zloss),
        ("return_zloss", return_zloss),
    )
    for name, given in zloss:
        require_option(function, name, given, type(given)(0))
    require_choice(function, "reduction", reduction, "mean", "sum", "none")
    scores = torch.log_softmax(input.float(), -1)
    weights = scores.new_ones(scores.shape[1]) if weight is None else weight.float()
    is_counted = (target != ignore_index).float()
    of_target = weights[target] * is_counted
    loss = -scores.gather(1, target[:, None]).flatten() * of_target
    if label_smoothing:
        smooth = -(scores * weights).sum(-1) * is_counted / scores.shape[-1]
        loss = loss * (1 - label_smoothing) + smooth * label_smoothing
    if reduction != "none":
        loss = loss.sum(0, keepdim=True)
    if reduction == "mean":
        loss = loss / of_target.sum()
    none = scores.new_empty(0)
    return loss.to(input.dtype), scores.to(input.dtype), none, none


def online_max_sum(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """The maximum scores over this part of the vocabulary, the sums of exponentials, the scores of
    the targets less the maximum, the bits that mark targets outside this part, the indices of the
    targets within it, and the scores if *return_logits*."""
    logits = torch.mm(input, weight.t())
    wide = logits.float()
    largest = wide.amax(-1)
    apart = wide - largest[:, None]
    total = apart.exp().sum(-1)
    is_elsewhere = (target < vocab_start_index) | (target > vocab_end_index)
    within = (target - vocab_start_index).masked_fill(is_elsewhere, 0)
    predicted = apart.gather(1, within.long()[:, None])[:, 0].masked_fill(is_elsewhere, 0.0)
    scores = logits if return_logits else None
    return largest, total, predicted, packed(is_elsewhere), within, scores


def cross_entropy_with_max_sum(
    logits_max: torch.Tensor,
    sum_exp_logits: torch.Tensor,
    predicted_logits: torch.Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    vocab_parallel_logits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The losses, and the softmax if scores are given."""
    _require_plain("npu_fused_cross_entropy_loss_with_max_sum", label_smoothing)
    if input is not None or weight is not None:
        raise RuntimeError(
            "npu_fused_cross_entropy_loss_with_max_sum: input and weight must be None, as its "
            "document says, but are given; pass vocab_parallel_logits"
        )
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, None
    return loss, _shares(vocab_parallel_logits, logits_max, sum_exp_logits)


def _shares(logits: torch.Tensor, largest: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return (logits.float() - largest[:, None]).exp() / total[:, None]


def _require_plain(name: str, label_smoothing: float | None) -> None:
    if label_smoothing:
        raise RuntimeError(
            f"{name}: label_smoothing must be 0, as its document says, not {label_smoothing}; "
            "leave it out"
        )


def linear_cross_entropy_backward(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    target_mask: torch.Tensor,
    masked_target: torch.Tensor,
    label_smoothing: float = 0.0,
    logits_max: torch.Tensor | None = None,
    sum_exp_logits: torch.Tensor | None = None,
    softmax: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of *input* and *weight*, from the softmax, or from the maxima and sums that
    give it."""
    name = "npu_fused_linear_cross_entropy_loss_with_max_sum_backward"
    _require_plain(name, label_smoothing)
    if softmax is None:
        if logits_max is None or sum_exp_logits is None:
            raise RuntimeError(
                f"{name}: softmax must be given, or logits_max and sum_exp_logits, but none is; "
                "pass what the forward functions gave"
            )
        softmax = _shares(torch.mm(input, weight.t()), logits_max, sum_exp_logits)
    count = input.shape[0]
    within = 1.0 - unpacked(target_mask, count).float()
    places = torch.arange(count, device=input.device)
    update = torch.zeros_like(softmax).index_put((places, masked_target.long()), within)
    scores = ((softmax - update) * grad[:, None]).to(input.dtype)
    return torch.mm(scores, weight), torch.mm(scores.t(), input)
