"""How npu_grouped_matmul_swiglu_quant is split over cores and buffers.

ops-transformer@c29bc10 gmm/grouped_matmul_swiglu_quant, op_host/op_tiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import INT4, INT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cube import BaseTile
from npusim.kernel.rows import pieces
from npusim.ops import _protocol
from npusim.ops.npu_grouped_matmul_swiglu_quant.contract import Group, Problem

__all__ = ["TILE", "TILE_OF_INT4", "Chunk", "Plan", "Tile", "chunks", "tile", "tiles_of_cores"]

TILE, TILE_OF_INT4 = BaseTile(128, 256, 128, 4, 4), BaseTile(128, 256, 256, 4, 4)
CHUNK_BYTES = 32 * 2**20
"""Of int32 sums that are made before vector cores begin with them, where there is more than two of
them."""
LOADED_ROWS = ((1024, 20), (2048, 9), (3072, 5), (4096, 4), (7168, 1))
"""n -> rows that a vector core loads at a time. Other n take as many bytes as the next of these
(assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Rows of sums that cube cores make before the vector cores begin, and rows of a load."""

    chunk_rows: int
    buffers: int
    """Chunks that the workspace holds."""
    loaded_rows: int
    tile_rows: int
    """Rows of x in a base tile."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Everything at once, or in chunks of 32 MiB of sums where there are more than two."""
    limit = CHUNK_BYTES // INT32.nbytes(p.n)
    is_whole = p.m <= 2 * limit
    chunk_rows, buffers = (p.m, 1) if is_whole else (limit, 2)
    reason = "the sums of all rows" if is_whole else f"chunks of {limit} rows"
    reason += f" fit into {CHUNK_BYTES // 2**20} MiB {'twice' if is_whole else 'each'}"
    if p.group_list.array is None:
        reason += "; group_list has no values, so every group is assumed to have an equal share"
    # Two float16 for each int32; of int4 a load has as many rows as a quarter of them (assumed).
    workspaces, rows = {"sums": INT32.nbytes(buffers * chunk_rows * p.n)}, _loaded_rows(p.n)
    if p.is_int4:
        workspaces["digits"] = INT4.nbytes(2 * p.m * p.k)
    return Plan(
        block_dim=spec.cores["aic"].count,
        template="whole" if is_whole else "chunks",
        reason=reason,
        is_mix=True,
        workspaces=workspaces,
        chunk_rows=chunk_rows,
        buffers=buffers,
        loaded_rows=max(1, rows // 4) if p.is_int4 else rows,
        tile_rows=TILE.m // p.rows_each,
    )


def _loaded_rows(n: int) -> int:
    size, rows = next((each for each in LOADED_ROWS if each[0] >= n), (n, 1))
    return max(1, rows * size // n)


class Chunk(NamedTuple):
    """Rows that the cube cores make before all vector cores begin with them."""

    number: int
    first: int
    groups: tuple[Group, ...]
    """What of each group lies in it, rows counted in x."""

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)


def chunks(p: Problem, plan: Plan) -> tuple[Chunk, ...]:
    """In order; together they have all rows that have a group."""
    found = []
    for number, (first, rows) in enumerate(pieces(p.rows, plan.chunk_rows)):
        groups = []
        for group in p.groups:
            start, end = max(group.first, first), min(group.first + group.rows, first + rows)
            groups.append(Group(group.expert, min(start, first + rows), max(0, end - start)))
        found.append(Chunk(number, first, tuple(groups)))
    return tuple(found)


class Tile(NamedTuple):
    """A block of the sums of a group."""

    expert: int
    row: int
    """In x."""
    column: int
    rows: int
    columns: int
    is_alone: bool
    """Whether its group has one block of rows, so that its weight is read once only."""


def tiles_of_cores(p: Problem, plan: Plan, chunk: Chunk) -> tuple[tuple[Tile, ...], ...]:
    """The blocks of each core: numbered through all groups, row after row of a group."""
    cores, height = plan.block_dim, plan.tile_rows
    shares: list[list[Tile]] = [[] for _ in range(cores)]
    index = 0
    for group in chunk.groups:
        is_alone = ceil_div(group.rows, height) == 1
        for row, rows in pieces(group.rows, height):
            for column, columns in pieces(p.n, TILE.n):
                one = Tile(group.expert, group.first + row, column, rows, columns, is_alone)
                shares[index % cores].append(one)
                index += 1
    return tuple(map(tuple, shares))
