"""Rules of copies: mte2 and mte3, between global memory and the core, and from buffer to L1."""

from __future__ import annotations

from typing import get_args

import numpy as np

from npusim.check.rules.rule import Place, Rule, fits, names, offsets, operands
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT16, INT32, DType
from npusim.data.integers import align_up
from npusim.isa import (
    BLOCK_BYTES,
    MAX_BURSTS,
    AtomicOp,
    CopyToL1,
    Global,
    Load,
    LoadNd2Nz,
    Padding,
    Store,
    ends,
    global_operand,
    writes_global,
)

__all__ = ["ATOMIC_DTYPES", "RULES"]

FROM_GM = (Load, LoadNd2Nz)
TO_GM = (Store,)
ND2NZ_ROWS = 2**14
"""Assumed for Nd2NzParams: rows of the source and of the matrix in L1."""
GAP_BLOCKS = 2**16 - 1
"""Assumed for DataCopyParams: gaps between bursts have 16 bits and are counted in blocks."""
PADDED_GAP_BYTES = 2**32 - 1
"""Assumed for DataCopyExtParams (DataCopyPad): in global memory 32 bits, in bytes."""
# asc-devkit, SetAtomicAdd.md, SetAtomicMax(ISASI).md, SetAtomicMin(ISASI).md.
ATOMIC_DTYPES = (FLOAT32, FLOAT16, BFLOAT16, INT32, INT16, INT8)
ATOMIC_DTYPES_OF: dict[str, dict[AtomicOp, tuple[DType, ...]]] = {
    "2201": dict.fromkeys(get_args(AtomicOp), ATOMIC_DTYPES),
    "2002": {"add": (FLOAT32, FLOAT16, INT16), "max": (), "min": ()},
}


def _global(op: Load | LoadNd2Nz | Store) -> Global:
    place = global_operand(op)
    assert place is not None
    return place


def _bursts(op: Load | Store | CopyToL1) -> int:
    return op.bursts if isinstance(op, CopyToL1) else _global(op).bursts


def _granule(op: Load | Store, place: Place) -> int:
    transfer = place.spec.transfer
    return transfer.store_granule_bytes if writes_global(op) else transfer.load_granule_bytes


def _granular(op: Load | Store, place: Place) -> bool:
    where, granule = _global(op), _granule(op, place)
    return where.burst_bytes % granule == 0 and where.stride_bytes % granule == 0


def _path_names(op: Load | LoadNd2Nz | Store | CopyToL1) -> tuple[str, ...]:
    """The paths that a copy takes: to and from global memory past the L2, and through it."""
    src, dst = ends(op)
    if src == "gm":
        return f"gm_to_{dst}", f"l2_to_{dst}"
    return (f"{src}_to_gm", f"{src}_to_l2") if dst == "gm" else (f"{src}_to_{dst}",)


def _rows_apart(place: Global) -> bool:
    return place.bursts == 1 or place.stride_bytes >= place.burst_bytes


def _gap_limit(op: Load | Store, place: Place) -> int:
    return PADDED_GAP_BYTES if _granule(op, place) == 1 else GAP_BLOCKS * BLOCK_BYTES


def _gap(place: Global) -> int:
    """Bytes between two bursts."""
    return 0 if place.bursts == 1 else place.stride_bytes - place.burst_bytes


def _padded(nbytes: int) -> int:
    return align_up(nbytes, BLOCK_BYTES)


def _lie_apart(op: LoadNd2Nz) -> bool:
    """Whether no two blocks have the same destination."""
    rows, blocks = op.src.bursts, align_up(op.src.burst_bytes, BLOCK_BYTES) // BLOCK_BYTES
    if op.dst_rows > (rows - 1) * op.row_stride:
        return True
    places = op.row_stride * np.arange(rows)[:, None] + op.dst_rows * np.arange(blocks)
    return bool(np.unique(places).size == places.size)


def _row_bytes(op: Load | Store) -> int:
    """Bytes that a burst fills in the buffer."""
    return op.row_bytes if isinstance(op, Load) else _padded(op.dst.burst_bytes)


def _is_padded_well(op: Load, padding: Padding) -> bool:
    """asc-devkit, DataCopyPad（GMToUB非对齐数据搬运）.md, constraints."""
    dtype = op.dst.dtype
    sides = (dtype.nbytes(padding.left), dtype.nbytes(padding.right))
    if dtype.bits < 8 or max(sides) > BLOCK_BYTES or op.src.burst_bytes * 8 % dtype.bits:
        return False
    has_value = padding.value is None or fits(padding.value, dtype)
    return has_value and (dtype.bits < 64 or padding.value in (None, 0))


def _whole_blocks(op: CopyToL1) -> bool:
    """Whether bursts are whole blocks, and do not overlap."""
    pitches = (op.src_pitch_bytes, op.dst_pitch_bytes)
    apart = op.bursts == 1 or min(pitches) >= op.burst_bytes
    return apart and all(size % BLOCK_BYTES == 0 for size in (op.burst_bytes, *pitches))


RULES = (
    Rule(
        (Load, Store, CopyToL1),
        lambda op, _: _bursts(op) <= MAX_BURSTS,
        lambda op, _: (
            f"a copy must have at most {MAX_BURSTS} bursts, not {_bursts(op)}; make it several"
        ),
    ),
    Rule(
        (*FROM_GM, *TO_GM),
        lambda op, _: _rows_apart(_global(op)),
        lambda op, _: (
            f"bursts must lie at least their {_global(op).burst_bytes} bytes apart in global "
            f"memory, not {_global(op).stride_bytes}; raise the stride, or copy them one by one"
        ),
    ),
    Rule(
        (Load, Store),
        lambda op, at: _gap(_global(op)) <= _gap_limit(op, at),
        lambda op, at: (
            f"bursts must lie at most {_gap_limit(op, at)} bytes from end to start, not "
            f"{_gap(_global(op))}; copy them one by one"
        ),
    ),
    Rule(
        (*FROM_GM, *TO_GM, CopyToL1),
        lambda op, at: set(_path_names(op)) <= set(at.core.paths),
        lambda op, at: (
            f"a copy must go a way that {at.kind} has, one of {', '.join(at.core.paths)}, "
            f"not {' or '.join(_path_names(op))}; take another buffer"
        ),
    ),
    Rule(
        (*FROM_GM, *TO_GM, CopyToL1),
        lambda op, _: all(local.offset_bytes % BLOCK_BYTES == 0 for local in operands(op)),
        lambda op, _: (
            f"each operand must start at a multiple of {BLOCK_BYTES} bytes, not at "
            f"{offsets(op)}; align it"
        ),
    ),
    Rule(
        (Load, Store),
        lambda op, _: op.pitch_bytes % BLOCK_BYTES == 0 and _global(op).burst_bytes > 0,
        lambda op, _: (
            f"rows must be filled and lie whole blocks of {BLOCK_BYTES} bytes apart, not "
            f"{_global(op).burst_bytes} bytes every {op.pitch_bytes}; pad the rows"
        ),
    ),
    Rule(
        (Load, Store),
        lambda op, _: _global(op).bursts == 1 or op.pitch_bytes >= _row_bytes(op),
        lambda op, _: (
            f"rows must lie at least the {_row_bytes(op)} bytes apart that each "
            f"fills, not {op.pitch_bytes}; raise the pitch"
        ),
    ),
    Rule(
        (Load,),
        lambda op, at: op.padding is None or at.arch == "2201",
        lambda op, at: (
            f"bursts must have no padding on arch {at.arch}, not be {op.padding}; fill it in with "
            f"Duplicate"
        ),
    ),
    Rule(
        (Load,),
        lambda op, _: op.padding is None or _is_padded_well(op, op.padding),
        lambda op, _: (
            f"padding must be at most {BLOCK_BYTES} bytes to each side of whole elements of "
            f"{op.dst.dtype.name}, of a number that it has, or of 0 where it has 64 bits, not "
            f"{op.padding}, of bursts of {op.src.burst_bytes} bytes; change it"
        ),
    ),
    Rule(
        (Load, Store),
        _granular,
        lambda op, at: (
            f"bursts and strides must be multiples of {_granule(op, at)} bytes on arch "
            f"{at.arch}, not {_global(op).burst_bytes} and {_global(op).stride_bytes}; "
            f"copy row by row, and let the tail overlap"
        ),
    ),
    Rule(
        (Store,),
        lambda op, at: op.atomic is None or op.atomic in ATOMIC_DTYPES_OF[at.arch][op.atomic_op],
        lambda op, at: (
            f"what is combined by {op.atomic_op} must be one of "
            f"{names(ATOMIC_DTYPES_OF[at.arch][op.atomic_op]) or 'none'} on arch {at.arch}, not "
            f"{op.atomic.name}; combine it in the unified buffer"
        ),
    ),
    Rule(
        (Store,),
        lambda op, _: op.atomic is None or op.dst.burst_bytes * 8 % op.atomic.bits == 0,
        lambda op, _: (
            f"bursts must be whole elements of {op.atomic.name} to be combined, not "
            f"{op.dst.burst_bytes} bytes; change their size"
        ),
    ),
    Rule(
        (LoadNd2Nz,),
        lambda op, at: op.dst.buffer == "l1" and at.arch == "2201",
        lambda op, at: (
            f"nd2nz must go to l1 on arch 2201, not to {op.dst.buffer} on arch {at.arch}; "
            f"load row by row and copy block by block"
        ),
    ),
    Rule(
        (LoadNd2Nz,),
        lambda op, _: op.src.burst_bytes > 0 < op.src.bursts and _lie_apart(op),
        lambda op, _: (
            f"rows must be filled and each of their blocks have its own place, not "
            f"{op.src.bursts} rows of {op.src.burst_bytes} bytes every {op.row_stride} in "
            f"{op.dst_rows}; raise dst_rows"
        ),
    ),
    Rule(
        (LoadNd2Nz,),
        lambda op, _: op.dst_rows <= ND2NZ_ROWS,
        lambda op, _: (
            f"dst_rows must be at most {ND2NZ_ROWS}, not {op.dst_rows}; make it several copies"
        ),
    ),
    Rule(
        (LoadNd2Nz,),
        lambda op, _: op.src.burst_bytes * 8 % op.dst.dtype.bits == 0,
        lambda op, _: (
            f"rows must be whole elements of {op.dst.dtype.name}, not {op.src.burst_bytes} bytes; "
            f"change their size"
        ),
    ),
    Rule(
        (CopyToL1,),
        lambda op, _: _whole_blocks(op),
        lambda op, _: (
            f"pieces must be whole blocks of {BLOCK_BYTES} bytes that lie apart, not "
            f"{op.bursts}x{op.burst_bytes} bytes every {op.dst_pitch_bytes} <- "
            f"{op.src_pitch_bytes}; pad them"
        ),
    ),
)
