"""What npu_kv_rmsnorm_rope_cache accepts, and the places of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT64, DType
from npusim.data.errors import Code, shown
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._support import Entries

LATENT, ROTATED = 512, 64
"""Columns that are normed, and those that are rotated."""
MODES = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD")
FRACTAL = 16
"""Columns of a fractal."""
ABSENT = ("k_rope_scale", "c_kv_scale", "k_rope_offset", "c_kv_offset", "v")
"""Tensors that are not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    element: DType
    batches: int
    tokens: int
    has_lines: bool
    """Whether each of several tokens has its own row of cos and sin, instead of one for a batch."""
    mode: str
    epsilon: float
    outputs_kv: bool
    block_size: int
    """Tokens of a block, or places of a batch."""
    places: tuple[int, ...]
    """The place of each token, counted over the cache, below zero if it is skipped."""


def in_pages(mode: str, *, outputs_kv: bool) -> bool:
    """Whether the kernel for pages of any kind runs."""
    return mode in ("PA_NZ", "PA_BLK_BNSD") or outputs_kv


def _row(half: DType) -> ops.Row:
    tensor = ops.Operands((half,), ranks=(4, 4))
    entries: Entries = dict.fromkeys(("kv", "cos", "sin", "k_cache", "ckv_cache"), tensor)
    gamma = ops.Operands((half,), ranks=(1, 1))
    return ops.Row(on=ops.A2_A3, gamma=gamma, index=INT64, **entries)


SUPPORT = (_row(FLOAT16), _row(BFLOAT16))


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    for name in ABSENT:
        contract.require(
            contract.arguments[name] is None,
            f"{name} must be None: the kernel for it is not simulated; leave it out",
            Code.UNSUPPORTED,
        )
    mode = contract.value("cache_mode")
    contract.require(
        isinstance(mode, str) and mode in MODES,
        f"cache_mode must be {ops.listed(MODES)}, not {shown(mode)}: it is not simulated; pass one",
        Code.UNSUPPORTED,
    )
    outputs_kv = contract.boolean("is_output_kv")
    contract.require(
        not outputs_kv or mode != "Norm",
        "is_output_kv must be False in Norm, whose kernels give neither; leave it out",
        Code.UNSUPPORTED,
    )
    kv, gamma, cos, sin = map(contract.operand, ("kv", "gamma", "cos", "sin"))
    batches, heads, tokens, width = kv.shape
    contract.require(
        heads == 1 and width == LATENT + ROTATED and kv.spec.size > 0,
        f"kv must have shape (batches, 1, tokens, {LATENT + ROTATED}), not {kv.shape}; reshape it",
    )
    contract.require_shape(gamma, (LATENT,), remedy="pass a factor for each normed column")
    lines = (batches, 1, tokens, ROTATED), (batches, 1, 1, ROTATED)
    for each in (cos, sin):
        contract.require_shape(each, *lines, remedy="pass a line of a batch or a token")
    contract.require_shape(sin, cos.shape, when=" as cos has", remedy="pass both alike")
    has_lines = tokens > 1 and cos.shape[2] == tokens
    contract.require(
        has_lines or tokens == 1 or not in_pages(mode, outputs_kv=outputs_kv),
        f"cos and sin must have a line for each of {tokens} tokens in {mode}, not one for a batch: "
        f"that is not simulated; expand them",
        Code.UNSUPPORTED,
    )
    index, caches = contract.operand("index"), _caches(contract, batches, mode)
    size = caches[0].shape[2 if mode == "Norm" else 1]
    outputs = {cache.name: cache.spec for cache in caches}
    if outputs_kv:
        shape = batches, 1, tokens
        outputs |= {
            name: TensorSpec((*shape, columns), kv.spec.dtype)
            for name, columns in (("k_rope", ROTATED), ("c_kv", LATENT))
        }
    return Problem(
        inputs=(kv, gamma, cos, sin, index, *caches),
        outputs=outputs,
        element=kv.element,
        batches=batches,
        tokens=tokens,
        has_lines=has_lines,
        mode=mode,
        epsilon=float(contract.value("epsilon")),
        outputs_kv=outputs_kv,
        block_size=size,
        places=_places(contract, index, mode, (batches, tokens, size, caches[0].shape[0])),
    )


def _caches(contract: ops.Contract, batches: int, mode: str) -> tuple[Operand, Operand]:
    """Both caches, with equally many places."""
    found = contract.operand("k_cache"), contract.operand("ckv_cache")
    k, ckv = (each.shape for each in found)
    contract.require(
        (k[3], ckv[3]) == (ROTATED, LATENT) and k[:3] == ckv[:3],
        f"k_cache and ckv_cache must have {ROTATED} and {LATENT} columns and as many places, not "
        f"shapes {k} and {ckv}; pass them so",
    )
    single = k[1] if mode == "Norm" else k[2]
    contract.require(
        single == 1 and (mode != "Norm" or k[0] == batches),
        f"k_cache must be ({batches}, 1, places, {ROTATED}) in Norm, else (blocks, block_size, 1, "
        f"{ROTATED}), not {k}; reshape it",
    )
    return found


def _places(
    contract: ops.Contract, index: Operand, mode: str, sizes: tuple[int, int, int, int]
) -> tuple[int, ...]:
    """The place of each token, from batches, tokens, and places and number of blocks."""
    batches, tokens, size, blocks = sizes
    each = ceil_div(tokens, size) if mode == "PA_BLK_BNSD" else tokens
    shape = (batches, tokens) if mode == "Norm" else (batches * each,)
    contract.require_shape(index, shape, remedy="pass a place for each token")
    given = np.arange(batches * each) * (size if mode == "PA_BLK_BNSD" else 1)
    if mode == "Norm":
        given = given % tokens
    if index.array is not None:
        given = index.array.reshape(-1)
    found = given.reshape(batches, each)
    token = np.arange(tokens)
    if mode == "PA_BLK_BNSD":
        found = found[:, token // size]
        found = np.where(found < 0, -1, found // size * size + token % size)
    room = size if mode == "Norm" else size * blocks
    largest = int(found.max(initial=-1))
    contract.require(
        largest < room,
        f"index must name places below {room}, which the caches have, not {largest}; make the "
        f"caches larger, or pass -1 to leave the token out",
    )
    if mode == "Norm":
        found = np.where(found < 0, -1, found + np.arange(batches)[:, None] * size)
    named, counts = np.unique(found[found >= 0], return_counts=True)
    for twice in named[counts > 1][:1]:
        contract.fail(
            f"index must name each place once, not {twice} twice: which token is kept is open on a "
            f"card; leave one of the tokens out with -1"
        )
    return tuple(found.reshape(-1).tolist())
