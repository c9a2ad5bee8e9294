"""Rules of operations with indices or masks: which rows a kernel moves, and how it finds them.

ops-nn@e5c3fa9, index/*/op_api, and op-plugin@517f2e7 (AdvancedIndex.cpp): NonZero first turns masks
into indices, and IndexCheck checks the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from npusim.torch.works.call import (
    FLOATS,
    HALF,
    Call,
    Works,
    axis_of,
    bits_of,
    cast,
    elements,
    move,
)
from npusim.torch.works.passes import Pass, RowPasses
from npusim.torch.works.rows import RowMoves, ScalarMoves
from npusim.torch.works.scans import Compaction
from npusim.torch.works.sorts import RowSort
from npusim.torch.works.streams import Stream
from npusim.torch.works.work import Work

__all__ = [
    "counted",
    "gathered",
    "index_add",
    "indexed",
    "looked_up",
    "places_of",
    "put",
    "scattered",
    "selected",
]

FOUND = (*FLOATS, torch.bool, torch.int8, torch.uint8)
"""Types that NonZero accepts on A2 and A3 (non_zero.cpp); others run on the AI CPU."""
BLOCK_BYTES = 32
"""Rows of at least this size are copied whole, shorter ones by the scalar unit (index.py)."""
MOST_STREAMED = 50_000
"""Most rows of a table of short rows that Index streams through the buffer (the same file)."""


def _chosen(call: Call, indices: Sequence[torch.Tensor | None]) -> tuple[list[Work], int, int]:
    """The kernels that turn masks into indices, the number of indices for a row, and their bits."""
    works, count, bits = list[Work](), 0, 64
    for index in indices:
        if index is None:
            continue
        if index.dtype in (torch.bool, torch.uint8):
            hits = call.outputs[0].shape[0] if call.outputs[0].dim() else 1
            works.append(_compaction(index, hits))
            count += index.dim()
        else:
            count, bits = count + 1, bits_of(index)
    return works, count, bits


def _compaction(mask: torch.Tensor, hits: int) -> Compaction:
    axes = max(1, mask.dim())
    return Compaction(
        kernel="NonZero", elements=mask.numel(), bits=bits_of(mask), hits=hits, axes=axes
    )


def indexed(call: Call, kernel: str) -> Works:
    """Index: masks are turned into indices, the indices are checked, and rows are moved."""
    x, indices = call.args[0], list(call.args[1])
    works, count, bits = _chosen(call, indices)
    y = call.outputs[0]
    width = prod(x.shape[max(place for place, i in enumerate(indices) if i is not None) + 1 :])
    works.append(_looked_at(y.numel() // max(1, width) * count, bits))
    return [*works, *_rows(kernel, x, y.numel() // max(1, width), width, count, bits)]


def _looked_at(count: int, bits: int) -> Work:
    """IndexCheck: the minimum and maximum of all indices."""
    return RowPasses(
        kernel="IndexCheck",
        rows=1,
        columns=count,
        bits=bits,
        passes=(Pass(("mul", "sub"), by_scalar=True), Pass(("sub",), by_scalar=True)),
        numbers=(32,),
    )


def _rows(
    kernel: str,
    table: torch.Tensor,
    rows: int,
    width: int,
    count: int,
    bits: int,
    adds: bool = False,
) -> list[Work]:
    """Moves of *rows* rows of *width* elements of *table*, each addressed by *count* indices."""
    nbytes = width * table.element_size()
    table_rows = max(1, table.numel() // max(1, width))
    if nbytes < BLOCK_BYTES and count == 1 and table_rows <= MOST_STREAMED:
        moved = rows * width
        return [
            ScalarMoves(
                kernel=kernel,
                count=moved,
                bits=bits_of(table),
                table=table.numel(),
                rows=max(1, moved // BLOCK_BYTES),
                index_bits=bits,
            )
        ]
    return [
        RowMoves(
            kernel=kernel,
            rows=rows,
            row_bytes=nbytes,
            table_rows=table_rows,
            index_bits=bits,
            indices=max(1, count),
            adds=adds,
        )
    ]


def put(call: Call, kernel: str) -> Works:
    """IndexPutV2, after masks are turned into indices."""
    x, indices, values = call.args[0], list(call.args[1]), call.args[2]
    works, count, bits = _chosen(call, indices)
    if works and values.numel() == 1:
        return [elements("MaskedFill", [x], call.outputs, ("mask",), x.numel())]
    width = prod(x.shape[max(place for place, i in enumerate(indices) if i is not None) + 1 :])
    adds = bool(call.value(3, "accumulate", False))
    first = [] if call.outputs[0] is x else [move(x)]
    rows = max(values.numel() // max(1, width), 1)
    return [*works, *first, *_rows(kernel, x, rows, width, count, bits, adds)]


def index_add(call: Call, kernel: str) -> Works:
    """InplaceScatterAdd; for 16-bit elements the indices are sorted first (aclnn_index_add.cpp)."""
    x, dim, index = call.args[:3]
    before, _, width = axis_of(x, dim)
    works = [] if call.outputs[0] is x else [move(x)]
    bits = bits_of(index)
    if x.dtype in HALF and index.numel() > 1:
        works.append(cast(index.numel(), bits, 32))
        works.append(
            RowSort(kernel="Sort", rows=1, columns=index.numel(), bits=32, kept=index.numel())
        )
        kernel = "InplaceIndexAddWithSorted"
    rows = before * index.numel()
    return [*works, *_rows(kernel, x, rows, width, 1, 32 if x.dtype in HALF else bits, True)]


def selected(call: Call, kernel: str) -> Works:
    """GatherV3 of parts of x along an axis, with more rows than are simulated one by one."""
    x, dim, index = call.args[:3]
    before, _, width = axis_of(x, dim)
    return _rows(kernel, x, before * index.numel(), width, 1, bits_of(index))


def looked_up(call: Call, kernel: str) -> Works:
    """GatherV2: a row of the table for each index."""
    table, indices = call.args[:2]
    return _rows(kernel, table, indices.numel(), table.shape[1], 1, bits_of(indices))


def gathered(call: Call, kernel: str) -> Works:
    """GatherElementsV2: rows of x and of the index are loaded; one instruction gathers a row."""
    x, index = call.args[0], call.args[2]
    if bits_of(index) == 64:
        yielded: list[Work] = [cast(index.numel(), 64, 32)]
    else:
        yielded = []
    work = Stream(
        kernel=kernel,
        elements=max(index.numel(), 1),
        loads=(bits_of(x), 32),
        stores=(bits_of(x),),
        steps=("mul", "mul", "add", "mul"),
    )
    return [*yielded, work]


def scattered(call: Call, kernel: str) -> Works:
    """ScatterElementsV2 along the first or last axis: the scalar unit moves the elements one by
    one."""
    x, dim, index = call.args[:3]
    if x.dim() and dim % x.dim() not in (0, x.dim() - 1):
        return None
    rows = x.numel() // max(1, axis_of(x, dim)[1])
    first = [] if call.outputs[0] is x else [move(x)]
    work = ScalarMoves(
        kernel=kernel,
        count=index.numel(),
        bits=bits_of(x),
        table=x.numel(),
        rows=rows,
        index_bits=bits_of(index),
    )
    return [*first, work]


def places_of(call: Call, _: str) -> Works:
    """NonZero, if it runs on the AI core."""
    x = call.args[0]
    if x.dtype not in FOUND or x.dim() == 0:
        return None
    return [_compaction(x, call.outputs[0].shape[0])]


def counted(call: Call, kernel: str) -> Works:
    """HistogramV2: the scalar unit of each core counts, the counts are summed; then a Cast."""
    x, y = call.args[0], call.outputs[0]
    work = ScalarMoves(
        kernel=kernel,
        count=x.numel(),
        bits=32,
        table=y.numel(),
        rows=max(1, x.numel() // BLOCK_BYTES),
        index_bits=bits_of(x),
    )
    return [work, cast(y.numel(), 32, bits_of(y))]
