"""How index tuples and rows are split over cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import INT32, INT64
from npusim.data.integers import align_down
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.npu_scatter_nd_update.contract import Problem

__all__ = ["Plan", "tile"]

MOST_TUPLES, TUPLE_UNIT = 4096, 32
"""Of a tile: the most, and what it is a multiple of (scatter_nd_update_tiling, arch22)."""
SORTED_ROWS = 2**24
"""Below so many rows indices are sorted, as float32 holds them (the same file)."""
MORE_WORDS = 3
"""A tuple takes its numbers and so many more words of the buffer (the same file)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core makes tiles of tuples ready, then replaces the rows of a range of its own."""

    template: Literal["sorted", "scanned"]
    tile_tuples: int
    rows_of_core: tuple[range, ...]


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """As many cores as there are rows and tuples for; None without tuples.

    ops-nn@e5c3fa9 index/scatter_nd_update/op_host/arch22. Assumed: that rows are dealt out evenly.
    """
    if not p.count:
        return None
    cores = min(len(spec.vector_cores), p.rows, p.count)
    words = len(p.strides) * (2 if p.index_type is INT64 else 1) + MORE_WORDS
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    most = align_down(ub_bytes // INT32.nbytes(words), TUPLE_UNIT)
    is_sorted = p.rows < SORTED_ROWS
    return Plan(
        block_dim=cores,
        template="sorted" if is_sorted else "scanned",
        reason=f"{'fewer than' if is_sorted else 'at least'} {SORTED_ROWS} rows",
        tile_tuples=min(MOST_TUPLES, most),
        rows_of_core=tuple(share(p.rows, cores, core) for core in range(cores)),
        workspaces={"rows": INT32.nbytes(p.count), "positions": INT32.nbytes(p.count)},
    )
