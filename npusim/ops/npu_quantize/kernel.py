"""The program that each core runs for npu_quantize.

A core has a rectangle of the matrix and processes pieces that fit the buffer, row by row: widen to
float32, divide or multiply by the scales, add the zero points, round and narrow. On 310P
ascend_quant_v2 (div_mode=False) loads and stores each row separately, and a store finishes before
the next one starts (ops-nn@e5c3fa9 quant/ascend_quant_v2/op_kernel/ascend_quant_v2{,_fp16}.h).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, UINT8
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BinaryOp, Local, ScalarLoadGlobal
from npusim.kernel import Block, GmView, GmViews, Step, TileQueue, VectorCore
from npusim.kernel.rectangles import Rectangles, rectangles
from npusim.ops._quant_parameters import QuantParameter
from npusim.ops.npu_quantize.check import Problem
from npusim.ops.npu_quantize.tiling import SCALE_CHUNK, Plan, least_columns, pitch_columns


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """For each piece of columns of a rectangle its parameters, then piece after piece of rows."""
    core = VectorCore("npu_quantize", spec)
    shape = plan.rows_per_core, plan.columns_per_core
    parts = rectangles(p.rows, p.columns, shape, plan.column_step, least_columns(spec, p))
    tiles = parts.cut(plan.row_step)
    x = GmView.of("input", p.input.element, p.rows, p.columns)
    output = GmView.of("output", p.target, p.rows, p.columns)
    views = tiles.views(x), tiles.views(output)
    if not p.divide and p.scaling != "row":
        return AscendQuant(core, p, plan).launch(parts, tiles, views)
    quantize = Quantize(core, p, plan)
    cores = np.unique(tiles.core)
    begin, end = (np.full(cores.size, order) for order in (-1, tiles.order.max() + 1))
    drop = Step(quantize.drop, (), cores, end, keeps_slots=True)
    if p.scaling == "row":
        scales = quantize.scales_of_rows(tiles)
        rows = Step(quantize.scaled_rows, (*views, *scales), tiles.core, tiles.order, True)
        return core.launch(rows, drop)
    step = Step(quantize.tile, views, tiles.core, tiles.order)
    if p.scaling == "tensor":
        return core.launch(Step(quantize.take_numbers, (), cores, begin, True), step, drop)
    vectors = tuple(parts.views(vector.view) for vector in quantize.parameters)
    return core.launch(Step(quantize.take, vectors, parts.core, parts.order, True), step, drop)


class Parameter(NamedTuple):
    """A scale or an offset of ascend_quant_v2, per column or per tensor."""

    view: GmView
    """The whole vector in global memory."""
    queue: TileQueue | None
    """None for a float32 per tensor, which the scalar unit reads from global memory."""
    wide: Local | None
    """In float32; None for a value per tensor, which is in a register."""

    @property
    def is_wide(self) -> bool:
        return self.view.dtype is FLOAT32


class AscendQuant:
    """The buffers and stages of ascend_quant_v2, with scales per column or per tensor.

    A burst loads or stores each row, except on 310P. Assumed for scales narrower than float32
    elements: they are widened like those of 16 bits.

    ops-nn@e5c3fa9 quant/ascend_quant_v2/op_kernel/ascend_quant_v2{,_fp16,_bf16,_fp32}.h.
    """

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        element, pitch = p.input.element, pitch_columns(p, plan.column_step)
        size = plan.row_step * pitch
        self.x_in = core.vecin(element, size, plan.depth)
        self.work: Local | None = None
        """A row in float32; float32 rows are processed in the buffer they were loaded into."""
        self.parameters: list[Parameter] = []
        for operand in p.inputs[1:]:
            queue = self._queue(operand, pitch)
            if self.work is None and element is not FLOAT32:
                self.work = core.tile(FLOAT32, pitch)
            wide = None
            if queue is not None and p.scaling == "column":
                wide = queue.only if operand.element is FLOAT32 else core.tile(FLOAT32, pitch)
            view = GmView.vector(operand.name, operand.element, operand.spec.size)
            self.parameters.append(Parameter(view, queue, wide))
        self.y_out = core.vecout(p.target, size, plan.depth)
        core.claim_tails(one_by_one=core.is_310p)

    def _queue(self, operand: Operand, pitch: int) -> TileQueue | None:
        if self.p.scaling == "column":
            return self.core.vecin(operand.element, pitch)
        if operand.element is FLOAT32:
            return None
        return self.core.tiles(operand.element, 1, "mte2", "scalar")

    def launch(
        self, parts: Rectangles, tiles: Rectangles, views: tuple[GmViews, ...]
    ) -> tuple[Block, ...]:
        """A block for each core with *tiles*; tiles of the same one of *parts* share parameters."""
        core, is_first = self.core, np.diff(tiles.core, prepend=-1) != 0
        work = Step(self.tile, (*views, is_first), tiles.core, tiles.order, keeps_slots=True)
        if self.p.scaling == "tensor":
            return core.launch(Step(self.read, (), parts.core, parts.order), work)
        vectors = tuple(parts.views(parameter.view) for parameter in self.parameters)
        return core.launch(
            Step(self.take, vectors, parts.core, parts.order, keeps_slots=True),
            work,
            Step(self.drop, (), parts.core, parts.order + 2, keeps_slots=True),
        )

    # ---- parameters ----

    def take(self, *vectors: GmView) -> None:
        """Load parameters for the columns of *vectors* `(width,)`; 16 bits are widened at once."""
        core = self.core
        for (_, queue, wide), vector in zip(self.parameters, vectors, strict=True):
            assert queue is not None
            assert wide is not None
            tile = queue.alloc()
            core.fill(tile, vector)
            if queue.dtype is not FLOAT32:
                core.sync("mte2", "vector")
                core.cast(wide[: vector.columns], tile[: vector.columns], "none")
            queue.enque(tile)

    def drop(self) -> None:
        """Release the parameters of these columns."""
        for parameter in self.parameters:
            if parameter.queue is not None:
                parameter.queue.free(parameter.queue.deque())

    def read(self) -> None:
        """Load each 16-bit value into its register, and widen it there."""
        core = self.core
        for view, queue, _ in self.parameters:
            if queue is None:
                continue
            tile = core.load(queue, view)
            core.get_value(view.name, tile[:1])
            if view.dtype is BFLOAT16:
                # The upper half of an fp32.
                core.alu("shl", view.name, view.name, 16)
            else:
                core.alu("f16_to_f32", view.name, view.name)
            core.barrier("vector")
            queue.free(tile)

    # ---- tiles ----

    def tile(self, x: GmView, output: GmView, is_first: int) -> None:
        """Quantise *x* to *output*, both `(rows, width)`; *is_first* is the core's first tile."""
        core, pitch, columns = self.core, pitch_columns(self.p, x.columns), x.columns
        rows_pitch = None if x.rows == 1 else pitch
        if core.is_310p:
            loaded = core.load(self.x_in, x, rows_pitch, one_by_one=True)
        else:
            loaded = core.load_rows(self.x_in, x, pitch=rows_pitch)
        scale, *offsets = self.parameters
        self.await_float32(scale, is_first)
        out = self.y_out.alloc()
        for offset in offsets:
            self.await_float32(offset, is_first)
        for start in range(0, x.rows * pitch, pitch):
            self.row(loaded[start : start + columns], out[start : start + columns])
        for parameter in self.parameters:
            if parameter.is_wide and parameter.queue is not None:
                # Nothing was loaded: this sets the flag for the next tile.
                parameter.queue.enque(parameter.queue.only)
        self.x_in.free(loaded)
        if core.is_310p:
            core.store(self.y_out, out, output, rows_pitch)
        else:
            core.store_rows(self.y_out, out, output, rows_pitch)

    def await_float32(self, parameter: Parameter, is_first: int) -> None:
        """Wait for float32 parameters per column, or read that of the tensor from global memory.

        The scalar unit's cache holds it from the first tile on.
        """
        view, queue, _ = parameter
        if not parameter.is_wide:
            return
        if queue is not None:
            queue.deque()
            return
        is_cached = not is_first
        self.core.emit(ScalarLoadGlobal(view.name, view.operand, FLOAT32, is_cached))

    def row(self, x: Local, y: Local) -> None:
        """Quantise *x* into *y*, both `(width,)`."""
        core, values = self.core, x if self.work is None else self.work[: x.count]
        if self.work is not None:
            core.cast(values, x, "none")
        verbs = core.mul, core.add
        for (view, _, wide), verb in zip(self.parameters, verbs, strict=False):
            verb(values, values, view.name if wide is None else wide[: x.count])
        core.quantize(y, values)


class Quantize:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        pitch = pitch_columns(p, plan.column_step)
        size = plan.row_step * pitch
        self.x = core.vecin(p.input.element, size, plan.depth)
        self.y = core.vecout(p.target, size, plan.depth)
        self.work: Local | None = None
        """A row in float32; float32 rows are processed in the buffer they were loaded into."""
        if p.input.element.bits == 16:
            self.work = core.tile(FLOAT32, pitch)
        count = {"tensor": 1, "column": pitch, "row": SCALE_CHUNK}[p.scaling]
        self.parameters = [
            QuantParameter(core, each, count, reader=self._reader(each)) for each in p.inputs[1:]
        ]
        self.one_by_one = core.is_310p and not p.divide
        core.claim_tails(one_by_one=self.one_by_one)

    def _reader(self, operand: Operand) -> Pipe:
        is_read = operand.element is FLOAT32 and self.p.scaling != "column"
        return "scalar" if is_read else "vector"

    # ---- parameters ----

    def take(self, *views: GmView) -> None:
        """Load parameters for the columns of *views* `(width,)`; float32 stays until the next."""
        for vector, view in zip(self.parameters, views, strict=True):
            vector.drop()
            vector.take(view)
            if not vector.is_wide:
                vector.drop()

    def drop(self) -> None:
        """Release the last parameters, which have been used."""
        for vector in self.parameters:
            vector.drop()

    def take_numbers(self) -> None:
        """Load the value of each parameter into its register; float32 stays in the buffer."""
        for vector in self.parameters:
            vector.take(vector.view)
            self._widened(vector)
            self.core.get_value(vector.name, vector.wide[:1])

    def _widened(self, vector: QuantParameter) -> None:
        """Make the scalar unit wait for what the vector pipe has widened."""
        if not vector.is_wide:
            vector.drop()
            self.core.sync("vector", "scalar")

    # ---- tiles ----

    def tile(self, x: GmView, output: GmView) -> None:
        """Quantise *x* to *output*, both `(rows, width)`, by the parameters that were taken."""
        if x.rows == 1:
            loaded, out = self._load(x, None), self.y.alloc()
            self._row(loaded[: x.columns], out[: x.columns])
            self.x.free(loaded)
            self.core.store(self.y, out, output)
            return
        pitch = pitch_columns(self.p, x.columns)
        loaded, out = self._load(x, pitch), self.y.alloc()
        for row in range(x.rows):
            here = slice(row * pitch, row * pitch + x.columns)
            self._row(loaded[here], out[here])
        self.x.free(loaded)
        self.core.store(self.y, out, output, pitch)

    def _load(self, x: GmView, pitch: int | None) -> Local:
        return self.core.load(self.x, x, pitch, one_by_one=self.one_by_one)

    def _row(self, x: Local, y: Local) -> None:
        """Quantise *x* into *y*, both `(width,)`."""
        core = self.core
        values = x if self.work is None else self.work[: x.count]
        if self.work is not None:
            core.widen(values, x)
        # (width,) fp32: x / scale or x * scale, then + zero point
        steps: tuple[BinaryOp, BinaryOp] = ("div" if self.p.divide else "mul", "add")
        for vector, op in zip(self.parameters, steps, strict=False):
            by_column = self.p.scaling == "column"
            core.apply(op, values, values, vector.wide[: x.count] if by_column else vector.name)
        if self.p.target is UINT8:
            core.max(values, values, 0.0)
            core.min(values, values, 255.0)
        # (width,) fp32 -> the output's type, ties to even
        core.quantize(y, values)

    # ---- one scale per row ----

    def scales_of_rows(self, tiles: Rectangles) -> tuple[object, ...]:
        """The scales of a core, the index of each tile's first scale, and the chunk that is loaded.

        A core's scales begin at a chunk boundary, if they and all of its rows' scales are whole
        chunks.
        """
        period, count = self.p.period, tiles.core.size
        first, rows = (np.zeros(tiles.core.max() + 1, np.int64) for _ in range(2))
        first[tiles.core[::-1]] = tiles.top[::-1]
        np.maximum.at(rows, tiles.core, tiles.top + tiles.rows)
        rows -= first
        phase = first % period
        is_whole = phase + rows <= period - period % SCALE_CHUNK
        start = np.where(is_whole, phase - phase % SCALE_CHUNK, 0)[tiles.core]
        # For each tile the index of its first row within the core, and of the previous tile's.
        row = tiles.top - first[tiles.core]
        before = np.where(row == 0, rows[tiles.core], row) - 1
        origin = np.where(is_whole, phase % SCALE_CHUNK, phase)[tiles.core]
        at, chunk = origin + row, (origin + before) % period // SCALE_CHUNK
        chunk[(row == 0) & (tiles.order == 1)] = -1
        one = np.ones(count, np.int64)
        return (
            at,
            chunk,
            *(
                GmViews.of(vector.view, 0 * start, start, one, period - start)
                for vector in self.parameters
            ),
        )

    def scaled_rows(
        self, x: GmView, output: GmView, first: int, loaded_chunk: int, *scales: GmView
    ) -> None:
        """Quantise *x* to *output*, both `(rows, width)`; the first row uses *scales* [*first*].

        Scales are loaded a chunk at a time and read one by one; *loaded_chunk* is in the buffer.
        """
        pitch = pitch_columns(self.p, x.columns)
        loaded, out = self._load(x, pitch), self.y.alloc()
        for row in range(x.rows):
            chunk, number = divmod((first + row) % self.p.period, SCALE_CHUNK)
            for vector, view in zip(self.parameters, scales, strict=True):
                if chunk != loaded_chunk:
                    start = chunk * SCALE_CHUNK
                    self._take_chunk(vector, view[:, start : start + SCALE_CHUNK])
                self.core.get_value(vector.name, vector.wide[number : number + 1])
            loaded_chunk = chunk
            here = slice(row * pitch, row * pitch + x.columns)
            self._row(loaded[here], out[here])
        self.x.free(loaded)
        self.core.store(self.y, out, output, pitch)

    def _take_chunk(self, vector: QuantParameter, view: GmView) -> None:
        vector.drop()
        vector.load(view)
        if not vector.is_wide:
            # The scalar unit may still be reading the previous chunk.
            self.core.sync("scalar", "vector")
        vector.widen(view.columns)
        self._widened(vector)
