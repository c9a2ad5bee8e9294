"""npu_format_cast: a matrix converted from ND to FRACTAL_NZ, or back.

.. code-block:: text

    ND           (..., m, n)                 row-major
    FRACTAL_NZ   (..., n1, m1, 16, C0)       n1 = ceil(n / C0), m1 = ceil(m / 16), C0 in 32 bytes

Edges are padded with zeros (asc-devkit, docs/zh, 关键分形格式详解.md). acl_format is 2 for ND and
29 for FRACTAL_NZ (acl_base.h, aclFormat); their names are accepted as well. A tensor that has the
format already is returned unchanged, and no kernel runs.

The vendor's kernel is TransData, which is closed source; this one does the same with the existing
micro-ops: rows into the unified buffer, block copies there, fractals out. Its split over cores and
buffers is assumed, as is that rows lie there without gaps, so that vertically adjacent blocks can
fall into the same group of banks. A transposed view of an ND array is made contiguous first, by a
separate kernel that is not timed; one of a FRACTAL_NZ tensor is stored in the order of its memory.

Accepted are two to six dimensions (those of the matrix products' weights, ops-nn) of float16,
float32, int8, int32 and, except on 310P, bfloat16. Elements smaller than a byte come packed in
int32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8, Array, DType
from npusim.data.errors import Code, OpError, shown
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.data.tensor import LAYOUTS, Operand, Tensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, MAX_REPEATS, Copy, Local, ScalarAlu, ScalarLoop, ScalarStore
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.kernel.steps import Integers
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row

FORMATS: dict[object, str] = {2: "ND", 29: "FRACTAL_NZ", "ND": "ND", "FRACTAL_NZ": "FRACTAL_NZ"}
"""acl_format -> layout."""
RANKS = (2, 6)
"""The fewest and the most dimensions of x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: `batch` matrices of `rows` x `row_bytes`, in memory order."""

    x: Operand

    @property
    def is_done(self) -> bool:
        """Whether *x* has the format already."""
        return self.x.spec.layout == self.output.layout

    @property
    def to_fractals(self) -> bool:
        return self.output.layout == "FRACTAL_NZ"

    @property
    def batch(self) -> int:
        return prod(self.x.shape[:-2])

    @property
    def rows(self) -> int:
        return self.x.shape[-1 if self.x.spec.transposed else -2]

    @property
    def row_bytes(self) -> int:
        return self.x.element.nbytes(self.x.shape[-2 if self.x.spec.transposed else -1])

    @property
    def fractals_m(self) -> int:
        """Rows of fractals (m1)."""
        return ceil_div(self.rows, FRACTAL_ROWS)

    @property
    def fractals_n(self) -> int:
        """Columns of fractals (n1), each a block of 32 bytes."""
        return ceil_div(self.row_bytes, BLOCK_BYTES)


SUPPORT = (
    Row(on=A2_A3, x=Operands((FLOAT16, BFLOAT16, FLOAT32, INT8, INT32), LAYOUTS, RANKS)),
    Row(on=ATLAS_INFERENCE, x=Operands((FLOAT16, FLOAT32, INT8, INT32), LAYOUTS, RANKS)),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    found, acl_format = contract.matrix("x"), contract.value("acl_format")
    is_known = isinstance(acl_format, int | np.integer | str) and acl_format in FORMATS
    contract.require(
        is_known and not isinstance(acl_format, bool),
        f"acl_format must be 2 (ND) or 29 (FRACTAL_NZ), not {shown(acl_format)}; pass one of them",
    )
    layout = FORMATS[acl_format]
    if found.spec.layout == "ND" and layout != "ND":
        found = replace(found, spec=replace(found.spec, transposed=False))
    return Problem(inputs=(found,), outputs={"output": replace(found.spec, layout=layout)}, x=found)


# ---- tiling ----

DEPTH = 2
"""Buffers of each queue: one is loaded while the other is converted."""
LINE_BLOCKS = 16
"""Columns are split in whole cache lines of 512 bytes, over cores and into pieces."""
LEAST_BLOCKS = 2
"""A piece with the ragged end of the rows is at least this many blocks wide, so that 310P, which
stores whole blocks, can finish it with an overlapping store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """A grid of cores over the fractal rows of all matrices and the columns."""

    fractal_rows_per_core: int
    blocks_per_core: int
    """Columns, in blocks of 32 bytes."""
    row_step: int
    """Rows of a piece, in whole fractals."""
    block_step: int
    """Columns of a piece, in blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Rectangles that fit the buffer, in the order of each core's work; each field has one entry
    for each of them."""

    core: Integers
    nd_bytes: Integers
    """Start in ND."""
    nz_bytes: Integers
    """Start in FRACTAL_NZ."""
    rows: Integers
    blocks: Integers
    width_bytes: Integers
    """Bytes of a row in ND: fewer than its blocks hold at a ragged end."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """Split over all vector cores; None when there is nothing to do."""
    if p.is_done:
        return None
    cores = len(spec.vector_cores)
    if not p.to_fractals and p.row_bytes < spec.transfer.store_granule_bytes:
        # Rows narrower than a store overlap, so one core stores them in order.
        cores = 1
    total = p.batch * p.fractals_m
    lines = ceil_div(p.fractals_n, LINE_BLOCKS)
    per_core, lines_per_core = _share(total, lines, cores)
    blocks = min(lines_per_core * LINE_BLOCKS, p.fractals_n)

    # Each block is there once in ND and once in NZ.
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - spec.transfer.store_granule_bytes
    room_blocks = room // (2 * DEPTH * BLOCK_BYTES * FRACTAL_ROWS)
    step_m = min(per_core, p.fractals_m)
    step_n = min(blocks, align_down(room_blocks // step_m, LINE_BLOCKS))
    step_m = min(step_m, room_blocks // step_n, MAX_REPEATS * 8 // FRACTAL_ROWS)
    if not step_m:
        needed = 2 * DEPTH * BLOCK_BYTES * FRACTAL_ROWS * step_n
        raise OpError(
            Code.UNSUPPORTED,
            f"npu_format_cast: its tiles of {step_n} fractals must fit into the unified buffer of "
            f"{spec.name}, {room} bytes, not need {needed}; give the chip a larger one",
        )
    columns = len(list(pieces(p.fractals_n, blocks, LEAST_BLOCKS)))
    active = ceil_div(total, per_core) * columns
    return Plan(
        block_dim=active,
        fractal_rows_per_core=per_core,
        blocks_per_core=blocks,
        row_step=step_m * FRACTAL_ROWS,
        block_step=step_n,
    )


def _share(rows: int, lines: int, cores: int) -> tuple[int, int]:
    """The smallest rectangle for a core, in fractal rows and cache lines; of equals the widest."""
    shares = (
        (ceil_div(rows, parts), ceil_div(lines, cores // parts))
        for parts in range(min(rows, cores), 0, -1)
    )
    return min(shares, key=lambda share: share[0] * share[1])


def pieces_of_cores(p: Problem, plan: Plan) -> Pieces:
    """The pieces of all cores: a grid of spans of fractal rows and of columns."""
    first, fractal_rows = _spans(p, plan)
    shares = list(pieces(p.fractals_n, plan.blocks_per_core, LEAST_BLOCKS))
    column, blocks, share = np.array(
        [
            (start + column, width, number)
            for number, (start, blocks) in enumerate(shares)
            for column, width in pieces(blocks, plan.block_step, LEAST_BLOCKS)
        ]
    ).T
    core = (first // plan.fractal_rows_per_core * len(shares))[:, None] + share
    order = np.argsort(core, axis=None, kind="stable")
    span, part = np.divmod(order, column.size)
    batch, fractal_row = np.divmod(first[span], p.fractals_m)
    row, column, blocks = fractal_row * FRACTAL_ROWS, column[part], blocks[part]
    fractal_bytes = FRACTAL_ROWS * BLOCK_BYTES
    return Pieces(
        core=core.reshape(-1)[order],
        nd_bytes=(batch * p.rows + row) * p.row_bytes + column * BLOCK_BYTES,
        nz_bytes=((batch * p.fractals_n + column) * p.fractals_m + fractal_row) * fractal_bytes,
        rows=np.minimum(fractal_rows[span] * FRACTAL_ROWS, p.rows - row),
        blocks=blocks,
        width_bytes=np.minimum(blocks * BLOCK_BYTES, p.row_bytes - column * BLOCK_BYTES),
    )


def _spans(p: Problem, plan: Plan) -> tuple[Integers, Integers]:
    """First fractal row, counted over all matrices, and number of them, of each span.

    No span reaches into the next core or the next matrix.
    """
    total, step = p.batch * p.fractals_m, plan.row_step // FRACTAL_ROWS
    cuts = np.union1d(
        np.arange(0, total, plan.fractal_rows_per_core), np.arange(0, total, p.fractals_m)
    )
    ends = np.append(cuts[1:], total)
    steps = -(-(ends - cuts) // step)
    number = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    first = np.repeat(cuts, steps) + number * step
    return first, np.minimum(step, np.repeat(ends, steps) - first)


# ---- kernel ----

BLOCK_LANES = 16
"""Blocks are copied as bits, in units of 16 lanes, whatever their type."""
UNITS: dict[int, DType] = {1: UINT8, 2: FLOAT16, 4: INT32, 8: INT64}
"""Bytes -> the type with which the scalar pipe stores that many."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Let each core convert its pieces in turn, as rows and as columns of blocks in the buffer.

    One Copy moves a column of blocks between the two, eight rows in a repeat:

    .. code-block:: text

        rows      block (r, c) at r * pitch + c         block stride pitch, repeat stride 8 * pitch
        columns   block (r, c) at c * rows_padded + r   contiguous
    """
    core = VectorCore("npu_format_cast", spec)
    piece_bytes = plan.row_step * plan.block_step * BLOCK_BYTES
    x_in, y_out = core.vecin(UINT8, piece_bytes, DEPTH), core.vecout(UINT8, piece_bytes, DEPTH)
    core.claim_tails()

    def to_fractals(x: GmView, output: GmView) -> None:
        """Convert *x* `(rows, width_bytes)` to *output* `(blocks, rows_padded x 32)`."""
        rows_padded, pitch = align_up(x.rows, FRACTAL_ROWS), output.rows
        loaded, out = core.load(x_in, x, pitch * BLOCK_BYTES), y_out.alloc()
        _clear_edges(core, loaded, x.rows, x.row_bytes, pitch)
        # (rows_padded, pitch) blocks -> (blocks, rows_padded) blocks, one column in each Copy
        for column in range(output.rows):
            rows = _column_of_rows(loaded, column, rows_padded, pitch)
            core.emit(Copy(_column(out, column, rows_padded), rows))
        x_in.free(loaded)
        core.store(y_out, out, output, output.row_bytes)

    def from_fractals(x: GmView, output: GmView) -> None:
        """Convert *x* `(blocks, rows_padded x 32)` to *output* `(rows, width_bytes)`."""
        rows_padded, pitch = align_up(output.rows, FRACTAL_ROWS), x.rows
        loaded, out = core.load(x_in, x, x.row_bytes), y_out.alloc()
        # (blocks, rows_padded) blocks -> (rows_padded, pitch) blocks, one column in each Copy
        for column in range(x.rows):
            # Columns interleave; their byte ranges overlap, so a barrier orders the copies.
            core.copy(
                _column_of_rows(out, column, rows_padded, pitch),
                _column(loaded, column, rows_padded),
            )
        x_in.free(loaded)
        core.store(y_out, out, output, pitch * BLOCK_BYTES)

    found = pieces_of_cores(p, plan)
    stage = to_fractals if p.to_fractals else from_fractals
    return core.launch(Step(stage, _views(p, found), found.core))


def _views(p: Problem, found: Pieces) -> tuple[GmViews, GmViews]:
    """Views of the pieces in the input and in the output, as bytes.

    In ND a piece is `(rows, width_bytes)`; in FRACTAL_NZ a row of the view is a column of fractals,
    `(blocks, rows_padded x 32)`.
    """
    nd, nz = ("x", "output") if p.to_fractals else ("output", "x")
    column_bytes = p.fractals_m * FRACTAL_ROWS * BLOCK_BYTES
    fractal_bytes = -(-found.rows // FRACTAL_ROWS) * FRACTAL_ROWS * BLOCK_BYTES
    in_nd = GmViews(nd, UINT8, found.rows, found.width_bytes, p.row_bytes, found.nd_bytes)
    in_nz = GmViews(nz, UINT8, found.blocks, fractal_bytes, column_bytes, found.nz_bytes)
    return (in_nd, in_nz) if p.to_fractals else (in_nz, in_nd)


def _clear_edges(core: VectorCore, tile: Local, rows: int, width_bytes: int, pitch: int) -> None:
    """Zero the rows below the last one and, if the load left other bytes there, the row ends."""
    # The rows that pad the last fractal are zero.
    missing = (align_up(rows, FRACTAL_ROWS) - rows) * pitch
    if missing:
        start = rows * pitch * BLOCK_BYTES
        below = tile[start : start + missing * BLOCK_BYTES]
        core.duplicate(below.as_dtype(FLOAT16), 0.0)
    end_bytes = align_up(width_bytes, BLOCK_BYTES)
    # A load in whole granules leaves bytes of the next row after the ragged edge.
    if end_bytes > width_bytes and core.spec.transfer.load_granule_bytes > 1:
        core.sync("vector", "scalar")
        # Stores of the widest type that divides the gap, each repeated for all rows.
        unit = gcd(end_bytes - width_bytes, 8)
        for start in range(width_bytes, end_bytes, unit):
            first = tile[start : start + unit].as_dtype(UNITS[unit])
            store = ScalarStore(first, "zero", pitch * BLOCK_BYTES)
            core.emit(ScalarLoop(rows, (ScalarAlu("and", "zero", 0, 0), store)))
        core.sync("scalar", "vector")


def _column(tile: Local, column: int, rows: int) -> Local:
    """A column of *rows* contiguous blocks."""
    start = column * rows * BLOCK_BYTES
    return tile[start : start + rows * BLOCK_BYTES].as_dtype(FLOAT16)


def _column_of_rows(tile: Local, column: int, rows: int, pitch: int) -> Local:
    """A column of *rows* blocks *pitch* apart."""
    whole = tile[column * BLOCK_BYTES :].as_dtype(FLOAT16, rows * BLOCK_LANES)
    return replace(whole, block_stride=pitch, repeat_stride=8 * pitch)


# ---- oracle ----


def oracle(given: ops.Given) -> Array | Tensor:
    """x of shape `(..., m, n)` in the layout of acl_format, its edges padded with zeros."""
    x: Array | Tensor = given.x
    layout = FORMATS[given.acl_format]
    is_now = x.layout if isinstance(x, Tensor) else "ND"
    if is_now == layout:
        return x
    whole = x.numpy() if isinstance(x, Tensor) else x
    return whole if layout == "ND" else Tensor.of(whole, layout)


def _is_done(given: ops.TorchArguments) -> bool:
    return bool(FORMATS.get(given["acl_format"]) == given["x"].layout)


TORCH = ops.TorchFunction(
    schema="npu_format_cast(Tensor self, int acl_format, int? customize_dtype=None, "
    "int? input_dtype=None) -> Tensor",
    # Assumed.
    aclnn=lambda _: "aclnnNpuFormatCast",
    outputs=lambda given, _: ((given["x"].shape, given["x"].dtype),),
    names={"self": "x"},
    types={"acl_format": "int|str"},
    absent=("customize_dtype", "input_dtype"),
    is_done=_is_done,
)
IN_PLACE = replace(
    TORCH,
    schema="npu_format_cast_(Tensor(a!) self, int acl_format) -> Tensor(a!)",
    absent=(),
)


OPERATOR = ops.Operator(
    kernel_type="TransData",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH, IN_PLACE),
)
