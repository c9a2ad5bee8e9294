"""The program that each core runs for npu_quantize.

A core has a rectangle of the matrix and works on pieces that fit the buffer, row by row: widen
to float32, divide by or multiply with the scales, add the zero points, round and narrow. On 310P
ascend_quant_v2 (div_mode=False) loads and stores each row by itself, and lets a store end before
the next one begins (ops-nn@e5c3fa9 quant/ascend_quant_v2/op_kernel/ascend_quant_v2{,_fp16}.h).
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, UINT8
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Binary, BinaryOp, BinaryScalar, Local, ScalarAlu, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.columns import ColumnVector
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.kernel.views import load as load_typed
from npusim.ops.npu_quantize.contract import Problem
from npusim.ops.npu_quantize.tiling import SCALE_CHUNK, Plan, least_columns, pitch_columns

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with rectangles of the same size share their program."""
    kernel = Quantize(spec, p, plan)
    programs: dict[tuple[int, int, int], Program] = {}
    blocks: list[Block] = []
    kinds = spec.vector_cores
    x, output = _matrices(p)
    for row, rows in pieces(p.rows, plan.rows_per_core):
        for column, columns in pieces(p.columns, plan.columns_per_core, least_columns(spec, p)):
            # Scaled by row, a rectangle's first row decides which scale comes first.
            phase, start = 0, column if p.scaling == "column" else 0
            if p.scaling == "row":
                phase, start = _first_scale(p, row, rows)
            key = (rows, columns, phase)
            if key not in programs:
                programs[key] = kernel.program(rows, columns, phase)
            vectors = [_vector(operand)[:, start:] for operand in p.inputs[1:]]
            bound = bindings(x[row:, column:], output[row:, column:], *vectors)
            blocks.append(Block(len(blocks), kinds[len(blocks)], programs[key], bound))
    return tuple(blocks)


def _first_scale(p: Problem, row: int, rows: int) -> tuple[int, int]:
    """Scaled by row: which scale *row* takes, from the one on that the tensor is bound from.

    That is the first of its chunk where this and all that *rows* take are whole.
    """
    phase = row % p.period
    if phase + rows > p.period - p.period % SCALE_CHUNK:
        return phase, 0
    return phase % SCALE_CHUNK, phase - phase % SCALE_CHUNK


def _matrices(p: Problem) -> tuple[GmView, GmView]:
    """The input and the output as matrices `(rows, columns)`."""
    x = GmView.of("input", p.input.element, p.rows, p.columns)
    return x, GmView.of("output", p.target, p.rows, p.columns)


def _vector(operand: Operand) -> GmView:
    return GmView.vector(operand.name, operand.element, operand.spec.size)


class Quantize:
    """The kernel of one core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_quantize", spec.cores[spec.vector_kinds[0]], spec.sync)
        pitch = pitch_columns(p, plan.column_step)
        x_bytes = plan.row_step * p.input.element.nbytes(pitch)
        y_bytes = plan.row_step * p.target.nbytes(pitch)
        self.x = self.builder.queue("ub", x_bytes, "mte2", "vector", plan.depth)
        self.y = self.builder.queue("ub", y_bytes, "vector", "mte3", plan.depth)
        self.work: Slot | None = None
        """A row in float32; float32 rows are worked on where they were loaded."""
        if p.input.element.bits == 16:
            self.work = self.builder.claim("ub", FLOAT32.nbytes(pitch))
        count = {"tensor": 1, "column": pitch, "row": SCALE_CHUNK}[p.scaling]
        self.factors: list[Factor | Number]
        if p.scaling == "tensor" and spec.arch == "2201" and not p.divide:
            self.factors = [Number(self.builder, operand) for operand in p.inputs[1:]]
        else:
            self.factors = [Factor(self.builder, spec, p, each, count) for each in p.inputs[1:]]
        self.one_by_one = spec.arch == "2002" and not p.divide
        self.writer = Writer(self.builder, spec, one_by_one=self.one_by_one)

    def program(self, rows: int, columns: int, phase: int) -> Program:
        """*rows* x *columns*, the first row taking scale *phase* when scaled by row."""
        p, plan, (x, output) = self.p, self.plan, _matrices(self.p)
        for factor in self.factors:
            factor.begin()
        for column, width in pieces(columns, plan.column_step, least_columns(self.spec, p)):
            here = slice(column, column + width)
            for factor in self.factors:
                factor.begin_columns(here)
            for row, count in pieces(rows, plan.row_step):
                piece = slice(row, row + count), here
                if count == 1 and p.scaling != "row":
                    repeat(self.builder, self._row_alone, x[piece], output[piece])
                else:
                    self._piece(x[piece], output[piece], phase + row)
        for factor in self.factors:
            factor.drop()
        return self.builder.build()

    def _row_alone(self, x: GmView, output: GmView) -> None:
        """*x* to *output*, both `(1, width)`, by what the factors took for these columns."""
        slot = load(self.builder, self.spec, self.x, x, one_by_one=self.one_by_one)
        out = self.y.alloc()
        self._row(slot.of(x.dtype, x.columns), out.of(output.dtype, x.columns))
        self.x.free(slot)
        self.writer.store(self.y, out, output)

    def _piece(self, x: GmView, output: GmView, phase: int) -> None:
        """*x* to *output*, both `(rows, width)`; the first row takes scale *phase*.

        The copies and the rows of a piece are bodies of their own, which those of the next piece
        call again, whatever flags its buffers wait for.
        """
        builder, pitch = self.builder, pitch_columns(self.p, x.columns)
        slot = self.x.alloc()
        repeat(builder, self._fill, slot, x, x.dtype.nbytes(pitch))
        self.x.enque(slot)
        slot = self.x.deque()
        out = self.y.alloc()
        if self.p.scaling == "row":
            self._rows(slot, out, x.rows, x.columns, phase)
        else:
            repeat(builder, self._rows, slot, out, x.rows, x.columns, 0)
        self.x.free(slot)
        self.y.enque(out)
        out = self.y.deque()
        repeat(builder, self.writer.copy, out, output, output.dtype.nbytes(pitch))
        self.y.free(out)

    def _fill(self, slot: Slot, x: GmView, pitch_bytes: int) -> None:
        fill(self.builder, self.spec, slot, x, pitch_bytes, one_by_one=self.one_by_one)

    def _rows(self, slot: Slot, out: Slot, rows: int, width: int, phase: int) -> None:
        """*rows* of *slot* to *out*, `(rows, width)` each; the first row takes scale *phase*."""
        p, pitch = self.p, pitch_columns(self.p, width)
        x, y = p.input.element, p.target
        for row in range(rows):
            for factor in self.factors:
                factor.begin_row((phase + row) % p.period)
            # (width,) of one row
            source = slot.of(x, width, row * x.nbytes(pitch))
            self._row(source, out.of(y, width, row * y.nbytes(pitch)))

    def _row(self, x: Local, y: Local) -> None:
        """Quantise *x* into *y*, both `(width,)`."""
        values = x if self.work is None else self.work.of(FLOAT32, x.count)
        if self.work is not None:
            to_float32(self.builder, values, x)
        # (width,) fp32: x / scale or x * scale, then + zero point
        self.factors[0].apply("div" if self.p.divide else "mul", values)
        if len(self.factors) > 1:
            self.factors[1].apply("add", values)
        if self.p.target is UINT8:
            step(self.builder, BinaryScalar("max", values, values, 0.0))
            step(self.builder, BinaryScalar("min", values, values, 255.0))
        # (width,) fp32 -> the output's type, ties to even
        to_quantised(self.builder, self.spec, y, values)


class Number:
    """The scale or the zero point of a whole tensor, in a register.

    It is loaded anew for each piece of columns, and the scalar unit reads and widens it, before
    anything else is asked for (ops-nn@e5c3fa9 quant/ascend_quant_v2/op_kernel, the kernel of bf16;
    assumed of the others too).
    """

    def __init__(self, builder: Builder, operand: Operand) -> None:
        self.builder, self.name, self.tensor = builder, operand.name, _vector(operand)
        self.queue = builder.queue("ub", operand.element.nbytes(1), "mte2", "scalar")

    def begin(self) -> None:
        """Nothing is taken before the first piece."""

    def begin_columns(self, columns: slice) -> None:  # noqa: ARG002 (one for all columns)
        """Load the number and widen it."""
        slot, dtype = load_typed(self.builder, self.queue, self.tensor), self.tensor.dtype
        self.builder.emit(ScalarLoad(self.name, slot.of(dtype, 1)))
        if dtype is BFLOAT16:
            # The upper half of an fp32.
            self.builder.emit(ScalarAlu("shl", self.name, self.name, 16))
        elif dtype is FLOAT16:
            self.builder.emit(ScalarAlu("f16_to_f32", self.name, self.name))
        self.queue.free(slot)

    def begin_row(self, index: int) -> None:
        """One for all rows."""

    def drop(self) -> None:
        """Nothing stays in the buffer."""

    def apply(self, op: BinaryOp, values: Local) -> None:
        """`values = values op number`."""
        step(self.builder, BinaryScalar(op, values, values, self.name))


class Factor:
    """The scales or the zero points: float32 along the columns, or one at a time in a register."""

    def __init__(
        self, builder: Builder, spec: DeviceSpec, p: Problem, operand: Operand, count: int
    ) -> None:
        """Claim room for *count* elements of *operand* at a time."""
        self.builder, self.name, self.tensor = builder, operand.name, _vector(operand)
        self.is_row, self.is_float32 = p.scaling == "row", operand.element is FLOAT32
        self.is_tensor = p.scaling == "tensor"
        self.is_column = p.scaling == "column"
        reader: Pipe = "scalar" if self.is_float32 and not self.is_column else "vector"
        self.vector = ColumnVector.claim(builder, operand.element, count, reader=reader, spec=spec)
        self.numbers: Local | None = None
        """What is in the buffer, as float32."""
        self.chunk = -1
        """Which chunk of numbers that is, unless it is applied along the columns."""

    def begin(self) -> None:
        """Begin a program: take what serves all rows and columns."""
        self.chunk = -1
        if self.is_tensor:
            self._take_scalar(0)

    def begin_columns(self, columns: slice) -> None:
        """Take what serves *columns*."""
        if self.is_column:
            self._take(self.tensor[:, columns])

    def begin_row(self, index: int) -> None:
        """Take what serves a row, element *index*."""
        if self.is_row:
            self._take_scalar(index)

    def _take_scalar(self, index: int) -> None:
        """Apply element *index* from now on: load it into the register of the operand's name."""
        chunk, index_in_chunk = divmod(index, SCALE_CHUNK)
        # Scales of rows are loaded a chunk at a time and read one by one.
        if chunk != self.chunk:
            self._take(self.tensor[:, chunk * SCALE_CHUNK : (chunk + 1) * SCALE_CHUNK])
            self.chunk = chunk
        assert self.numbers is not None
        self.builder.emit(ScalarLoad(self.name, self.numbers.at(index_in_chunk, 1)))

    def _take(self, view: GmView) -> None:
        self.drop()
        self.vector.load(view)
        if self.is_row and not self.is_float32:
            # The scalar unit may still be reading the chunk before.
            self.builder.sync("scalar", "vector")
        self.numbers = self.vector.widen()
        if not self.is_float32:
            self.drop()
            if not self.is_column:
                self.builder.sync("vector", "scalar")

    def drop(self) -> None:
        """Give the buffer back, if what was loaded is used as it is."""
        self.vector.drop()

    def apply(self, op: BinaryOp, values: Local) -> None:
        """`values = values op factor`."""
        if self.is_column:
            assert self.numbers is not None
            step(self.builder, Binary(op, values, values, self.numbers))
        else:
            step(self.builder, BinaryScalar(op, values, values, self.name))
