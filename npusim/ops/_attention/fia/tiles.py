"""The sizes of the tiles of kernel FIA: how many keys, and how many rows.

ops-transformer@3a280bc attention/common/op_host, arch22/fia_tiling_nonquant.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.integers import align_down, align_up
from npusim.ops._attention.fia.rows import Rows

__all__ = ["KEYS_ALIGNED", "TileSizes", "tile_sizes"]

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


class TileSizes(NamedTuple):
    """How many keys and rows a tile has at most."""

    keys: int
    rows: int

    @property
    def is_eightfold(self) -> bool:
        """Whether the state of each row fills a block of eight float32."""
        return self.rows <= EIGHTFOLD_ROWS


def tile_sizes(rows: Rows) -> TileSizes:
    """The sizes of all tiles of a call."""
    a, page = rows.a, rows.a.paging
    is_prefill = rows.is_packed or max(a.query_lengths, default=0) > FEW_QUERIES
    keys = PREFILL_KEYS
    if not is_prefill:
        keys = DECODE_KEYS[min(a.group // GROUP_STEP, len(DECODE_KEYS) - 1)]
    if rows.has_stencil:
        keys = min(keys, STENCIL_KEYS)
    if page is not None and keys > page.block_size:
        keys = align_down(keys, page.block_size)
    keys = min(keys, max(a.kv_lengths, default=0))
    if is_prefill:
        return TileSizes(keys, PREFILL_ROWS)
    aligned = align_up(keys, KEYS_ALIGNED)
    return TileSizes(keys, next((n for most, n in ROWS_OF_KEYS if aligned <= most), FEWEST_ROWS))
