"""The bytes that a micro-op touches, without gaps, and whether two such sets intersect.

Copies of several rows, strided operands, rows of fractals and loops of the scalar unit touch pieces
with gaps between them, which do not count. A set is stored as the shape of its pieces and its
offset, so a result for two shapes applies to all sets in the same relative position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_BYTES, FRACTAL_ROWS, c0
from npusim.isa import (
    BLOCK_BYTES,
    MICRO_OPS,
    BlockReduce,
    CopyToL1,
    Fixpipe,
    Global,
    Load,
    LoadData,
    LoadFractals,
    LoadNd2Nz,
    Local,
    MicroOp,
    Mmad,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    Store,
    Table,
    WholeReduce,
    places,
    reads,
    writes,
)

__all__ = ["Area", "common", "edges", "of_global", "of_local", "read", "written"]

Numbers = NDArray[np.int64]
Edges = tuple[Numbers, Numbers]
"""Starts and ends of the pieces of a set: ascending, disjoint, and not adjacent."""


class Rows(NamedTuple):
    """*pieces* of *nbytes*: *inner* of them *inner_stride* apart, the next group at *stride*."""

    nbytes: int
    pieces: int
    stride: int
    inner: int = 1
    inner_stride: int = 0


class Elements(NamedTuple):
    """The elements of an operand that is not a rectangle of blocks, at any offset."""

    operand: Local


class Scattered(NamedTuple):
    """Pieces of *nbytes* that begin at *starts*, relative to the first one."""

    nbytes: int
    starts: tuple[int, ...]


Shape = Rows | Elements | Scattered


class Area(NamedTuple):
    """Bytes of a buffer or of a tensor."""

    place: str
    start: int
    """The first byte touched."""
    end: int
    """One past the last byte touched."""
    shape: Shape | None = None
    """The pieces, if there are gaps between them."""


@lru_cache(maxsize=4096)
def edges(shape: Shape) -> Edges:
    """The edges of the pieces, relative to the start of the first piece."""
    if isinstance(shape, Elements):
        starts, nbytes = places(shape.operand), max(1, shape.operand.dtype.bits // 8)
    elif isinstance(shape, Scattered):
        starts, nbytes = np.array(shape.starts, np.int64), shape.nbytes
    else:
        numbers, nbytes = np.arange(shape.pieces), shape.nbytes
        starts = numbers // shape.inner * shape.stride + numbers % shape.inner * shape.inner_stride
    starts = np.sort(starts)
    # All have the same length, so what begins later ends later.
    first = np.flatnonzero(np.concatenate(([True], starts[1:] > starts[:-1] + nbytes)))
    last = np.append(first[1:] - 1, starts.size - 1)
    return starts[first], starts[last] + nbytes


def _area(place: str, offset: int, shape: Shape) -> Area:
    """The pieces of *shape*, the first of which begins at *offset*."""
    starts, ends = edges(shape)
    gapped = shape if starts.size > 1 else None
    return Area(place, offset + int(starts[0]), offset + int(ends[-1]), gapped)


def _rows(place: str, offset: int, nbytes: int, count: int, stride: int) -> Area:
    """*count* pieces of *nbytes*, *stride* bytes from start to start."""
    if count == 1:
        return Area(place, offset, offset + nbytes)
    return _area(place, offset, Rows(nbytes, count, stride))


def of_local(local: Local) -> Area:
    """The bytes of *local*."""
    if not local.is_strided:
        return Area(local.buffer, local.offset_bytes, local.offset_bytes + local.nbytes)
    if local.is_ragged:
        return _area(local.buffer, local.offset_bytes, Elements(replace(local, offset_bytes=0)))
    blocks = ceil_div(local.nbytes, BLOCK_BYTES)
    repeat, block = local.repeat_stride * BLOCK_BYTES, local.block_stride * BLOCK_BYTES
    shape = Rows(BLOCK_BYTES, blocks, repeat, local.repeat_blocks, block)
    return _area(local.buffer, local.offset_bytes, shape)


def of_global(place: Global, name: str, base_bytes: int = 0) -> Area:
    """The bytes of *place* in the tensor called *name*, whose bytes begin at *base_bytes*."""
    offset = base_bytes + place.offset_bytes
    return _rows(name, offset, place.burst_bytes, place.bursts, place.stride_bytes)


# ---- the intersection of two areas ----


def common(a: Area, b: Area) -> tuple[int, int] | None:
    """The first run of bytes that both touch, as start and end; None if there is none."""
    start, end = max(a.start, b.start), min(a.end, b.end)
    if a.place != b.place or start >= end:
        return None
    if a.shape is None and b.shape is None:
        return start, end
    found = _meet(a.shape, a.end - a.start, b.shape, b.end - b.start, b.start - a.start)
    return found and (a.start + found[0], a.start + found[1])


@lru_cache(maxsize=4096)
def _meet(
    a: Shape | None, a_bytes: int, b: Shape | None, b_bytes: int, further: int
) -> tuple[int, int] | None:
    """The intersection of two shapes, relative to the first byte of *a*; *b* is *further* on."""
    a_starts, a_ends = _from_zero(a, a_bytes)
    b_starts, b_ends = (edges + further for edges in _from_zero(b, b_bytes))
    # The first piece of b that ends after each piece of a begins.
    at = np.searchsorted(b_ends, a_starts, side="right")
    inside = np.flatnonzero(at < b_ends.size)
    inside = inside[b_starts[at[inside]] < a_ends[inside]]
    if not inside.size:
        return None
    i, j = int(inside[0]), int(at[inside[0]])
    return max(int(a_starts[i]), int(b_starts[j])), min(int(a_ends[i]), int(b_ends[j]))


def _from_zero(shape: Shape | None, nbytes: int) -> Edges:
    if shape is None:
        return np.zeros(1, np.int64), np.full(1, nbytes)
    starts, ends = edges(shape)
    return starts - starts[0], ends - starts[0]


# ---- the areas of each micro-op in the buffers of its core ----


def _load(op: Load) -> Area:
    where = op.dst.buffer, op.dst.offset_bytes
    return _rows(*where, op.row_bytes, op.src.bursts, op.pitch_bytes)


def _store(op: Store) -> Area:
    place = op.dst
    return _rows(
        op.src.buffer, op.src.offset_bytes, place.burst_bytes, place.bursts, op.pitch_bytes
    )


def _nd2nz(op: LoadNd2Nz) -> Area:
    # Columns of fractals with that many rows of 32 bytes: edges of C0 are zeros.
    blocks, rows = ceil_div(op.src.burst_bytes, BLOCK_BYTES), op.src.bursts
    where, column = (op.dst.buffer, op.dst.offset_bytes), op.dst_rows * BLOCK_BYTES
    if op.row_stride == 1:
        return _rows(*where, rows * BLOCK_BYTES, blocks, column)
    row = op.row_stride * BLOCK_BYTES
    return _area(*where, Rows(BLOCK_BYTES, blocks * rows, column, rows, row))


def _fractals_read(op: LoadFractals) -> Area:
    nbytes = op.inner * FRACTAL_BYTES
    where = op.src.buffer, op.src.offset_bytes
    return _rows(*where, nbytes, op.repeats, op.src_stride * nbytes)


def _fractals_written(op: LoadFractals) -> Area:
    steps = op.dst_stride * FRACTAL_BYTES, op.inner, op.inner_stride * FRACTAL_BYTES
    shape = Rows(FRACTAL_BYTES, op.repeats * op.inner, *steps)
    return _area(op.dst.buffer, op.dst.offset_bytes, shape)


def _load_data(op: LoadData) -> Area:
    # Whole fractals.
    width = c0(op.src.dtype)
    first = op.column // width * op.src_rows + op.row
    offset = op.src.offset_bytes + first * BLOCK_BYTES
    nbytes = align_up(op.rows, FRACTAL_ROWS) * BLOCK_BYTES
    blocks = ceil_div(op.columns, width)
    return _rows(op.src.buffer, offset, nbytes, blocks, op.src_rows * BLOCK_BYTES)


def _fixpipe_read(op: Fixpipe) -> Area:
    # Columns of 16 x 16 fractals, of which m rows are read.
    row_bytes = op.src.dtype.nbytes(FRACTAL_ROWS)
    blocks = ceil_div(op.n, FRACTAL_ROWS)
    where = op.src.buffer, op.src.offset_bytes
    return _rows(*where, op.m * row_bytes, blocks, op.src_rows * row_bytes)


def _fixpipe_written(op: Fixpipe) -> tuple[Area, ...]:
    if isinstance(op.dst, Global):
        return ()
    blocks, nbytes = ceil_div(op.n, c0(op.dtype)), op.m * BLOCK_BYTES
    where = op.dst.buffer, op.dst.offset_bytes
    return (_rows(*where, nbytes, blocks, op.dst_rows * BLOCK_BYTES),)


def _to_l1_read(op: CopyToL1) -> Area:
    where = op.src.buffer, op.src.offset_bytes
    return _rows(*where, op.burst_bytes, op.bursts, op.src_pitch_bytes)


def _to_l1_written(op: CopyToL1) -> Area:
    where = op.dst.buffer, op.dst.offset_bytes
    return _rows(*where, op.burst_bytes, op.bursts, op.dst_pitch_bytes)


def _results(op: BlockReduce | WholeReduce) -> tuple[Area, ...]:
    if op.places.size == op.dst.count:
        return (of_local(op.dst),)
    size = op.dst.dtype.bits // 8
    shape = Scattered(size, tuple((op.places * size).tolist()))
    return (_area(op.dst.buffer, op.dst.offset_bytes, shape),)


def _loop_part(local: Local, step_bytes: int, op: ScalarLoop) -> Area:
    return _rows(local.buffer, local.offset_bytes, local.nbytes, op.count, step_bytes)


def _loaded(op: ScalarLoop) -> tuple[Area, ...]:
    loads = (part for part in op.body if isinstance(part, ScalarLoad))
    return tuple(_loop_part(part.src, part.step_bytes, op) for part in loads)


def _stored(op: ScalarLoop) -> tuple[Area, ...]:
    stores = (part for part in op.body if isinstance(part, ScalarStore))
    return tuple(_loop_part(part.dst, part.step_bytes, op) for part in stores)


def _plain_reads(op: MicroOp) -> tuple[Area, ...]:
    return tuple([of_local(local) for local in reads(op)])


def _plain_writes(op: MicroOp) -> tuple[Area, ...]:
    return tuple([of_local(local) for local in writes(op)])


def _table_of(op: Fixpipe) -> tuple[Area, ...]:
    return (of_local(op.scale),) if isinstance(op.scale, Local) else ()


class _Touches(NamedTuple):
    reads: Callable[[Any], tuple[Area, ...]] = _plain_reads
    writes: Callable[[Any], tuple[Area, ...]] = _plain_writes


_TOUCHES = Table(
    "areas",
    "the pieces that it touches",
    [op for op in MICRO_OPS if any(role.touched for role in op.roles)],
    {
        Load: _Touches(writes=lambda op: (_load(op),)),
        Store: _Touches(reads=lambda op: (_store(op),)),
        LoadNd2Nz: _Touches(writes=lambda op: (_nd2nz(op),)),
        LoadData: _Touches(reads=lambda op: (_load_data(op),)),
        LoadFractals: _Touches(
            lambda op: (_fractals_read(op),), lambda op: (_fractals_written(op),)
        ),
        Mmad: _Touches(),
        Fixpipe: _Touches(lambda op: (_fixpipe_read(op), *_table_of(op)), _fixpipe_written),
        CopyToL1: _Touches(lambda op: (_to_l1_read(op),), lambda op: (_to_l1_written(op),)),
        ScalarLoop: _Touches(_loaded, _stored),
        WholeReduce: _Touches(writes=_results),
        BlockReduce: _Touches(writes=_results),
    },
)
_ALL: dict[type[MicroOp], _Touches] = {}
"""Those, and all others requested so far."""


def _touches(kind: type[MicroOp]) -> _Touches:
    found = _ALL.get(kind)
    if found is None:
        has_gaps = kind in _TOUCHES or any(role.touched for role in kind.roles)
        found = _ALL[kind] = _TOUCHES[kind] if has_gaps else _Touches()
    return found


def read(op: MicroOp) -> tuple[Area, ...]:
    """The areas that *op* reads in the buffers of its core, in the order of `npusim.isa.reads`."""
    return _touches(type(op)).reads(op)


def written(op: MicroOp) -> tuple[Area, ...]:
    """The areas that *op* writes in the buffers of its core."""
    return _touches(type(op)).writes(op)
