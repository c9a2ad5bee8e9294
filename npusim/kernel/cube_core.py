"""The verbs of a cube core: each writes a micro-op of its pipes, named as in Ascend C.

.. code-block:: text

    global memory --load_nd2nz--> L1 --load_data--> L0A, L0B --mmad--> L0C --fixpipe--> memory
                                  L1 --load_table-> bias table, fixpipe buffer

Pipes wait for each other only through queues of tiles; no verb writes a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from npusim.data.dtypes import FLOAT32, INT4, INT8, INT32, UINT64, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Fixpipe,
    Global,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    Mmad,
    QuantMode,
)
from npusim.kernel.core import Core, TileQueue
from npusim.kernel.matrices import GmMatrix, L1Matrix, l0c_elements, l1_elements, l1_rows
from npusim.kernel.views import GmView

__all__ = ["BiasTable", "CubeCore", "L0Pair", "MmadInit", "ScaleTable", "sums_dtype"]

__kernel_vocabulary__ = True

MmadInit = Literal["zero", "bias", "accumulate"]
"""Initial value of the sums in L0C: zero, a bias for each column, or what L0C holds."""


def sums_dtype(element: DType) -> DType:
    """The type in which products of *element* accumulate: int32 or fp32."""
    return INT32 if element in (INT8, INT4) else FLOAT32


class CubeCore(Core):
    """A core with a cube unit: a cube core of A2 and A3, or an AI core of Atlas inference."""

    def __init__(
        self, name: str, spec: DeviceSpec, kind: str | None = None, *, alone: bool = False
    ) -> None:
        """*kind* None is the first kind of core of *spec* that has a cube unit."""
        super().__init__(name, spec, kind or spec.cube_kind, alone=alone)

    # ---- room ----

    def l1_queue(
        self,
        operand: GmMatrix,
        extent: int,
        k: int,
        depth: int = 2,
        *,
        source: Pipe = "mte2",
    ) -> TileQueue:
        """A queue of pieces of *operand* in L1, which pipe *source* writes (A1, B1).

        A piece is *extent* rows (or columns) and *k* positions of k.
        """
        count = l1_elements(operand.dtype, extent, k, operand.k_is_first)
        return self.tiles(operand.dtype, count, source, "mte1", depth, "l1")

    def l1_tile(self, operand: GmMatrix, extent: int, k: int) -> Local:
        """Room in L1 for a piece of *operand* that remains resident."""
        count = l1_elements(operand.dtype, extent, k, operand.k_is_first)
        return self.tile(operand.dtype, count, "l1")

    def l0c_queue(
        self, dtype: DType, m: int, n: int, depth: int = 1, *, drain: Pipe = "fixpipe"
    ) -> TileQueue:
        """A queue of sums `(m, n)` in L0C, which pipe *drain* reads (CO1)."""
        return self.tiles(dtype, l0c_elements(m, n), "cube", drain, depth, "l0c")

    # ---- copies ----

    def load_nd2nz(self, dst: Local, src: GmView, dst_rows: int | None = None) -> None:
        """Copy rows of global memory to L1 as Nz of *dst_rows* rows (DataCopy with Nd2NzParams).

        By default *dst_rows* is the rows of *src*, rounded up to whole fractals.
        """
        rows = align_up(src.rows, FRACTAL_ROWS) if dst_rows is None else dst_rows
        self.emit(LoadNd2Nz(dst, src.operand, rows))

    def load_matrix(
        self,
        dst: Local,
        operand: GmMatrix,
        extent: int,
        count: int,
        k: int = 0,
        origin: int = 0,
    ) -> L1Matrix:
        """Copy a piece of *operand* to L1: ND becomes Nz on the way, FRACTAL_NZ is copied as it is.

        It has *extent* rows (or columns) from *origin* and *count* positions of k from *k*.
        """
        width = c0(operand.dtype)
        # (rows, columns) of the piece in global memory.
        rows, columns = (count, extent) if operand.k_is_first else (extent, count)
        rows_padded = l1_rows(operand.dtype, rows, operand.k_is_first)
        blocks_n = ceil_div(columns, width)
        # Nz in L1: (blocks_n, rows_padded, C0)
        tile = dst[: blocks_n * rows_padded * width]
        if operand.layout == "ND":
            row, column = (k, origin) if operand.k_is_first else (origin, k)
            piece = operand.view[row : row + rows, column : column + columns]
            self.load_nd2nz(tile, piece, rows_padded)
        else:
            rows = min(align_up(rows, FRACTAL_ROWS), rows_padded)
            # A burst is a column of fractals: (rows, 32 bytes), nz_stride_bytes apart in memory.
            offset, stride = operand.shift_k(k) + operand.shift(origin), operand.nz_stride_bytes
            src = Global(operand.name, offset, rows * BLOCK_BYTES, blocks_n, stride)
            self.data_copy(tile, src, rows_padded * BLOCK_BYTES)
        return L1Matrix(dst, extent, count, operand.k_is_first)

    def load_data(self, dst: Local, src: L1Matrix, extent: int, k: int) -> Local:
        """Copy *extent* x *k* of *src*, from the start of its part, to L0A or L0B (LoadData).

        A matrix with k first is transposed on the way. Returns the part of *dst* that is filled.
        """
        width, transpose = c0(src.tile.dtype), src.k_is_first
        rows, columns = (src.count, src.extent) if transpose else (src.extent, src.count)
        # Nz in L1: (columns / C0, rows_padded, C0). L0 receives whole fractals of it.
        rows_padded = l1_rows(src.tile.dtype, rows, transpose)
        matrix = src.tile[: rows_padded * align_up(columns, width)]
        filled = dst[: align_up(extent, FRACTAL_ROWS) * align_up(k, width)]
        # LoadData counts rows and columns of the matrix in L1: (k, extent) if it is transposed.
        first = (src.k, src.origin) if transpose else (src.origin, src.k)
        size = (k, extent) if transpose else (extent, k)
        self.emit(LoadData(filled, matrix, rows_padded, *first, *size, transpose))
        return filled

    def load_table(self, dst: Local, src: Local) -> None:
        """Copy a vector from L1 to the bias table or the fixpipe buffer (DataCopy, C1 to C2)."""
        self.emit(LoadTable(dst, src))

    # ---- products ----

    def mmad(
        self,
        dst: Local,
        a: Local,
        b: Local,
        shape: tuple[int, int, int],
        init: MmadInit = "zero",
        bias: Local | None = None,
        *,
        unit_flag: bool = False,
    ) -> None:
        """`dst (m, n) = start + a (m, k) @ b (k, n)` (Mmad); *shape* is (m, n, k).

        *init* selects the start: zero, *bias* in the bias table, or the contents of *dst*.
        """
        self.emit(Mmad(dst, a, b, *shape, init, bias, unit_flag))

    def fixpipe(
        self,
        dst: GmView,
        sums: Local,
        mode: QuantMode | None = None,
        scale: Local | int | None = None,
        *,
        atomic: bool = False,
        unit_flag: bool = False,
    ) -> None:
        """Copy *sums* of L0C, `(rows, columns)` of *dst*, to global memory (Fixpipe).

        *mode* None leaves them unchanged, or rounds fp32 to a *dst* of 16 bits. With *atomic* they
        are added to the contents of *dst*.
        """
        if mode is None:
            mode = "none" if dst.dtype is sums.dtype else "cast"
        src = sums[: l0c_elements(dst.rows, dst.columns)]
        size = dst.rows, dst.columns, align_up(dst.rows, FRACTAL_ROWS)
        op = Fixpipe(
            dst.operand, src, *size, dst.dtype, mode, scale, atomic=atomic, unit_flag=unit_flag
        )
        self.emit(op)

    def fixpipe_to_fractals(
        self, dst: GmView, sums: Local, shape: tuple[int, int], *, atomic: bool = False
    ) -> None:
        """*sums* of L0C, `(m, n)` of *shape*, to global memory as Nz (Fixpipe).

        *dst* is `(n / 16, m x 16)`: a row for each column of fractals.
        """
        rows = align_up(shape[0], FRACTAL_ROWS)
        op = Fixpipe(
            dst.operand, sums[: l0c_elements(*shape)], *shape, rows, dst.dtype, layout="nz",
            atomic=atomic,
        )  # fmt: skip
        self.emit(op)

    def fixpipe_to_l1(
        self,
        dst: Local,
        sums: Local,
        shape: tuple[int, int],
        dst_rows: int,
        mode: QuantMode | None = None,
        scale: Local | int | None = None,
    ) -> None:
        """Copy *sums* of L0C, `(m, n)` of *shape*, to L1 as Nz of *dst_rows* rows (Fixpipe)."""
        if mode is None:
            mode = "none" if dst.dtype is sums.dtype else "cast"
        rows = align_up(shape[0], FRACTAL_ROWS)
        self.emit(Fixpipe(dst, sums, *shape, rows, dst.dtype, mode, scale, dst_rows=dst_rows))


class L0Pair:
    """Parts of both operands in L0A and L0B, double buffered: two load while two are multiplied."""

    def __init__(self, core: CubeCore, dtype: DType, m: int, n: int, k: int) -> None:
        """Claim room for (m, k) and (k, n) of *dtype*, two of each; raises ProgramError."""
        self._core = core
        m, n, k = align_up(m, FRACTAL_ROWS), align_up(n, FRACTAL_ROWS), align_up(k, c0(dtype))
        # One event for both: the parts in L0B have no queue.
        self._left = core.tiles(dtype, m * k, "mte1", "cube", 2, "l0a")
        self._right = {
            slot.offset_bytes: core.tile(dtype, n * k, "l0b") for slot in self._left.queue.slots
        }

    def multiply(
        self,
        dst: Local,
        a: L1Matrix,
        b: L1Matrix,
        shape: tuple[int, int, int],
        init: MmadInit = "zero",
        bias: Local | None = None,
        *,
        before: Callable[[], None] | None = None,
        unit_flag: bool = False,
    ) -> None:
        """Add *a* times *b* of *shape* (m, n, k) in L0C to the start that *init* selects.

        *before* writes what directly precedes the Mmad; *unit_flag* is passed to the Mmad.
        """
        m, n, k = shape
        tile = self._left.alloc()
        # (m, k) of L1 -> L0A, (k, n) of L1 -> L0B, both by mte1; then (m, n) += in L0C.
        left = self._core.load_data(tile, a, m, k)
        right = self._core.load_data(self._right[tile.offset_bytes], b, n, k)
        self._left.enque(tile)
        tile = self._left.deque()
        if before is not None:
            before()
        self._core.mmad(dst, left, right, shape, init, bias, unit_flag=unit_flag)
        self._left.free(tile)


class BiasTable:
    """A vector along n in the bias table, from which sums in L0C start."""

    def __init__(self, core: CubeCore, n: int, dtype: DType) -> None:
        """Claim room for *n* columns of a bias of *dtype*."""
        self._core = core
        self._loaded = core.tiles(dtype, n, "mte2", "mte1", 1, "l1")
        table = INT32 if dtype is INT32 else FLOAT32
        # The bias table is written in units of 64 bytes.
        count = align_up(n, 64 * 8 // table.bits)
        self._table = core.tiles(table, count, "mte1", "cube", 1, "bt")

    def take(self, bias: GmView) -> Local:
        """Load *bias* `(n,)` into the table, for the cube; call `drop` when it has been added."""
        # float16 becomes float32 between L1 and the table.
        loaded = _load_vector(self._core, self._loaded, bias)
        table = self._table.alloc()
        columns = table[: bias.columns]
        self._core.load_table(columns, loaded[: bias.columns])
        self._loaded.free(loaded)
        self._table.enque(table)
        return self._table.deque()[: bias.columns]

    def drop(self, bias: Local) -> None:
        """Release *bias*, which the cube has added."""
        self._table.free(bias)


class ScaleTable:
    """Quantisation parameters of the columns, 64 bits each, in the fixpipe buffer."""

    def __init__(self, core: CubeCore, n: int) -> None:
        """Claim room for *n* columns."""
        self._core = core
        self._loaded = core.tiles(UINT64, n, "mte2", "fixpipe", 1, "l1")
        self._table = core.tile(UINT64, n, "fb")

    def load(self, scale: GmView) -> Local:
        """Load *scale* `(n,)` into the fixpipe buffer; the fixpipe may read it afterwards."""
        loaded = _load_vector(self._core, self._loaded, scale)
        columns = self._table[: scale.columns]
        self._core.load_table(columns, loaded[: scale.columns])
        self._loaded.free(loaded)
        return columns

    def loaded(self, count: int) -> Local:
        """The first *count* columns, loaded earlier."""
        return self._table[:count]


def _load_vector(core: CubeCore, queue: TileQueue, vector: GmView) -> Local:
    """Load *vector* `(n,)` into a tile of *queue* in L1, for the consumer."""
    tile = queue.alloc()
    core.data_copy(tile.as_dtype(vector.dtype, vector.columns), vector.operand)
    queue.enque(tile)
    return queue.deque()
