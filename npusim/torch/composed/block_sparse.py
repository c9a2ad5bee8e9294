"""Attention to the blocks of keys that a mask selects, as products and softmax in float32.

The kernels BlockSparseAttention and its gradient are not simulated. Here, masked blocks take time
as well. Sources: op-plugin@517f2e7, torch_npu-npu_block_sparse_attention.md and derivatives.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from npusim.torch.errors import require_option

__all__ = ["block_sparse_attention", "block_sparse_attention_backward"]

Lengths = Sequence[int] | None


class _Call(NamedTuple):
    """The arguments that forward and backward share."""

    mask: torch.Tensor
    """`(batches, heads, blocks of tokens, blocks of keys)`."""
    block_shape: Sequence[int]
    layout: str
    lengths: tuple[Lengths, Lengths]
    scale: float

    def parts(self, tensor: torch.Tensor, side: int) -> Iterator[torch.Tensor]:
        """Split *tensor* by batch into `(heads, rows, columns)`; its rows are tokens on *side* 0
        and keys on *side* 1."""
        lengths = self.lengths[side]
        if self.layout == "TND":
            sizes = list(lengths or [tensor.shape[0]])
            if sum(sizes) != tensor.shape[0]:
                # The lengths are cumulative: the end of each batch.
                ends = [end for end in sizes if end]
                sizes = [b - a for a, b in zip([0, *ends], ends, strict=False)]
            yield from (part.transpose(0, 1) for part in tensor.split(sizes))
            return
        for batch, part in enumerate(tensor):
            yield part[:, : part.shape[1] if lengths is None else lengths[batch]]

    def joined(self, parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """Join *parts* into a tensor like *like*; rows beyond the length of a batch are zero."""
        if self.layout == "TND":
            return torch.cat([part.transpose(0, 1) for part in parts])
        room = like.shape[2]
        wide = [torch.nn.functional.pad(x, (0, 0, 0, room - x.shape[1])) for x in parts]
        return torch.stack(wide)

    def seen(self, batch: int, tokens: int, keys: int) -> torch.Tensor:
        """The keys that each token attends to, as bool: `(heads, tokens, keys)`."""
        whole = self.mask[batch].bool()
        for axis, size in ((1, self.block_shape[0]), (2, self.block_shape[1])):
            whole = whole.repeat_interleave(size, axis)
        return whole[:, :tokens, :keys]


def _of_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.repeat_interleave(heads // x.shape[0], 0).float()


def block_sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_sparse_mask: torch.Tensor,
    block_shape: Sequence[int],
    *,
    q_input_layout: str = "TND",
    kv_input_layout: str = "TND",
    num_key_value_heads: int = 1,  # noqa: ARG001
    scale_value: float = 0.0,
    inner_precise: int = 1,  # noqa: ARG001
    actual_seq_lengths: Lengths = None,
    actual_seq_lengths_kv: Lengths = None,
    softmax_lse_flag: int | None = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention output, and the log-sum-exp of the scores, or zeros if it is not requested."""
    function = "npu_block_sparse_attention"
    require_option(function, "kv_input_layout", kv_input_layout, q_input_layout)
    lengths = actual_seq_lengths, actual_seq_lengths_kv
    call = _Call(block_sparse_mask, block_shape, q_input_layout, lengths, scale_value)
    parts = zip(call.parts(query, 0), call.parts(key, 1), call.parts(value, 1), strict=True)
    outputs, sums = [], []
    for batch, (q, k, v) in enumerate(parts):
        scores = q.float() @ _of_heads(k, q.shape[0]).mT * scale_value
        seen = call.seen(batch, *scores.shape[1:])
        scores = scores.masked_fill(~seen, float("-inf"))
        lse = torch.logsumexp(scores, -1, keepdim=True)
        weights = (scores - lse).exp().masked_fill(~seen, 0.0).to(query.dtype)
        outputs.append((weights.float() @ _of_heads(v, q.shape[0])).to(query.dtype))
        sums.append(lse)
    lse = call.joined(sums, query)
    return call.joined(outputs, query), lse if softmax_lse_flag else torch.zeros_like(lse)


def block_sparse_attention_backward(
    d_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_out: torch.Tensor,
    softmax_lse: torch.Tensor,
    block_sparse_mask: torch.Tensor,
    block_shape: Sequence[int] | None,
    actual_seq_lengths: Lengths,
    actual_seq_lengths_kv: Lengths,
    q_input_layout: str,
    kv_input_layout: str,
    num_key_value_heads: int,
    scale_value: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value."""
    function = "npu_block_sparse_attention_backward"
    require_option(function, "kv_input_layout", kv_input_layout, q_input_layout)
    lengths = actual_seq_lengths, actual_seq_lengths_kv
    shape = block_shape or (128, 128)
    call = _Call(block_sparse_mask, shape, q_input_layout, lengths, scale_value)
    of_tokens = (call.parts(x, 0) for x in (d_out, query, attention_out, softmax_lse))
    of_keys = (call.parts(x, 1) for x in (key, value))
    found: tuple[list[torch.Tensor], ...] = [], [], []
    for batch, each in enumerate(zip(*of_tokens, *of_keys, strict=True)):
        grad, q, out, lse, k, v = (x.float() for x in each)
        heads = q.shape[0]
        scores = q @ _of_heads(k, heads).mT * scale_value
        seen = call.seen(batch, *scores.shape[1:])
        weights = (scores - lse).exp().masked_fill(~seen, 0.0)
        of_weights = grad @ _of_heads(v, heads).mT
        of_scores = weights * (of_weights - (grad * out).sum(-1, keepdim=True)) * scale_value
        found[0].append(of_scores @ _of_heads(k, heads))
        for place, part in ((1, of_scores.mT @ q), (2, weights.mT @ grad)):
            shared = part.unflatten(0, (num_key_value_heads, heads // num_key_value_heads))
            found[place].append(shared.sum(1))
    tensors = query, key, value
    results = (call.joined(x, y).to(y.dtype) for x, y in zip(found, tensors, strict=True))
    return tuple(results)
