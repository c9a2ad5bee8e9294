"""How large tiles of FIA are: many keys and few rows for a decoder, many of both for a prefill.

ops-transformer@3a280bc attention/common/op_host, arch22/fia_tiling_nonquant.cpp.
"""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.ops._attention.problem import Attention

FEW_QUERIES = 16
"""Up to so many tokens a request, a tile has many keys and few rows, as a decoder's."""
PREFILL_KEYS, PREFILL_ROWS = 512, 512
DECODE_KEYS = (8192, 4096, 2048)
"""For groups of less than 5 heads, of less than 10, and of more."""
GROUP_STEP = 5
STENCIL_KEYS = 1024
"""The most keys of a tile where lengths say what is hidden."""
KEYS_ALIGNED = 32
ROWS_OF_KEYS = ((512, 512), (1024, 256), (2048, 128), (4096, 64))
"""Keys up to the first number have as many rows as the second."""
FEWEST_ROWS = 32
EIGHTFOLD_ROWS = 128
"""Up to so many rows a tile keeps maxima and sums eight times each, as the vector pipe reads them.
"""
CHUNK_KEYS, CHUNK_ROWS = 256, 128
"""Of a tile whose keys of int8 are dequantised; of rows that is assumed."""
TRAINING_KEYS, TRAINING_ROWS, VECTOR_CORES = 1024, 64, 2
"""Of a tile in training; twice the rows where there are more than the vector cores of all groups
have."""
LATENT_ROWS, FEWEST_LATENT_ROWS = 256, 128
"""Of a tile of latent keys."""


class TileSizes(NamedTuple):
    """How many keys and rows a tile has at most."""

    keys: int
    rows: int
    is_eightfold: bool = False
    """Whether the state of each row fills a block of eight float32."""


def tile_sizes(a: Attention, cores: int) -> TileSizes:
    """The sizes of all tiles of a call on a chip of so many cube *cores*."""
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
    """The same for training, where each vector core has rows of its own: those of a tile are two
    cores' rows, which share the products (flash_attention_score/op_host, S1S2 and S1)."""
    keys = min(TRAINING_KEYS, max(a.kv_lengths, default=0))
    tasks = sum(ceil_div(length, TRAINING_ROWS) for length in a.query_lengths) * a.query_heads
    rows = VECTOR_CORES * TRAINING_ROWS * (2 if tasks > VECTOR_CORES * cores else 1)
    return TileSizes(keys, rows, is_eightfold=rows <= EIGHTFOLD_ROWS)


def latent_sizes(a: Attention, cores: int) -> TileSizes:
    """The same of latent keys: where all requests are as long, rows may be such that all *cores*
    get as many rows of tiles.

    ops-transformer@3a280bc attention/common/op_host, arch22/fia_tiling_nonquant_mla.cpp. That the
    state of a row is one number, however many rows a tile has, is assumed.
    """
    rows, requests = LATENT_ROWS, a.requests
    if len({*a.kv_lengths}) == 1 and requests % cores:
        own, parts = a.longest_query * a.group, lcm(requests, cores) // requests
        if own % parts == 0 and FEWEST_LATENT_ROWS <= own // parts <= LATENT_ROWS:
            rows = own // parts
    return TileSizes(_whole_pages(a, PREFILL_KEYS), rows)


def _whole_pages(a: Attention, keys: int) -> int:
    """*keys* of a tile, of whole pages where it has several, and no more than there are."""
    if a.paging is not None and keys > a.paging.block_size:
        keys = align_down(keys, a.paging.block_size)
    return min(keys, max(a.kv_lengths, default=0))
