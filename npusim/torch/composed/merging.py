"""Merge attention over parts of the keys, and softmax with biases, composed of torch operations.

Sources: op-plugin@517f2e7, torch_npu-npu_attention_update.md and op_plugin_functions.yaml;
ops-transformer@3a280bc attention/ring_attention_update.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npusim.torch.errors import require_option
from npusim.torch.relabel import overwrite

__all__ = [
    "attention_update",
    "attn_softmax_",
    "attn_softmax_backward_",
    "masked_softmax_with_rel_pos_bias",
    "ring_attention_update",
]


def attention_update(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention output over all parts, and the log-sum-exp if it is requested."""
    sums = torch.stack(list(lse)).float()
    total = torch.logsumexp(sums, 0)
    weights = (sums - total).exp()[..., None]
    found = (torch.stack(list(local_out)).float() * weights).sum(0)
    return found.to(local_out[0].dtype), total if update_type == 1 else total.new_empty(0)


def ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    *,
    actual_seq_qlen: torch.Tensor | None = None,  # noqa: ARG001
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Merge two parts of the keys by their maxima and sums, each of which is stored in eight equal
    columns. Assumed: with input_layout TND they are `(tokens, heads, 8)` by default, too."""
    function = "npu_ring_attention_update"
    require_option(function, "input_layout", input_layout, "SBH", "TND")
    layouts = ("TND", "") if input_layout == "TND" else ("",)
    require_option(function, "input_softmax_layout", input_softmax_layout, *layouts)
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = prev_softmax_sum * (prev_softmax_max - largest).exp()
    now = cur_softmax_sum * (cur_softmax_max - largest).exp()
    total = before + now
    shares = [(x / total)[..., :1] for x in (before, now)]
    outputs = [prev_attn_out.float(), cur_attn_out.float()]
    if input_layout == "SBH":
        # (batches, heads, tokens, 1) -> (tokens, batches, heads, 1)
        shares = [x.permute(2, 0, 1, 3) for x in shares]
        outputs = [x.unflatten(-1, (shares[0].shape[2], -1)) for x in outputs]
    found = outputs[0] * shares[0] + outputs[1] * shares[1]
    return found.reshape(prev_attn_out.shape).to(prev_attn_out.dtype), largest, total


def masked_softmax_with_rel_pos_bias(
    x: torch.Tensor,
    atten_mask: torch.Tensor | None,
    relative_pos_bias: torch.Tensor,
    scale_value: float = 1.0,
    inner_precision_mode: int = 0,  # noqa: ARG001
) -> torch.Tensor:
    """softmax of the scaled scores plus a mask and biases."""
    scores = x.float() * scale_value
    if atten_mask is not None:
        scores = scores + atten_mask.float()
    return torch.softmax(scores + relative_pos_bias.float(), -1).to(x.dtype)


def attn_softmax_(self: torch.Tensor) -> torch.Tensor:
    """softmax of each row, in place."""
    overwrite(self, torch.softmax(self, -1))
    return self


def attn_softmax_backward_(
    self: torch.Tensor, grad_output: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Overwrite the softmax with the gradient of its input, given the gradient of its product with
    *values*."""
    grad = torch.matmul(grad_output, values.mT)
    overwrite(self, self * (grad - (grad * self).sum(-1, keepdim=True)))
    return self
