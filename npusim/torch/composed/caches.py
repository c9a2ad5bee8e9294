"""KV caches: writes of slices, of normed and rotated latent keys, reads of pages, and prefetches.

Sources: op-plugin@517f2e7, the documents torch_npu-scatter_update.md,
torch_npu-npu_kv_rmsnorm_rope_cache.md and torch_npu-npu_prefetch.md; ops-transformer@3a280bc
posembedding/kv_rms_norm_rope_cache.
"""

from __future__ import annotations

from typing import Any

import torch

from npusim.torch.composed.atb import paged_cache_load

__all__ = [
    "gather_pa_kv_cache",
    "gather_pa_kv_cache_functional",
    "kv_rmsnorm_rope_cache",
    "kv_rmsnorm_rope_cache_v2",
    "prefetch",
    "put",
    "scatter_update",
    "scatter_update_",
    "turned_pairs",
]

PAGED = {"PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"}
"""Modes of a paged cache; BLK: *index* holds the start of each block of tokens."""
LATENT = 512
"""Latent columns of a key; the remaining columns are rotated."""
ROTATED = 64
"""Columns of a key that are rotated if values are a separate tensor."""


def scatter_update_(
    input: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    axis: int,
) -> torch.Tensor:
    """Write *updates* into *input*: along *axis*, each batch starts at its own index."""
    axis = axis % input.dim()
    places, batches = indices, torch.arange(updates.shape[0], device=input.device)
    if indices.dim() == 2:
        batches, places = indices[:, 0], indices[:, 1]
    length = updates.shape[axis]
    along = places[:, None].long() + torch.arange(length, device=input.device)
    # (batches, length, ...): the axis next to the batches.
    target, source = input.movedim(axis, 1), updates.movedim(axis, 1)
    target[batches[:, None].long(), along] = source
    return input


def scatter_update(
    input: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    axis: int,
) -> torch.Tensor:
    """:func:`scatter_update_` into a copy of *input*."""
    return scatter_update_(input.clone(), indices, updates, axis)


def prefetch(
    input: torch.Tensor,
    dependency: torch.Tensor | None,  # noqa: ARG001
    max_size: int,
    offset: int = 0,
) -> None:
    """Do nothing: on a card the SDMA copies *input* to the L2, in parallel to kernels.

    Here kernels find in the L2 only what earlier kernels left there.
    """
    if max_size <= 0 or not 0 <= offset < input.nbytes:
        raise RuntimeError(
            f"npu_prefetch: max_size must be positive and offset lie in [0, {input.nbytes}), not "
            f"{max_size} and {offset}; pass how many bytes of the weight are to come"
        )


def gather_pa_kv_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Read the keys and values of all requests from their pages, and write them one request after
    the other to *key* and *value*."""
    paged_cache_load(
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        seq_starts=seq_offset,
        cumsum=is_seq_lens_cumsum,
        key=key,
        value=value,
    )


def gather_pa_kv_cache_functional(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    **given: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`gather_pa_kv_cache` into new tensors."""
    found = key.clone(), value.clone()
    gather_pa_kv_cache(key_cache, value_cache, block_tables, seq_lens, *found, **given)
    return found


# ---- npu_kv_rmsnorm_rope_cache ----


def kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Write both caches in place and return them, and the values written if *is_output_kv*.

    This runs for calls that the kernel of npusim does not accept: the norm is npu_rms_norm, the
    rotation npu_interleave_rope, and torch's `index_put_` writes to the caches.
    """
    if v is None:
        latent, rotated = kv[..., :LATENT].contiguous(), kv[..., LATENT:].contiguous()
        normed = torch.ops.npu.npu_rms_norm(latent, gamma, epsilon)[0]
        turned = torch.ops.npu.npu_interleave_rope(rotated, cos, sin)
    else:
        # All columns of the keys are normed and some are rotated; values are unchanged.
        wide = torch.ops.npu.npu_rms_norm(kv.float(), gamma.float(), epsilon)[0]
        rotated = turned_pairs(wide[..., :ROTATED], cos.float(), sin.float())
        turned, normed = torch.cat([rotated, wide[..., ROTATED:]], -1), v
    parts = (
        (turned, k_cache, k_rope_scale, k_rope_offset),
        (normed, ckv_cache, c_kv_scale, c_kv_offset),
    )
    for values, cache, scale, offset in parts:
        if scale is not None:
            wide = values.float() * scale
            values = (wide if offset is None else wide + offset).round().clamp(-128, 127)
        put(cache, values.to(cache.dtype), index, cache_mode)
    kept = (each.to(kv.dtype) for each in (turned, normed))
    if is_output_kv:
        return k_cache, ckv_cache, *kept
    return k_cache, ckv_cache, *(torch.empty_like(each) for each in kept)


def kv_rmsnorm_rope_cache_v2(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Write both caches in place and return the values written."""
    for name in ("k_cache_dtype", "ckv_cache_dtype"):
        kwargs.pop(name, None)
    found: tuple[torch.Tensor, ...] = torch.ops.npu.npu_kv_rmsnorm_rope_cache(*args, **kwargs)
    return found[2], found[3]


def turned_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """*x* rotated as by npu_interleave_rope, in float32."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even, odd], -1) * cos + torch.cat([-odd, even], -1) * sin


def put(cache: torch.Tensor, values: torch.Tensor, index: torch.Tensor, mode: str) -> None:
    """Write *values* `(batches, 1, tokens, columns)` to *cache*; negative indices are skipped."""
    batches, _, tokens, columns = values.shape
    if mode == "Norm":
        places = index.reshape(batches, tokens)
        rows = torch.arange(batches, device=cache.device)[:, None].expand(batches, tokens)
        seen = places >= 0
        cache[rows[seen], 0, places[seen]] = values[:, 0][seen]
        return
    if mode not in PAGED:
        raise RuntimeError(
            f"npu_kv_rmsnorm_rope_cache: cache_mode must be Norm, {', '.join(sorted(PAGED))}, not "
            f"{mode}; choose one of these"
        )
    size = cache.shape[1]
    slots = index.reshape(-1)
    if "BLK" in mode:
        # *index* has the start of each block of tokens, for the most blocks that a batch can have.
        blocks = -(-tokens // size)
        token = torch.arange(tokens, device=cache.device)
        slots = index.reshape(batches, blocks)[:, token // size] * 1
        slots = torch.where(slots >= 0, slots + token % size, slots).reshape(-1)
    seen = slots >= 0
    places, rows = slots[seen], values.reshape(-1, columns)[seen]
    if mode.endswith("NZ"):
        # The layout in memory is (blocks, columns / c0, tokens, c0), whatever the tensor's shape.
        c0 = 32 // cache.element_size()
        lies = cache.view(cache.shape[0], columns // c0, size, c0)
        lies[places // size, :, places % size] = rows.view(-1, columns // c0, c0)
        return
    cache[places // size, places % size, 0] = rows
