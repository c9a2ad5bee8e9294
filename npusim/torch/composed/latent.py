"""npu_mla_prolog and its versions, composed of parts: the steps before attention to latent keys.

.. code-block:: text

    c_q = rms_norm(x @ W_dq);   q = c_q @ W_uq_qr;   query = q_nope @ W_uk, head by head
    query_rope = rope(q_rope);  c = x @ W_dkv_kr;    caches get rms_norm(c_kv) and rope(c_rope)

On a card one kernel, MlaProlog, does all this: its products run on all cores one after the other,
while vector cores norm and rotate in parallel. Here matmul or npu_quant_matmul, npu_rms_norm,
npu_interleave_rope, npu_dynamic_quant and torch's `index_put_` run separately, and the sum of their
times is longer (assumed).

int8 weights and tokens: int32 sums are multiplied by both scales and remain float32 until they are
stored or quantised again. int8 latent keys are scaled by quant_scale_ckv, and int8 queries by the
largest value of each head (query_quant_mode 1).

Sources: op-plugin@517f2e7, torch_npu-npu_mla_prolog_v3.md; ops-transformer@3a280bc
attention/mla_prolog.
"""

from __future__ import annotations

from typing import Any

import torch

from npusim.torch.composed.caches import put, turned_pairs

__all__ = ["mla_prolog", "mla_prolog_v2", "mla_prolog_v3", "mla_prolog_v3_functional"]

Tensors = tuple[torch.Tensor, ...]
LARGEST = 127.0
"""The largest int8."""
MODES = {"PA_BSND": "PA_BNSD", "PA_BLK_BSND": "PA_BLK_BNSD"}
"""Mode of a cache -> its name in npu_kv_rmsnorm_rope_cache."""


def mla_prolog(*args: Any, **given: Any) -> Tensors:
    """Return the query, its rotated part, and both caches."""
    return mla_prolog_v2(*args, **given)[:4]


def mla_prolog_v2(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    cache_index: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    **given: Any,
) -> Tensors:
    """:func:`mla_prolog`, and the scale of an int8 query."""
    is_int8 = kv_cache.dtype == torch.int8
    weights = weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr
    gammas = rmsnorm_gamma_cq, rmsnorm_gamma_ckv
    found = mla_prolog_v3(
        token_x, *weights, *gammas, rope_sin, rope_cos, kv_cache, kr_cache,
        cache_index=cache_index, query_quant_mode=int(is_int8), **given,
    )  # fmt: skip
    query, rotated, scale, *_ = found
    return query, rotated, kv_cache, kr_cache, scale


def mla_prolog_v3_functional(*args: Any, **given: Any) -> Tensors:
    """:func:`mla_prolog_v3` with copies of the caches."""
    caches = [given.pop(x) for x in ("kv_cache", "kr_cache") if x in given] or list(args[9:11])
    copies = [cache.clone() for cache in caches]
    return *mla_prolog_v3(*args[:9], *copies, **given), *copies


def mla_prolog_v3(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    **given: Any,
) -> Tensors:
    """Return the query, its rotated part and scale, the normed c_q and its scale, and write the
    caches in place."""
    shape, x = token_x.shape[:-1], token_x.reshape(-1, token_x.shape[-1])
    heads, width, latent = weight_uk.shape
    lines = [line.reshape(-1, 1, 1, line.shape[-1]) for line in (rope_cos, rope_sin)]
    scale_x = given.get("dequant_scale_x")
    x_type = weight_uk.dtype
    # Queries.
    low = _product(x, weight_dq, scale_x, given.get("dequant_scale_w_dq"))
    epsilon = given.get("rmsnorm_epsilon_cq", 1e-5)
    normed = _normed(low, rmsnorm_gamma_cq, epsilon)
    normed, scale_norm = _narrowed(normed, weight_uq_qr, given.get("smooth_scales_cq"))
    query = _product(normed, weight_uq_qr, scale_norm, given.get("dequant_scale_w_uq_qr"))
    if (factor := given.get("qc_qr_scale", 1.0)) != 1.0:
        query = query * factor
    query = query.reshape(len(x), heads, -1)
    rotated = _turned(query[..., width:], *lines)
    wide = query[..., :width].transpose(0, 1).to(x_type).contiguous()
    absorbed = torch.bmm(wide, weight_uk)
    absorbed = absorbed.transpose(0, 1).contiguous()
    # Keys.
    keys = _product(x, weight_dkv_kr, scale_x, given.get("dequant_scale_w_dkv_kr"))
    epsilon = given.get("rmsnorm_epsilon_ckv", 1e-5)
    kept = _normed(keys[:, :latent].contiguous(), rmsnorm_gamma_ckv, epsilon)
    if (factor := given.get("kc_scale", 1.0)) != 1.0:
        kept = kept * factor
    turned = _turned(keys[:, None, latent:], *lines)[:, 0]
    _store(kept, kv_cache, given.get("quant_scale_ckv"), shape, given)
    _store(turned, kr_cache, given.get("quant_scale_ckr"), shape, given)
    # What is returned.
    scale = x.new_empty(0, dtype=torch.float32)
    if given.get("query_quant_mode", 0):
        absorbed, scale = torch.ops.npu.npu_dynamic_quant(absorbed.reshape(-1, latent))
        absorbed, scale = absorbed.reshape(len(x), heads, latent), scale.reshape(-1, heads, 1)
        # Divide by the factor that int8 queries are multiplied by later.
        rotated = (rotated.float() * given["quant_scale_ckv"].reshape(-1)[0] / scale).to(x_type)
    is_normed = given.get("query_norm_flag", False)
    of_norm = normed.reshape(*shape, -1) if is_normed else normed.new_empty(0)
    none = scale_norm is None or not is_normed
    norm_scale = x.new_empty(0, dtype=torch.float32) if none else scale_norm
    return (
        absorbed.reshape(*shape, heads, latent), rotated.reshape(*shape, heads, -1), scale, of_norm,
        norm_scale,
    )  # fmt: skip


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale_x: torch.Tensor | None,
    scale_weight: torch.Tensor | None,
) -> torch.Tensor:
    """`x @ weight`; the result is float32 for int8."""
    if weight.dtype != torch.int8:
        return x @ weight
    assert scale_x is not None
    assert scale_weight is not None
    one = scale_weight.new_ones(1)
    sums = torch.ops.npu.npu_quant_matmul(x, weight, one, output_dtype=torch.int32)
    return sums.float() * scale_x.reshape(-1, 1) * scale_weight.reshape(-1)


def _normed(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> torch.Tensor:
    found: torch.Tensor = torch.ops.npu.npu_rms_norm(x, gamma.to(x.dtype), epsilon)[0]
    return found


def _narrowed(
    normed: torch.Tensor, weight: torch.Tensor, smooth: torch.Tensor | None
) -> tuple[torch.Tensor, Any]:
    """*normed*, quantised to int8 with a scale for each token if *weight* is int8."""
    if weight.dtype != torch.int8:
        return normed, None
    values = normed.float()
    if smooth is not None:
        values = values * smooth.reshape(-1)
    scale = values.abs().amax(-1, keepdim=True) / LARGEST
    return (values / scale).round().to(torch.int8), scale


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """*x* `(tokens, heads, 64)` rotated by one row of *cos* and *sin* a token, in their type."""
    if x.dtype == torch.float32:
        return turned_pairs(x, cos[:, 0].float(), sin[:, 0].float()).to(cos.dtype)
    found: torch.Tensor = torch.ops.npu.npu_interleave_rope(x[:, :, None].contiguous(), cos, sin)
    return found[:, :, 0]


def _store(
    values: torch.Tensor,
    cache: torch.Tensor,
    scale: torch.Tensor | None,
    shape: tuple[int, ...],
    given: dict[str, Any],
) -> None:
    """Write *values* `(tokens, columns)` to *cache*, scaled if it is int8."""
    if cache.dtype == torch.int8 and scale is not None:
        values = (values.float() * scale.reshape(-1)).round().clamp(-128, 127)
    values = values.to(cache.dtype)
    mode, index = given.get("cache_mode", "PA_BSND"), given.get("cache_index")
    if mode in ("BSND", "TND") or index is None:
        cache.copy_(values.reshape(cache.shape))
        return
    batches = shape[0] if len(shape) > 1 else 1
    put(cache, values.reshape(batches, 1, -1, values.shape[-1]), index, MODES.get(mode, mode))
