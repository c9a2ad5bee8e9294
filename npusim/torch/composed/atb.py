"""Functions of ATB in torch_npu other than attention, composed of torch operations.

ATB has kernels of its own, different from those of CANN, which are not simulated. Sources:
op-plugin@517f2e7 ops/atb.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from npusim.torch.relabel import overwrite

__all__ = [
    "group_topk",
    "matmul_add_fp32",
    "paged_cache_load",
    "quant_rms_norm",
    "quantize_per_tensor",
    "reshape_and_cache_siso",
    "rotary_embedding",
]

MOST_DIMENSIONS = 8


def matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, C: torch.Tensor) -> None:  # noqa: N803
    """`C += x.T @ weight`, in float32."""
    C.add_(torch.mm(x.t().float(), weight.float()))


def quantize_per_tensor(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, y: torch.Tensor
) -> None:
    """Quantise x to int8: divide by the scale and add the zero point."""
    most = max(tensor.dim() for tensor in (x, scale, zero_point, y))
    if most > MOST_DIMENSIONS:
        raise RuntimeError(
            f"ATB tensor supports at most {MOST_DIMENSIONS} dimensions, but got {most}\n"
            f"_npu_quantize_per_tensor: its tensors must have at most {MOST_DIMENSIONS} "
            f"dimensions, not {most}; reshape them"
        )
    found = (x.float() / scale.float()).round()
    if zero_point.numel():
        found = found + zero_point
    y.copy_(found.clamp(-128, 127))


def quant_rms_norm(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    output: torch.Tensor,
    eps: float = 1e-5,
) -> None:
    """npu_rms_norm with a bias, divided by a scale and quantised to int8, into *output*."""
    gamma, beta = gamma.flatten(), beta.flatten()
    output.copy_(torch.ops.npu.npu_rms_norm_quant(x, gamma, beta, scale, offset, eps))


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Rotate query and key in place with npu_rotary_mul, in mode half or interleave."""
    places = positions.flatten()
    cos, sin = cos_sin_cache.index_select(0, places).to(query.dtype).chunk(2, -1)
    if is_neox_style:
        cos, sin = (torch.cat([x, x], -1)[None, :, None] for x in (cos, sin))
    else:
        cos, sin = (x.repeat_interleave(2, -1)[None, :, None] for x in (cos, sin))
    mode, turned = "half" if is_neox_style else "interleave", cos.shape[-1]
    for tensor in (query, key):
        heads = tensor.reshape(1, places.numel(), -1, head_size)
        found = torch.ops.npu.npu_rotary_mul(heads[..., :turned].contiguous(), cos, sin, mode)
        if turned < head_size:
            found = torch.cat([found, heads[..., turned:]], -1)
        tensor.copy_(found.reshape(tensor.shape))


def reshape_and_cache_siso(
    key: torch.Tensor, key_cache: torch.Tensor, slot_indices: torch.Tensor
) -> None:
    """Write the key of each token to its slot of the cache; negative slots are skipped."""
    seen = (slot_indices >= 0).nonzero().flatten()
    slots, size = slot_indices.index_select(0, seen).long(), key_cache.shape[1]
    key_cache[slots // size, slots % size] = key.index_select(0, seen)


def paged_cache_load(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    seq_starts: torch.Tensor | None = None,
    cumsum: bool = False,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read keys and values of all requests from their pages, and concatenate them."""
    lengths = [int(x) for x in context_lens.tolist()]
    if cumsum:
        lengths = [after - before for before, after in pairwise(lengths)]
    starts = [0] * len(lengths) if seq_starts is None else seq_starts.tolist()
    size, pages = key_cache.shape[1], []
    for blocks, length, start in zip(block_table, lengths, starts, strict=False):
        places = torch.arange(length, device=blocks.device)
        pages.append(blocks[int(start) // size + places // size].long() * size + places % size)
    slots = torch.cat(pages)
    found = tuple(cache.flatten(0, 1).index_select(0, slots) for cache in (key_cache, value_cache))
    for out, read in zip((key, value), found, strict=True):
        if out is not None:
            overwrite(out, read)
    return (found[0], found[1]) if key is None or value is None else (key, value)


def group_topk(self: torch.Tensor, k: int = 0, group_num: int = 1, n: int = 1) -> None:
    """Keep in each row the *k* groups whose *n* largest elements have the largest sums, and set the
    others to zero."""
    groups = self.reshape(self.shape[0], group_num, -1)
    weights = groups.float().topk(n, -1).values.sum(-1)
    best = torch.sort(weights, dim=-1, descending=True, stable=True).indices[:, :k]
    seen = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, best, True)
    overwrite(self, (groups * seen[..., None]).reshape(self.shape))
