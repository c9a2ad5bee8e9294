"""The program that each core runs for npu_quantize."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, UINT8, DType
from npusim.data.integers import align_up
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, BinaryScalar, Local, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Rows, Writer, load, pieces
from npusim.ops.npu_quantize.contract import Problem
from npusim.ops.npu_quantize.tiling import SCALE_CHUNK, Plan, least_columns, pitch_columns

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with rectangles of the same size share their program."""
    programs: dict[tuple[int, int, int], Program] = {}
    blocks: list[Block] = []
    kinds = spec.vector_cores
    for row, rows in pieces(p.rows, plan.rows_per_core):
        for column, columns in pieces(p.columns, plan.columns_per_core, least_columns(spec, p)):
            phase = row % p.period if p.scaling == "row" else 0
            key = (rows, columns, phase)
            if key not in programs:
                programs[key] = _Writing(spec, p, plan).program(rows, columns, phase)
            kind = kinds[len(blocks)]
            bindings = _bindings(p, row, column)
            blocks.append(Block(len(blocks), kind, programs[key], bindings))
    return tuple(blocks)


def _bindings(p: Problem, row: int, column: int) -> dict[str, Binding]:
    first = row * p.columns + column
    bindings = {
        "input": Binding("input", p.input.element.nbytes(first)),
        "output": Binding("output", p.target.nbytes(first)),
    }
    for operand in p.inputs[1:]:
        skip = operand.element.nbytes(column) if p.scaling == "column" else 0
        bindings[operand.name] = Binding(operand.name, skip)
    return bindings


class _Writing:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_quantize", spec.cores[spec.vector_kinds[0]], spec.sync)
        self.pitch = pitch_columns(p, plan.column_step)
        rows = plan.row_step
        size = p.input.element.nbytes(self.pitch)
        self.x = self.builder.queue("ub", rows * size, "mte2", "vector", plan.depth)
        out = p.target.nbytes(self.pitch)
        self.y = self.builder.queue("ub", rows * out, "vector", "mte3", plan.depth)
        if p.input.element.bits == 16:
            self.work: Slot | None = self.builder.claim("ub", FLOAT32.nbytes(self.pitch))
        else:
            self.work = None
        count = {"tensor": 1, "column": self.pitch, "row": SCALE_CHUNK}[p.scaling]
        self.factors = [_Factor(self.builder, spec, p, operand, count) for operand in p.inputs[1:]]
        self.writer = Writer(self.builder, spec)

    def program(self, rows: int, columns: int, phase: int) -> Program:
        """*rows* x *columns*, the first row taking scale *phase* when scaled by row."""
        if self.p.scaling == "tensor":
            for factor in self.factors:
                factor.take_scalar(0)
        for column, width in pieces(
            columns, self.plan.column_step, least_columns(self.spec, self.p)
        ):
            if self.p.scaling == "column":
                for factor in self.factors:
                    factor.take_vector(column, width)
            for row in range(0, rows, self.plan.row_step):
                self._piece(row, min(self.plan.row_step, rows - row), column, width, phase)
        for factor in self.factors:
            factor.drop()
        return self.builder.build()

    def _piece(self, row: int, rows: int, column: int, width: int, phase: int) -> None:
        p, pitch = self.p, pitch_columns(self.p, width)
        source = p.input.element
        slot = self.x.alloc()
        load(
            self.builder,
            self.spec,
            slot,
            self._rows("input", source, row, rows, column, width),
            source.nbytes(pitch),
        )
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        for index in range(rows):
            if p.scaling == "row":
                for factor in self.factors:
                    factor.take_scalar((phase + row + index) % p.period)
            x = slot.of(source, width, index * source.nbytes(pitch))
            y = out.of(p.target, width, index * p.target.nbytes(pitch))
            self._row(x, y, width)
        self.x.free(slot)
        self.y.enque(out)
        out = self.y.deque()
        target = self._rows("output", p.target, row, rows, column, width)
        self.writer.store(out, target, p.target.nbytes(pitch))
        self.y.free(out)

    def _rows(self, name: str, dtype: DType, row: int, rows: int, column: int, width: int) -> Rows:
        stride = dtype.nbytes(self.p.columns)
        offset = row * stride + dtype.nbytes(column)
        return Rows(name, offset, rows, dtype.nbytes(width), stride)

    def _row(self, x: Local, y: Local, width: int) -> None:
        values = x if self.work is None else self.work.of(FLOAT32, width)
        if self.work is not None:
            to_float32(self.builder, values, x)
        self.factors[0].apply("div" if self.p.divide else "mul", values)
        if len(self.factors) > 1:
            self.factors[1].apply("add", values)
        if self.p.target is UINT8:
            step(self.builder, BinaryScalar("max", values, values, 0.0))
            step(self.builder, BinaryScalar("min", values, values, 255.0))
        to_quantised(self.builder, self.spec, y, values)


class _Factor:
    """The scales or the zero points in the unified buffer: a float32 vector, or a register."""

    def __init__(
        self, builder: Builder, spec: DeviceSpec, p: Problem, operand: Operand, count: int
    ) -> None:
        """Take buffers for *count* elements of *operand* at a time."""
        self.builder, self.spec, self.p, self.operand = builder, spec, p, operand
        element = operand.element
        dst: Pipe = "scalar" if element is FLOAT32 and p.scaling != "column" else "vector"
        self.raw = builder.queue("ub", element.nbytes(count), "mte2", dst)
        self.wide: Slot | None = None
        """Where the elements are widened to float32, if they must be."""
        if element is not FLOAT32:
            self.wide = builder.claim("ub", FLOAT32.nbytes(count))
        self.ready: Slot | None = None
        """The elements as float32."""
        self.chunk = -1
        self.vector: Local | None = None
        """Scaled by column: what is applied; else a register of the operand's name is."""

    def fetch(self, start: int, count: int) -> Slot:
        """Bring *count* elements from *start* on into the buffer, as float32."""
        self.drop()
        element = self.operand.element
        slot = self.raw.alloc()
        width = element.nbytes(count)
        rows = Rows(self.operand.name, element.nbytes(start), 1, width, width)
        load(self.builder, self.spec, slot, rows, align_up(width, BLOCK_BYTES))
        self.raw.enque(slot)
        slot = self.raw.deque()
        self.ready = slot
        if self.wide is None:
            return slot
        if self.p.scaling == "row":
            # The scalar unit may still be reading the chunk before.
            self.builder.sync("scalar", "vector")
        to_float32(self.builder, self.wide.of(FLOAT32, count), slot.of(element, count))
        self.raw.free(slot)
        self.ready = self.wide
        if self.p.scaling != "column":
            self.builder.sync("vector", "scalar")
        return self.wide

    def drop(self) -> None:
        """Give back a buffer that was used as it was loaded."""
        if self.ready is not None and self.wide is None:
            self.raw.free(self.ready)
        self.ready = None

    def take_vector(self, start: int, count: int) -> None:
        """Scale *count* columns by elements from *start* on."""
        self.vector = self.fetch(start, count).of(FLOAT32, count)

    def take_scalar(self, index: int) -> None:
        """Scale by element *index*."""
        chunk, place = divmod(index, SCALE_CHUNK)
        if chunk != self.chunk:
            count = min(SCALE_CHUNK, self.operand.spec.size - chunk * SCALE_CHUNK)
            self.fetch(chunk * SCALE_CHUNK, count)
            self.chunk = chunk
        assert self.ready is not None
        element = self.ready.of(FLOAT32, 1, FLOAT32.nbytes(place))
        self.builder.emit(ScalarLoad(self.operand.name, element))

    def apply(self, op: BinaryOp, values: Local) -> None:
        """`values = values op factor`."""
        if self.vector is not None:
            step(self.builder, Binary(op, values, values, self.vector))
        else:
            step(self.builder, BinaryScalar(op, values, values, self.operand.name))
