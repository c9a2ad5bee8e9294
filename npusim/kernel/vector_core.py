"""The verbs of a vector core: each writes a micro-op of the vector pipe, named as in Ascend C.

The destination comes first, then the sources, all of them tiles. Where Ascend C has a form with a
scalar (Adds, Muls, Duplicate), the last source may be a constant or the name of a scalar register.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT32, DType, RoundMode
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Axpy,
    Binary,
    BinaryOp,
    BinaryScalar,
    BitwiseOp,
    BlockReduce,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    CompareScalar,
    Copy,
    Duplicate,
    ExtremeOp,
    Fold,
    FoldOp,
    Gather,
    GatherMask,
    Local,
    MicroOp,
    MrgSort,
    MrgSort4,
    MulAddDst,
    PlacesOf,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    ReduceOp,
    Register,
    RpSort16,
    Select,
    Sort32,
    Store,
    Transpose,
    Unary,
    WholeReduce,
)
from npusim.kernel import rows, views
from npusim.kernel.core import Core, TileQueue
from npusim.kernel.queues import ProgramError, Slot
from npusim.kernel.views import GmView

__all__ = ["VectorCore"]

__kernel_vocabulary__ = True


class VectorCore(Core):
    """A core with a vector pipe: a vector core of A2 and A3, an AI core of Atlas inference."""

    def __init__(
        self, name: str, spec: DeviceSpec, kind: str | None = None, *, alone: bool = False
    ) -> None:
        """*kind* None is the first kind of core of *spec* that has a vector pipe."""
        super().__init__(name, spec, kind or spec.vector_kinds[0], alone=alone)
        if kind is None:
            # 310P has vector cores besides its AI cores, which run the same programs.
            self.kinds = spec.vector_cores
        self._writer: rows.Writer | None = None
        self._is_independent = False

    # ---- room ----

    def vecin(self, dtype: DType, count: int, depth: int = 1) -> TileQueue:
        """A queue of tiles that mte2 fills and the vector pipe reads (VECIN)."""
        return self.tiles(dtype, count, "mte2", "vector", depth)

    def vecout(self, dtype: DType, count: int, depth: int = 1) -> TileQueue:
        """A queue of tiles that the vector pipe fills and mte3 stores (VECOUT)."""
        return self.tiles(dtype, count, "vector", "mte3", depth)

    def claim_tails(
        self, source: Pipe = "vector", *, one_by_one: bool = False, has_tails: bool = True
    ) -> None:
        """Claim what `store` needs for the tails of rows that pipe *source* wrote.

        Nothing is needed on chips that store any number of bytes, or for rows of whole blocks,
        where none *has_tails*. See :class:`~npusim.kernel.rows.Writer`.
        """
        self._writer = rows.Writer(
            self, self.spec, source, one_by_one=one_by_one, has_tails=has_tails
        )

    # ---- copies ----

    def load(
        self, queue: TileQueue, view: GmView, pitch: int | None = None, *, one_by_one: bool = False
    ) -> Local:
        """Load *view* as `copy_in` does, and wait for it. Free the tile after it has been read."""
        self.copy_in(queue, view, pitch, one_by_one=one_by_one)
        return queue.deque()

    def copy_in(
        self, queue: TileQueue, view: GmView, pitch: int | None = None, *, one_by_one: bool = False
    ) -> None:
        """Load *view* into the next tile of *queue*, for a consumer that takes it by `deque`.

        Rows begin *pitch* elements apart, or at the next block of 32 bytes, and are loaded by
        copies that the chip supports. For *one_by_one* see :func:`~npusim.kernel.rows.fill`.
        """
        tile = queue.alloc()
        self.fill(tile, view, pitch, one_by_one=one_by_one)
        queue.enque(tile)

    def fill(
        self, tile: Local, view: GmView, pitch: int | None = None, *, one_by_one: bool = False
    ) -> None:
        """Load *view* into *tile*, as `copy_in` does, without a flag for the reader."""
        pitch_bytes = None if pitch is None else view.dtype.nbytes(pitch)
        slot = Slot(tile.buffer, tile.offset_bytes, tile.nbytes, event=-1)
        rows.fill(self, self.spec, slot, view, pitch_bytes, one_by_one=one_by_one)

    def fetch(self, tile: Local, view: GmView, pitch: int | None = None) -> None:
        """Load *view* into *tile* once for the whole program; the vector pipe waits for it here."""
        self.fill(tile, view, pitch)
        self.sync("mte2", "vector")

    def store(self, queue: TileQueue, tile: Local, view: GmView, pitch: int | None = None) -> None:
        """Store *tile* of *queue* to *view* by copies that the chip supports, and free it.

        Rows are *pitch* elements apart, or begin at the next block of 32 bytes.
        """
        if self._writer is None:
            raise ProgramError(
                f"{self.name}: a core that stores must claim what the tails of rows need, but has "
                f"not; call claim_tails() behind its other claims"
            )
        pitch_bytes = None if pitch is None else view.dtype.nbytes(pitch)
        self._writer.store(queue.queue, queue.slot(tile), view, pitch_bytes)

    def load_rows(
        self,
        queue: TileQueue,
        *views_of_rows: GmView,
        pitch: int | None = None,
        with_gaps: bool = False,
    ) -> Local:
        """Load views, one behind the other, into a tile of *queue*: one burst per row.

        For A2 and A3 (DataCopyPad); see :func:`~npusim.kernel.views.fill`.
        """
        slot = views.load(self, queue.queue, *views_of_rows, pitch=pitch, with_gaps=with_gaps)
        return slot.of(queue.dtype, queue.count)

    def store_rows(
        self,
        queue: TileQueue,
        tile: Local,
        view: GmView,
        pitch: int | None = None,
        *,
        with_gaps: bool = False,
    ) -> None:
        """Store *tile* of *queue* to *view*, one burst per row, and free it (DataCopyPad)."""
        slot = queue.slot(tile)
        views.store(self, queue.queue, slot, view, pitch, with_gaps=with_gaps)

    def put_rows(self, tile: Local, view: GmView, pitch: int | None = None) -> None:
        """Store *tile* to *view*, one burst per row, without setting or waiting for a flag."""
        slot = Slot(tile.buffer, tile.offset_bytes, tile.nbytes, event=-1)
        views.put(self, slot, view, pitch)

    def store_add(self, dst: GmView, src: Local) -> None:
        """Add *src* to *dst* in global memory (SetAtomicAdd): one burst."""
        self.emit(Store(dst.operand, src, atomic=src.dtype))

    # ---- barriers ----

    @contextmanager
    def independent(self) -> Iterator[None]:
        """Verbs in this context do not read each other's results; one barrier follows them all."""
        outer, self._is_independent = self._is_independent, True
        try:
            yield
        finally:
            self._is_independent = outer
        if not outer:
            self.barrier("vector")

    def step(self, op: MicroOp) -> None:
        """Write *op* and, outside of an ``independent()`` block, the barrier behind it."""
        self.emit(op)
        if not self._is_independent:
            self.barrier("vector")

    # ---- arithmetic ----

    def add(self, dst: Local, a: Local, b: Local | Register | float) -> None:
        """`dst = a + b` (Add, Adds)."""
        self._binary("add", dst, a, b)

    def sub(self, dst: Local, a: Local, b: Local) -> None:
        """`dst = a - b` (Sub)."""
        self._binary("sub", dst, a, b)

    def mul(self, dst: Local, a: Local, b: Local | Register | float) -> None:
        """`dst = a x b` (Mul, Muls)."""
        self._binary("mul", dst, a, b)

    def div(self, dst: Local, a: Local, b: Local) -> None:
        """`dst = a / b` (Div)."""
        self._binary("div", dst, a, b)

    def max(self, dst: Local, a: Local, b: Local | Register | float) -> None:
        """`dst` = the larger of a and b (Max, Maxs)."""
        self._binary("max", dst, a, b)

    def min(self, dst: Local, a: Local, b: Local | Register | float) -> None:
        """`dst` = the smaller of a and b (Min, Mins)."""
        self._binary("min", dst, a, b)

    def apply(self, op: BinaryOp, dst: Local, a: Local, b: Local | Register | float) -> None:
        """`dst = a op b`, for an operation chosen by the caller."""
        self._binary(op, dst, a, b)

    def bitwise(self, op: BitwiseOp, dst: Local, a: Local, b: Local) -> None:
        """`dst = a op b`, bit by bit (And, Or)."""
        self.step(Binary(op, dst, a, b))

    def leaky_relu(self, dst: Local, src: Local, slope: Register | float) -> None:
        """`dst = src`, or `src x slope` where src is negative (LeakyRelu)."""
        self.step(BinaryScalar("leaky_relu", dst, src, slope))

    def shift_left(self, dst: Local, src: Local, places: Register | int) -> None:
        """Shift the bits of *src* to the left by *places* (ShiftLeft)."""
        self.step(BinaryScalar("shift_left", dst, src, places))

    def shift_right(self, dst: Local, src: Local, places: Register | int) -> None:
        """Shift the bits of *src* to the right by *places* (ShiftRight)."""
        self.step(BinaryScalar("shift_right", dst, src, places))

    def axpy(self, dst: Local, src: Local, scalar: Register | float) -> None:
        """`dst = src x scalar + dst` (Axpy)."""
        self.step(Axpy(dst, src, scalar))

    def mul_add_dst(self, dst: Local, a: Local, b: Local) -> None:
        """`dst = a x b + dst` (MulAddDst)."""
        self.step(MulAddDst(dst, a, b))

    def abs(self, dst: Local, src: Local) -> None:
        """`dst = |src|` (Abs)."""
        self.step(Unary("abs", dst, src))

    def relu(self, dst: Local, src: Local) -> None:
        """`dst = max(src, 0)` (Relu)."""
        self.step(Unary("relu", dst, src))

    def bitwise_not(self, dst: Local, src: Local) -> None:
        """`dst` = the bits of src, inverted (Not)."""
        self.step(Unary("not", dst, src))

    def exp(self, dst: Local, src: Local) -> None:
        """`dst = e ** src` (Exp)."""
        self.step(Unary("exp", dst, src))

    def ln(self, dst: Local, src: Local) -> None:
        """`dst = ln(src)` (Ln)."""
        self.step(Unary("ln", dst, src))

    def sqrt(self, dst: Local, src: Local) -> None:
        """`dst` = the square root of src (Sqrt)."""
        self.step(Unary("sqrt", dst, src))

    def rsqrt(self, dst: Local, src: Local) -> None:
        """`dst` = 1 / the square root of src (Rsqrt)."""
        self.step(Unary("rsqrt", dst, src))

    def reciprocal(self, dst: Local, src: Local) -> None:
        """`dst = 1 / src` (Reciprocal)."""
        self.step(Unary("reciprocal", dst, src))

    # ---- types and data movement ----

    def cast(self, dst: Local, src: Local, mode: RoundMode | None = None) -> None:
        """*src* in the type of *dst* (Cast); *mode* None rounds as `rounding` says."""
        mode = self.rounding(dst.dtype) if mode is None else mode
        self.step(Cast(dst, src, mode))

    def convert(self, dst: Local, src: Local, mode: RoundMode | None = None) -> None:
        """*src* in the type of *dst*: `cast`, or `copy` where it has that type already."""
        if dst.dtype is src.dtype:
            self.copy(dst, src)
        else:
            self.cast(dst, src, mode)

    def rounding(self, target: DType) -> RoundMode:
        """How `cast` rounds to *target*: to nearest even, or not at all when it widens to fp32."""
        # 310P has one conversion to fp16, which also rounds to nearest even.
        is_plain = target is FLOAT32 or (target is FLOAT16 and self.is_310p)
        return "none" if is_plain else "rint"

    def widen(self, dst: Local, src: Local) -> None:
        """Convert *src* to fp32; int8, uint8, int4 go through fp16 in the upper half of *dst*."""
        if src.dtype.bits <= 8:
            # In the upper half, so that no result overwrites a source that is still to be read.
            end = dst.offset_bytes + align_up(dst.nbytes, BLOCK_BYTES)
            start = end - align_up(FLOAT16.nbytes(dst.count), BLOCK_BYTES)
            half = Local(dst.buffer, start, FLOAT16, dst.count)
            self.cast(half, src, "none")
            src = half
        self.cast(dst, src, "none")

    def quantize(
        self, dst: Local, src: Local, modes: tuple[RoundMode, RoundMode] = ("none", "rint")
    ) -> None:
        """Round fp32 *src*, ties to even, and narrow it; *src* is overwritten.

        int32 is one cast. The others are `whole_halves`, then a cast to the target, which saturates
        and gives 0 for NaN. The last two casts get integers, so their *modes* have no effect; 310P
        has no round-to-even there and rounds half away from zero (ops-nn@e5c3fa9
        quant/ascend_quant_v2).
        """
        if dst.dtype is INT32:
            self.cast(dst, src, "rint")
            return
        on_310p: RoundMode = "none" if dst.dtype is INT4 else "round"
        halves = self.whole_halves(src, modes[0])
        self.cast(dst, halves, on_310p if self.is_310p else modes[1])

    def whole_halves(
        self, values: Local, mode: RoundMode = "none", place: Local | None = None
    ) -> Local:
        """fp32 *values* as fp16 integers, ties to even, through int32, in *place* or in their own.

        A barrier follows each cast, and the instruction that sets the scale of the second one to 1
        (SetDeqScale); its *mode* is ignored (asc-devkit, kernel_operator_vec_vconv_impl.h).
        """
        room, count = place or values, values.count
        whole, halves = room.as_dtype(INT32, count), room.as_dtype(FLOAT16, count)
        self.cast(whole, values, "rint")
        self.barrier("vector")
        self.cast(halves, whole, mode)
        return halves

    def duplicate(self, dst: Local, scalar: Register | float) -> None:
        """Fill *dst* with *scalar* (Duplicate)."""
        self.step(Duplicate(dst, scalar))

    def brcb(self, dst: Local, src: Local) -> None:
        """Each element of *src* fills one block of 32 bytes of *dst* (Brcb)."""
        self.step(Broadcast(dst, src))

    def copy(self, dst: Local, src: Local) -> None:
        """Copy *src* within the buffer (DataCopy, UB to UB)."""
        self.step(Copy(dst, src))

    def gather(self, dst: Local, src: Local, offsets: Local) -> None:
        """Each element of *dst* is that of *src* at int32 *offsets*, in bytes (Gather)."""
        self.step(Gather(dst, src, offsets))

    def transpose(self, dst: Local, src: Local) -> None:
        """Transpose each matrix of 16 x 16 elements of 16 bits (Transpose)."""
        self.step(Transpose(dst, src))

    # ---- reductions ----

    def reduce(self, op: ExtremeOp, dst: Local, src: Local) -> None:
        """Write the minimum or maximum of *src* to the first of *dst* (ReduceMax, ReduceMin)."""
        self.step(Reduce(op, dst, src))

    def whole_reduce(self, op: ReduceOp, dst: Local, src: Local, mask: int | None = None) -> None:
        """Reduce each repeat of *src* to an element of *dst* (WholeReduceSum, ...Max, ...Min)."""
        self.step(WholeReduce(op, dst, src, mask))

    def block_reduce(self, op: ReduceOp, dst: Local, src: Local) -> None:
        """Reduce each block of *src* to an element of *dst* (BlockReduceSum, ...Max, ...Min)."""
        self.step(BlockReduce(op, dst, src))

    def fold(self, op: FoldOp, dst: Local, src: Local) -> None:
        """`dst = dst op repeat` for each repeat of *src* in turn (strides of 0)."""
        self.step(Fold(op, dst, src))

    # ---- comparison, selection and sorting ----

    def compare(self, op: CompareOp, dst: Local, a: Local, b: Local | Register | float) -> None:
        """A bit for each element, whether `a op b` (Compare, CompareScalar)."""
        self.step(Compare(op, dst, a, b) if isinstance(b, Local) else CompareScalar(op, dst, a, b))

    def select(self, dst: Local, mask: Local, a: Local, b: Local | float) -> None:
        """`dst = a` where the bit of *mask* is set, else *b* (Select)."""
        self.step(Select(dst, mask, a, b))

    def gather_mask(self, places: PlacesOf | Local, dst: Local, src: Local) -> None:
        """Compact the elements of *src* at *places*, such as "even" or "odd" (GatherMask)."""
        self.step(GatherMask(places, dst, src))

    def sort32(self, dst: Local, keys: Local, indices: Local) -> None:
        """Sort each 32 *keys* into a list of pairs with their *indices* (Sort32)."""
        self.step(Sort32(dst, keys, indices))

    def mrg_sort(
        self,
        dst: Local,
        src: Local,
        counts: tuple[int, ...],
        key: DType,
        *starts: Register | int,
    ) -> None:
        """Merge two to four sorted lists of pairs in *src*, which begin at *starts* (MrgSort)."""
        self.step(MrgSort(dst, src, counts, key, *starts))

    def proposal_concat(self, place: int, dst: Local, src: Local) -> None:
        """Copy each element of *src* to element *place* of a proposal of *dst* (ProposalConcat)."""
        self.step(ProposalConcat(place, dst, src))

    def proposal_extract(self, place: int, dst: Local, src: Local) -> None:
        """Read element *place* of each proposal of *src* to *dst* (ProposalExtract)."""
        self.step(ProposalExtract(place, dst, src))

    def rp_sort16(self, dst: Local, src: Local) -> None:
        """Sort each 16 proposals of *src* into a list (RpSort16)."""
        self.step(RpSort16(dst, src))

    def mrg_sort4(self, dst: Local, src: Local, counts: tuple[int, ...]) -> None:
        """Merge adjacent lists of *counts* proposals in each repeat (MrgSort4)."""
        self.step(MrgSort4(dst, src, counts))

    def _binary(self, op: BinaryOp, dst: Local, a: Local, b: Local | Register | float) -> None:
        self.step(Binary(op, dst, a, b) if isinstance(b, Local) else BinaryScalar(op, dst, a, b))
