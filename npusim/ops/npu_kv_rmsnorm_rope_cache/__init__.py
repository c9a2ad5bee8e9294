"""npu_kv_rmsnorm_rope_cache: latent keys normed, rotated and stored in two caches.

.. code-block:: text

    x, r = kv[:512], kv[512:]                        of each token
    ckv = T(x / sqrt(sum(x * x) * (1 / 512) + epsilon) * gamma)
    k[j] = T(e[j] * cos[j] + -o[j] * sin[j])         e, o = r[0::2], r[1::2];  j < 32
    k[j + 32] = T(o[j] * cos[j + 32] + e[j] * sin[j + 32])
    k_cache[place] = k;  ckv_cache[place] = ckv      where index names a place, not below zero

for kv `(batches, 1, tokens, 576)`. All is fp32, rounded after each operation; T rounds to nearest,
ties to even. The sum adds neighbouring 64 columns until 64 are left, then neighbours of these. With
is_output_kv k and ckv are returned, too. The caches are written in place.

===========  ===================================================================================
cache_mode   place of token s of batch b
===========  ===================================================================================
Norm         index[b, s] of the tokens of b, in caches `(batches, 1, places, columns)`
PA, PA_BNSD  index[b * tokens + s], counted over all blocks `(block, token, 1, columns)`
PA_NZ        the same; a block is stored as `(columns / 16, block_size, 16)`
PA_BLK_BNSD  token s % block_size of the block that holds place index[b, s // block_size]
===========  ===================================================================================

============  ==================================================================================
template      what a core processes
============  ==================================================================================
tokens        a run of tokens, 16 at a time: if each has a row of cos and sin, and in pages
              with is_output_kv, in PA_NZ and in PA_BLK_BNSD
batches       four batches, or one if four do not divide them, one token of each at a time
============  ==================================================================================

Sources: ops-transformer@05c401f9 posembedding/kv_rms_norm_rope_cache, op_kernel (b16_mtp, b16_b1sd,
b16_pa) and op_host; op-plugin@517f2e7, the operator's document. Atlas A2 and A3. Not simulated are
PA_BLK_NZ, caches of int8, is_output_kv in Norm, a row of cos for several tokens in pages, and keys
of 192 columns with separate values: :mod:`npusim.torch` composes these from several operators. A
place beyond the cache or repeated is refused. Without values of index tokens take the first places
in order. Assumed: batches beyond the cores follow on the same cores without a new start.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops._torch import Result
from npusim.ops.npu_kv_rmsnorm_rope_cache.check import FRACTAL, LATENT, ROTATED, SUPPORT, check
from npusim.ops.npu_kv_rmsnorm_rope_cache.kernel import build, tile

# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, ...]:
    """Both caches, and with is_output_kv the values written to them."""
    kv, single = given.kv, np.float32
    x, rest = kv[..., :LATENT].astype(single), kv[..., LATENT:].astype(single)
    cos, sin = given.cos.astype(single), given.sin.astype(single)
    even, odd = rest[..., 0::2], rest[..., 1::2]
    first = np.concatenate((even, odd), axis=-1) * cos
    k = given.rounded(first + np.concatenate((-odd, even), axis=-1) * sin, kv.dtype)
    total = x * x
    for columns in (256, 128, 64):
        chunks = total.reshape(*total.shape[:-1], columns // 64, 2, 64)
        total = (chunks[..., 0, :] + chunks[..., 1, :]).reshape(*x.shape[:-1], columns)
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    root = np.sqrt(total * single(1 / LATENT) + single(given.epsilon))
    ckv = given.rounded(x / root * given.gamma.astype(single), kv.dtype)
    caches = tuple(
        _filled(given, cache, values)
        for cache, values in ((given.k_cache, k), (given.ckv_cache, ckv))
    )
    return (*caches, k, ckv) if given.is_output_kv else caches


def _filled(given: ops.Given, cache: Array, values: Array) -> Array:
    """*cache* with *values* `(batches, 1, tokens, columns)` in their places."""
    found, (batches, _, tokens, columns) = np.array(cache), values.shape
    index, size = given.index.reshape(batches, -1), cache.shape[1]
    for batch, token in np.ndindex(batches, tokens):
        row = values[batch, 0, token]
        place = index[batch, token // size if given.cache_mode == "PA_BLK_BNSD" else token]
        if place < 0:
            continue
        if given.cache_mode == "Norm":
            found[batch, 0, place] = row
            continue
        block, within = divmod(place, size)
        if given.cache_mode == "PA_BLK_BNSD":
            within = token % size
        if given.cache_mode == "PA_NZ":
            fractals = found[block].reshape(columns // FRACTAL, size, FRACTAL)
            fractals[:, within] = row.reshape(-1, FRACTAL)
        else:
            found[block, within, 0] = row
    return found


# ---- torch ----


def outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    """Both caches, and the values written to them if requested."""
    caches = tuple((given[name].shape, given[name].dtype) for name in CACHES)
    return (*caches, *_kept(given)) if given["is_output_kv"] else caches


def behind(given: ops.TorchArguments) -> tuple[Result, ...]:
    """The same two tensors if the kernel does not write them."""
    return () if given["is_output_kv"] else _kept(given)


def _kept(given: ops.TorchArguments) -> tuple[Result, ...]:
    kv = given["kv"]
    return tuple(((*kv.shape[:3], columns), kv.dtype) for columns in (ROTATED, LATENT))


CACHES = ("k_cache", "ckv_cache")
OPERATOR = ops.Operator(
    kernel_type="KvRmsNormRopeCache",
    document=__doc__,
    support=SUPPORT,
    elsewhere="run it on Atlas A2 or A3",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("index",),
    torch=(
        ops.TorchFunction(
            schema="npu_kv_rmsnorm_rope_cache(Tensor kv, Tensor gamma, Tensor cos, Tensor sin, "
            "Tensor index, Tensor k_cache, Tensor ckv_cache, *, Tensor? k_rope_scale=None, "
            "Tensor? c_kv_scale=None, Tensor? k_rope_offset=None, Tensor? c_kv_offset=None, "
            "Tensor? v=None, float epsilon=1e-5, str cache_mode='Norm', bool is_output_kv=False) "
            "-> (Tensor, Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnKvRmsNormRopeCache",
            outputs=outputs,
            behind=behind,
            into=CACHES,
        ),
    ),
)
