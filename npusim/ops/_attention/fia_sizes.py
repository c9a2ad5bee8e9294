"""Tile sizes of FIA: many keys and few rows for decode, many of both for prefill.

ops-transformer@3a280bc attention/common/op_host, arch22/fia_tiling_nonquant.cpp.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.ops._attention.problem import Attention

FEW_QUERIES = 16
"""Up to this many tokens per request, a tile has many keys and few rows, as for decode."""
PREFILL_KEYS, PREFILL_ROWS = 512, 512
DECODE_KEYS = (8192, 4096, 2048)
"""For groups of fewer than 5 heads, fewer than 10, and more."""
GROUP_STEP = 5
STENCIL_KEYS = 1024
"""Most keys of a tile if lengths decide what is hidden."""
KEYS_ALIGNED = 32
ROWS_OF_KEYS = ((512, 512), (1024, 256), (2048, 128), (4096, 64))
"""Keys up to the first number have the second number of rows."""
FEWEST_ROWS = 32
EIGHTFOLD_ROWS = 128
"""Up to this many rows, a tile stores maxima and sums eight times each, as the vector pipe reads
them.
"""
CHUNK_KEYS, CHUNK_ROWS = 256, 128
"""For a tile with int8 keys that are dequantised; assumed for rows."""
TRAINING_KEYS, TRAINING_ROWS, VECTOR_CORES = 1024, 64, 2
"""For a tile in training; twice the rows if there are more than the vector cores of all groups
have."""
LATENT_ROWS, FEWEST_LATENT_ROWS = 256, 128
"""For a tile of latent keys."""


class TileSizes(NamedTuple):
    """The most keys and rows of a tile."""

    keys: int
    rows: int
    is_eightfold: bool = False
    """Whether the state of each row fills a block of eight float32."""


def tile_sizes(a: Attention, cores: int) -> TileSizes:
    """The sizes of all tiles of a call on a chip of that many cube *cores*."""
    if a.is_latent:
        return latent_sizes(a, cores)
    if a.is_training:
        return _training_sizes(a, cores)
    is_prefill = a.is_packed or max(a.query_lengths, default=0) > FEW_QUERIES
    keys = PREFILL_KEYS
    if not is_prefill:
        keys = DECODE_KEYS[min(a.group // GROUP_STEP, len(DECODE_KEYS) - 1)]
    if a.is_stencil:
        keys = min(keys, STENCIL_KEYS)
    if a.dequantises:
        keys = CHUNK_KEYS
    keys = _whole_pages(a, keys)
    aligned = align_up(keys, KEYS_ALIGNED)
    count = next((n for most, n in ROWS_OF_KEYS if aligned <= most), FEWEST_ROWS)
    if a.dequantises or is_prefill:
        count = CHUNK_ROWS if a.dequantises else PREFILL_ROWS
    return TileSizes(keys, count, count <= EIGHTFOLD_ROWS)


def _training_sizes(a: Attention, cores: int) -> TileSizes:
    """The same for training, where each vector core has separate rows: a tile has the rows of two
    cores, which share the products (flash_attention_score/op_host, S1S2 and S1)."""
    keys = min(TRAINING_KEYS, max(a.kv_lengths, default=0))
    tasks = sum(ceil_div(length, TRAINING_ROWS) for length in a.query_lengths) * a.query_heads
    rows = VECTOR_CORES * TRAINING_ROWS * (2 if tasks > VECTOR_CORES * cores else 1)
    return TileSizes(keys, rows, is_eightfold=rows <= EIGHTFOLD_ROWS)


def latent_sizes(a: Attention, cores: int) -> TileSizes:
    """The same for latent keys: if all requests are equally long, rows may be chosen so that all
    *cores* get equally many rows of tiles.

    ops-transformer@3a280bc attention/common/op_host, arch22/fia_tiling_nonquant_mla.cpp. That the
    state of a row is a single number, however many rows a tile has, is assumed.
    """
    rows, requests = LATENT_ROWS, a.requests
    if len({*a.kv_lengths}) == 1 and requests % cores:
        own, parts = a.longest_query * a.group, lcm(requests, cores) // requests
        if own % parts == 0 and FEWEST_LATENT_ROWS <= own // parts <= LATENT_ROWS:
            rows = own // parts
    return TileSizes(_whole_pages(a, PREFILL_KEYS), rows)


def _whole_pages(a: Attention, keys: int) -> int:
    """*keys* of a tile, rounded to whole pages if it has several, and at most as many as exist."""
    if a.paging is not None and keys > a.paging.block_size:
        keys = align_down(keys, a.paging.block_size)
    return min(keys, max(a.kv_lengths, default=0))
