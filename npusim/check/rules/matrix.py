"""Rules of the cube and its inputs and outputs: mte1, cube, fixpipe, and L0C to the buffer."""

from __future__ import annotations

from npusim.check.rules.copies import ATOMIC_DTYPES
from npusim.check.rules.fractals import FILLING
from npusim.check.rules.rule import Place, Rule, names, operands
from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    UINT8,
    UINT64,
    DType,
)
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import (
    BroadcastToL0c,
    CopyL0c,
    Fixpipe,
    Global,
    LoadData,
    LoadFractals,
    LoadImage,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    ends,
)

__all__ = ["OPERAND_DTYPES", "RULES", "SUMS"]

# asc-devkit, docs/zh: the pages of LoadData, Mmad, Fixpipe and of each buffer.
ALIGNED_BYTES = {"ub": 32, "l1": 32, "l0a": 512, "l0b": 512, "l0c": 64, "bt": 64, "fb": 64}
MMAD_DST_BYTES = 1024
MMAD_EXTENT = 4095
# Types for which the device files give the k per cycle, with sources.
OPERAND_DTYPES = {"2201": (FLOAT16, BFLOAT16, FLOAT32, INT8, INT4), "2002": (FLOAT16, INT8)}
SUMS = {FLOAT16: FLOAT32, BFLOAT16: FLOAT32, FLOAT32: FLOAT32, INT8: INT32, INT4: INT32}
TABLES = ((FLOAT16, FLOAT32), (FLOAT32, FLOAT32), (INT32, INT32))
# asc-devkit, 矩阵搬出关键特性说明/随路量化.md.
FIXPIPE_DTYPES: dict[str, tuple[tuple[DType, DType], ...]] = {
    "none": ((FLOAT32, FLOAT32), (INT32, INT32)),
    "cast": ((FLOAT32, FLOAT16), (FLOAT32, BFLOAT16)),
    "deqf16": ((INT32, FLOAT16),),
    "req8": ((INT32, INT8), (INT32, UINT8)),
    "qf322b8": ((FLOAT32, INT8), (FLOAT32, UINT8)),
}
# asc-devkit, impl/basic_api/dav_m200/kernel_operator_data_copy_impl.h.
COPY_L0C_DTYPES: dict[str, tuple[tuple[DType, DType], ...]] = {
    "none": ((FLOAT32, FLOAT32), (INT32, INT32)),
    "cast": ((FLOAT32, FLOAT16),),
    "deqf16": ((INT32, FLOAT16),),
    "req8": ((INT32, INT8),),
}
# Types of L0C, see SUMS; which of them the instruction accepts is assumed.
BROADCAST_DTYPES = (FLOAT32, INT32)
SCALED = ("deqf16", "req8", "qf322b8")
L1_DTYPES = (FLOAT16, BFLOAT16, INT8)


def _way(
    op: LoadData | LoadFractals | LoadImage | LoadTable | Fixpipe | CopyL0c | BroadcastToL0c,
) -> str:
    return "_to_".join(ends(op))


def _ways(op: MicroOp, place: Place) -> tuple[str, ...]:
    """The paths that a micro-op of its kind can take and that the core has."""
    ways: dict[type, tuple[str, ...]] = {
        **dict.fromkeys((LoadData, *FILLING), ("l1_to_l0a", "l1_to_l0b")),
        LoadTable: ("l1_to_bt", "l1_to_fb"),
        Fixpipe: ("l0c_to_gm", "l0c_to_l1"),
        CopyL0c: ("l0c_to_ub",),
        BroadcastToL0c: ("ub_to_l0c",),
    }
    return tuple(way for way in ways[type(op)] if way in place.core.paths)


def _aligned(local: Local) -> bool:
    return local.offset_bytes % ALIGNED_BYTES[local.buffer] == 0


def _alignment_text(op: MicroOp, _: Place) -> str:
    bad = next(local for local in operands(op) if not _aligned(local))
    return (
        f"operands in {bad.buffer} must start at a multiple of {ALIGNED_BYTES[bad.buffer]} bytes, "
        f"not at {bad.offset_bytes}; align it"
    )


def _steps(op: LoadData) -> tuple[int, int]:
    """Required multiples of the first row and the first column of a tile."""
    width = c0(op.src.dtype)
    return (max(width, FRACTAL_ROWS) if op.transpose else FRACTAL_ROWS), width


def _filled(op: LoadData) -> int:
    """Elements of the whole fractals that a tile fills."""
    width = c0(op.src.dtype)
    if op.transpose:
        return align_up(op.rows, width) * align_up(op.columns, FRACTAL_ROWS)
    return align_up(op.rows, FRACTAL_ROWS) * align_up(op.columns, width)


def _is_row(op: Mmad) -> bool:
    return not op.gemv or op.m == 1


def _eaten(op: Mmad) -> tuple[int, int, int]:
    """Elements of the whole fractals of a, b and dst."""
    m, n = align_up(op.m, FRACTAL_ROWS), align_up(op.n, FRACTAL_ROWS)
    k = align_up(op.k, c0(op.a.dtype))
    return (k if op.gemv else m * k), k * n, m * n


def _modes(op: Fixpipe | CopyL0c) -> tuple[tuple[DType, DType], ...]:
    return (FIXPIPE_DTYPES if isinstance(op, Fixpipe) else COPY_L0C_DTYPES).get(op.mode, ())


def _out(op: Fixpipe | CopyL0c) -> DType:
    return op.dtype if isinstance(op, Fixpipe) else op.dst.dtype


def _columns(op: Fixpipe | CopyL0c) -> int:
    return op.n if isinstance(op, Fixpipe) else op.src.count // op.rows


def _copied_count(op: CopyL0c) -> int:
    """Elements in the unified buffer, with columns padded to 16, or to 32 for int8."""
    columns = op.src.count // op.rows
    width = 2 * FRACTAL_ROWS if op.dst.dtype is INT8 else FRACTAL_ROWS
    return op.rows * align_up(columns, width)


def _scale_fits(op: Fixpipe | CopyL0c) -> bool:
    if op.mode not in SCALED or not isinstance(op.scale, Local):
        return (op.scale is not None) == (op.mode in SCALED)
    table = "fb" if isinstance(op, Fixpipe) else "ub"
    fits = op.scale.count == 1 or op.scale.count >= _columns(op)
    return op.scale.buffer == table and op.scale.dtype is UINT64 and fits


def _scale_text(op: Fixpipe | CopyL0c, _: Place) -> str:
    if op.mode not in SCALED:
        return f"mode {op.mode} must come without a scale, not with {op.scale}; drop it"
    table = "fb" if isinstance(op, Fixpipe) else "ub"
    came = f"{op.scale.count} in {op.scale}" if isinstance(op.scale, Local) else op.scale
    return (
        f"mode {op.mode} must come with one scale, or with uint64 for {_columns(op)} columns in "
        f"{table}, not {came}; load it first"
    )


def _bursts(op: Fixpipe) -> tuple[int, int]:
    """Number of bursts to global memory, and bytes of each."""
    if op.layout == "nd":
        return op.m, op.dtype.nbytes(op.n)
    return ceil_div(op.n, op.fractal_columns), op.dtype.nbytes(op.m * op.fractal_columns)


def _lays_out(op: Fixpipe) -> bool:
    """Whether Nz output has whole fractals, and only float32 is split."""
    if op.channel_split and not (op.layout == "nz" and op.dtype is FLOAT32):
        return False
    is_whole = op.n % op.fractal_columns == 0 and isinstance(op.dst, Global)
    return op.layout == "nd" or is_whole


def _destination_fits(op: Fixpipe) -> bool:
    if isinstance(op.dst, Global):
        return (op.dst.bursts, op.dst.burst_bytes) == _bursts(op)
    return op.dst_rows >= op.m


def _destination_text(op: Fixpipe, _: Place) -> str:
    if isinstance(op.dst, Global):
        (bursts, wanted), came = _bursts(op), f"{op.dst.bursts} of {op.dst.burst_bytes}"
        return f"global memory must get {bursts} bursts of {wanted} bytes, not {came}; change them"
    return f"dst_rows must be at least {op.m}, not {op.dst_rows}; raise it"


LOADS = (
    Rule(
        (LoadData,),
        lambda op, at: op.src.dtype is op.dst.dtype and op.src.dtype in OPERAND_DTYPES[at.arch],
        lambda op, at: (
            f"src and dst must share one of {names(OPERAND_DTYPES[at.arch])} on arch {at.arch}, "
            f"not {op.src.dtype.name}, {op.dst.dtype.name}; cast first"
        ),
    ),
    Rule(
        (LoadData,),
        lambda op, _: op.row % _steps(op)[0] == 0 == op.column % _steps(op)[1],
        lambda op, _: (
            f"a piece must begin at a row of {_steps(op)[0]} and a column of {_steps(op)[1]}, "
            f"not at {op.row}, {op.column}; cut between fractals"
        ),
    ),
    Rule(
        (LoadData,),
        lambda op, _: (
            op.row >= 0 <= op.column
            and op.rows > 0 < op.columns
            and op.row + op.rows <= op.src_rows
            and op.src_rows % FRACTAL_ROWS == 0
        ),
        lambda op, _: (
            f"a piece must lie within a matrix whose rows are a multiple of {FRACTAL_ROWS}, not "
            f"[{op.row}:+{op.rows}, {op.column}:+{op.columns}] of {op.src_rows} rows; cut it"
        ),
    ),
    Rule(
        (LoadData,),
        lambda op, _: op.dst.count >= _filled(op),
        lambda op, _: (
            f"dst must hold the {_filled(op)} elements of whole fractals, not {op.dst.count}; "
            f"claim more or load less"
        ),
    ),
    Rule(
        (LoadTable,),
        lambda op, _: (
            (op.src.dtype, op.dst.dtype) in TABLES
            if op.dst.buffer == "bt"
            else op.src.dtype is op.dst.dtype is UINT64
        ),
        lambda op, _: (
            f"the bias table must get float32 from float16 or float32, or int32, and the fixpipe "
            f"buffer uint64, not {op.dst.dtype.name} from {op.src.dtype.name} in {op.dst.buffer}; "
            f"cast first"
        ),
    ),
    Rule(
        (LoadTable,),
        lambda op, _: op.src.count == op.dst.count > 0,
        lambda op, _: (
            f"operands must have the same number of elements, and at least one, not "
            f"{op.src.count}, {op.dst.count}; cut them alike"
        ),
    ),
)

MMADS = (
    Rule(
        (Mmad,),
        lambda op, at: _is_row(op) and not (op.gemv and at.arch != "2201"),
        lambda op, at: (
            f"gemv must be of one row on arch 2201, not of {op.m} on arch {at.arch}; take a matrix"
        ),
    ),
    Rule(
        (Mmad,),
        lambda op, _: (op.a.buffer, op.b.buffer, op.dst.buffer) == ("l0a", "l0b", "l0c"),
        lambda op, _: (
            f"a, b and dst must lie in l0a, l0b and l0c, not in "
            f"{op.a.buffer}, {op.b.buffer} and {op.dst.buffer}; load them there"
        ),
    ),
    Rule(
        (Mmad,),
        lambda op, at: (
            op.a.dtype is op.b.dtype
            and op.a.dtype in OPERAND_DTYPES[at.arch]
            and op.dst.dtype is SUMS[op.a.dtype]
        ),
        lambda op, at: (
            f"a and b must share one of {names(OPERAND_DTYPES[at.arch])} on arch {at.arch} and "
            f"dst be float32 for floats, int32 for integers, not {op.a.dtype.name}, "
            f"{op.b.dtype.name} and {op.dst.dtype.name}; cast first"
        ),
    ),
    Rule(
        (Mmad,),
        lambda op, _: all(1 <= extent <= MMAD_EXTENT for extent in (op.m, op.n, op.k)),
        lambda op, _: (
            f"m, n and k must lie in [1, {MMAD_EXTENT}], not be {op.m}, {op.n}, {op.k}; "
            f"use smaller tiles"
        ),
    ),
    Rule(
        (Mmad,),
        lambda op, _: all(
            local.count >= wanted
            for local, wanted in zip((op.a, op.b, op.dst), _eaten(op), strict=True)
        ),
        lambda op, _: (
            f"a, b and dst must hold whole fractals, {', '.join(map(str, _eaten(op)))} elements, "
            f"not {op.a.count}, {op.b.count}, {op.dst.count}; claim more"
        ),
    ),
    Rule(
        (Mmad,),
        lambda op, _: op.dst.offset_bytes % MMAD_DST_BYTES == 0,
        lambda op, _: (
            f"dst must start at a multiple of {MMAD_DST_BYTES} bytes, not at "
            f"{op.dst.offset_bytes}; align it"
        ),
    ),
    Rule(
        (Mmad,),
        lambda op, _: (
            op.bias is None
            if op.init != "bias"
            else op.bias is not None
            and op.bias.buffer == "bt"
            and op.bias.dtype is op.dst.dtype
            and op.bias.count >= op.n
        ),
        lambda op, _: (
            f"a bias must be {op.n} elements of {op.dst.dtype.name} in bt, given if init is bias "
            f"and only then, not {op.bias} with init {op.init}; fix one of them"
        ),
    ),
)

DRAINS = (
    Rule(
        (Fixpipe, CopyL0c),
        lambda op, _: (op.src.dtype, _out(op)) in _modes(op),
        lambda op, _: (
            f"mode {op.mode} must turn "
            f"{' or '.join(f'{a.name} into {b.name}' for a, b in _modes(op)) or 'nothing here'}, "
            f"not {op.src.dtype.name} into {_out(op).name}; use another mode"
        ),
    ),
    Rule(
        (Fixpipe,),
        lambda op, _: op.m > 0 < op.n and op.src_rows >= op.m and op.src_rows % FRACTAL_ROWS == 0,
        lambda op, _: (
            f"src_rows must be a multiple of {FRACTAL_ROWS} and at least the rows of a piece, "
            f"not {op.src_rows} for {op.m}x{op.n}; round it up"
        ),
    ),
    Rule(
        (CopyL0c,),
        lambda op, _: (
            op.rows > 0 == op.rows % FRACTAL_ROWS
            and op.dst.count == _copied_count(op) > 0
            and op.src.count % (op.rows * FRACTAL_ROWS) == 0
        ),
        lambda op, _: (
            f"src and dst must be the same whole fractals, in L0C of {FRACTAL_ROWS} x "
            f"{FRACTAL_ROWS}, not {op.src.count} and {op.dst.count} elements of {op.rows} rows; "
            f"cut them alike"
        ),
    ),
    Rule((Fixpipe, CopyL0c), lambda op, _: _scale_fits(op), _scale_text),
    Rule(
        (Fixpipe,),
        lambda op, _: _lays_out(op),
        lambda op, _: (
            f"Nz must go to global memory, in fractals of {op.fractal_columns} columns that n is a "
            f"multiple of, those of float32 alone split, not {op.n} of {op.dtype.name} to "
            f"{_way(op).split('_')[-1]}; use nd, or pad n"
        ),
    ),
    Rule((Fixpipe,), lambda op, _: _destination_fits(op), _destination_text),
    Rule(
        (Fixpipe,),
        lambda op, _: (
            isinstance(op.dst, Local)
            or op.dst.bursts == 1
            or op.dst.stride_bytes >= op.dst.burst_bytes
        ),
        lambda op, _: (
            f"rows must lie at least their {op.dst.burst_bytes} bytes apart in global memory, not "
            f"{op.dst.stride_bytes}; raise the stride"
        ),
    ),
    Rule(
        (Fixpipe,),
        lambda op, _: isinstance(op.dst, Global) or op.dtype in L1_DTYPES,
        lambda op, _: (
            f"what goes to l1 must be one of {names(L1_DTYPES)}, not {op.dtype.name}; "
            f"use another mode or go to global memory"
        ),
    ),
    Rule(
        (Fixpipe,),
        lambda op, _: not op.atomic or (isinstance(op.dst, Global) and op.dtype in ATOMIC_DTYPES),
        lambda op, _: (
            f"what is combined must be one of {names(ATOMIC_DTYPES)} and go to global memory, not "
            f"{op.dtype.name} to {_way(op).split('_')[-1]}; combine it on a vector core"
        ),
    ),
)

UNIT_FLAGS = (
    Rule(
        (Mmad, Fixpipe),
        lambda op, at: not op.unit_flag or at.arch == "2201",
        lambda _, at: f"unit_flag must be False on arch {at.arch}, not True; use flags alone",
    ),
)

BROADCASTS = (
    Rule(
        (BroadcastToL0c,),
        lambda op, _: op.src.dtype is op.dst.dtype and op.src.dtype in BROADCAST_DTYPES,
        lambda op, _: (
            f"src and dst must share one of {names(BROADCAST_DTYPES)}, not "
            f"{op.src.dtype.name}, {op.dst.dtype.name}; cast first"
        ),
    ),
    Rule(
        (BroadcastToL0c,),
        lambda op, _: (
            op.rows > 0 == op.rows % FRACTAL_ROWS == op.src.count % FRACTAL_ROWS
            and op.dst.count == op.src.count * op.rows
        ),
        lambda op, _: (
            f"rows and columns must be multiples of {FRACTAL_ROWS} and dst hold each column so "
            f"often, not {op.dst.count} elements for {op.rows} rows of {op.src.count}; "
            f"pad them"
        ),
    ),
)

RULES = (
    Rule(
        (LoadData, *FILLING, LoadTable, Fixpipe, CopyL0c, BroadcastToL0c),
        lambda op, at: _way(op) in _ways(op, at),
        lambda op, at: (
            f"it must go a way that {at.kind} has for it, one of "
            f"{', '.join(_ways(op, at)) or 'none'}, not {_way(op)}; take another buffer"
        ),
    ),
    Rule(
        (LoadData, *FILLING, LoadTable, Mmad, Fixpipe, CopyL0c, BroadcastToL0c),
        lambda op, _: all(_aligned(local) for local in operands(op)),
        _alignment_text,
    ),
    *LOADS,
    *MMADS,
    *DRAINS,
    *UNIT_FLAGS,
    *BROADCASTS,
)
