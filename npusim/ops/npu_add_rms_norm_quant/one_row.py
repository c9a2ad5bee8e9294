"""The templates normal and single_n of npu_add_rms_norm_quant: a row at a time."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT8
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.adding import times_root
from npusim.ops._rms_norm.steps import read_root, root_by_vector
from npusim.ops._rms_norm.sums import LANES, halve_into, lanes_into
from npusim.ops.npu_add_rms_norm_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_quant.steps import QuantSteps, vector_of
from npusim.ops.npu_add_rms_norm_quant.tiling import Plan

__all__ = ["Normal", "SingleN"]


class OneRow(QuantSteps):
    """Buffers that both have, and 1 / root."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, wide_bytes = self.builder.claim, FLOAT32.nbytes(self.padded)
        self.values, self.squares = claim("ub", wide_bytes), claim("ub", wide_bytes)
        self.total, self.ones = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.by_halves = plan.template == "single_n" and self.in_half

    def find_root(self, values: Local, squares: Local) -> None:
        """1 / root of *values* into register `root`."""
        builder = self.builder
        total, ones = self.total.of(FLOAT32, 1), self.ones.of(FLOAT32, 1)
        self.square(squares, values)
        if self.by_halves:
            halve_into(builder, total, squares)
        else:
            lanes_into(builder, total, self.lanes.of(FLOAT32, LANES), squares)
        root_by_vector(builder, total, ones, self.p.epsilon)
        read_root(builder, "root", total)


class Normal(OneRow):
    """All vectors stay in the buffer, scales and zero points in fp32; all queues are single.

    Without second scales x2 is loaded where the squares come later. The queue of the first output
    carries x, and then y.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        nbytes, wide_bytes = (kind.nbytes(self.padded) for kind in (element, FLOAT32))
        has_second = p.scales[1] is not None
        self.x = queue("ub", nbytes, "mte2", "vector")
        self.x2 = claim("ub", nbytes) if has_second else self._upper_half(nbytes)
        self.y = queue("ub", nbytes, "vector", "mte3")
        self.y2 = queue("ub", self.padded, "vector", "mte3") if has_second else None
        kept = (p.gamma, p.beta) if p.beta else (p.gamma,)
        self.kept = {operand.name: claim("ub", nbytes) for operand in kept}
        wide = [each for pair in self.quantisers for each in pair if each is not None]
        self.wide_vectors = {operand: claim("ub", wide_bytes) for operand in wide}
        self.writer = Writer(self.builder, spec)

    def _upper_half(self, nbytes: int) -> Slot:
        start = self.squares.nbytes - nbytes
        return Slot("ub", self.squares.offset_bytes + start, nbytes, -1)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        for operand in (self.p.gamma, self.p.beta):
            if operand is not None:
                fill(self.builder, self.spec, self.kept[operand.name], vector_of(operand))
        for operand, slot in self.wide_vectors.items():
            self.fill_wide(slot, vector_of(operand))
        self.builder.sync("mte2", "vector")
        for operand, slot in self.wide_vectors.items():
            self.wide(slot, vector_of(operand))
        self.read_numbers()

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, x and y2, for one row."""
        x1, x2, output, x, *others = views
        builder, spec, count = self.builder, self.spec, x1.columns
        slot = self.x.alloc()
        fill(builder, spec, slot, x1)
        fill(builder, spec, self.x2, x2)
        self.x.enque(slot)
        slot = self.x.deque()
        values, squares = (each.of(FLOAT32, count) for each in (self.values, self.squares))
        addends = slot.of(x1.dtype, count), self.x2.of(x2.dtype, count)
        out = self.y.alloc()
        self.add(out.of(x.dtype, count), values, addends, squares)
        self.writer.store(self.y, out, x)
        self.find_root(values, squares)
        times_root(builder, values, values)
        self.times_gamma(values, self._kept(self.p.gamma, count), squares)
        if self.p.beta is not None:
            self.plus_beta(values, self._kept(self.p.beta, count), squares)
        for view in others:
            assert self.y2 is not None
            second = self.y2.alloc()
            self._quantise(second, squares, values, 1)
            self.writer.store(self.y2, second, view)
        # The next row may come; with second scales where the squares are nothing is loaded.
        self.x.free(slot)
        out = self.y.alloc()
        self._quantise(out, values, values, 0)
        self.writer.store(self.y, out, output)

    def _kept(self, operand: Operand, count: int) -> Local:
        return self.kept[operand.name].of(operand.element, count)

    def _quantise(self, out: Slot, dst: Local, values: Local, index: int) -> None:
        """*values* by way of *dst* to *out*, with the scales number *index*."""
        scale = point = None
        if self.quantisers:
            pair = self.quantisers[index]
            scale, point = (
                self.wide_vectors[operand].of(FLOAT32, values.count) if operand else None
                for operand in pair
            )
        self.quantise(out.of(INT8, values.count), dst, values, scale, point)


class SingleN(OneRow):
    """The one row of a core. x and y leave from where x1 was, gamma comes where x2 was.

    The first scales are loaded while squares are added up, their zero points where the squares
    were; beta, second scales and zero points before the row.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        nbytes, wide_bytes = (kind.nbytes(self.padded) for kind in (element, FLOAT32))
        room = claim("ub", nbytes)
        with self.builder.on_top_of(room):
            self.x1 = queue("ub", nbytes, "mte2", "vector")
        with self.builder.on_top_of(room):
            self.y = queue("ub", nbytes, "vector", "mte3")
        self.x2 = queue("ub", nbytes, "mte2", "vector")
        self.scales = queue("ub", wide_bytes, "mte2", "vector")
        """Of fp32 as they come, else widened."""
        self.beta = claim("ub", nbytes) if p.beta else None
        second = self.quantisers[1] if len(self.quantisers) > 1 else ()
        self.second = [(each, claim("ub", wide_bytes)) for each in second if each is not None]
        self.y2 = queue("ub", self.padded, "vector", "mte3") if second else None

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        if self.beta is not None and self.p.beta is not None:
            fill(self.builder, self.spec, self.beta, vector_of(self.p.beta))
        for operand, slot in self.second:
            self.fill_wide(slot, vector_of(operand))
        if self.beta is not None or self.second:
            self.builder.sync("mte2", "vector")
        for operand, slot in self.second:
            self.wide(slot, vector_of(operand))
        self.read_numbers()

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, x and y2, for one row."""
        x1, x2, output, x, *others = views
        builder, p, count, element = self.builder, self.p, x1.columns, x1.dtype
        first, second = load(builder, self.spec, self.x1, x1), load(builder, self.spec, self.x2, x2)
        values, squares = (each.of(FLOAT32, count) for each in (self.values, self.squares))
        out = self.y.alloc()
        addends = first.of(element, count), second.of(element, count)
        self.add(out.of(element, count), values, addends, squares)
        self.x1.free(first)
        self.x2.free(second)
        gamma = load(builder, self.spec, self.x2, vector_of(p.gamma))
        store(builder, self.y, out, x)
        scales = self._load_scales()
        self.find_root(values, squares)
        times_root(builder, values, values)
        self.times_gamma(values, gamma.of(element, count), squares)
        self.x2.free(gamma)
        if self.beta is not None:
            self.plus_beta(values, self.beta.of(element, count), squares)
        for view in others:
            self._second(view, squares, values)
        out = self.y.alloc()
        scale, point = self._first_quantiser(scales)
        self.quantise(out.of(INT8, count), values, values, scale, point)
        if scales is not None:
            self.scales.free(scales)
        store(builder, self.y, out, output)

    def _load_scales(self) -> Slot | None:
        """Begin to load the first scales, if they are a vector."""
        if not self.quantisers:
            return None
        slot = self.scales.alloc()
        self.fill_wide(slot, vector_of(self.quantisers[0][0]))
        self.scales.enque(slot)
        return slot

    def _first_quantiser(self, scales: Slot | None) -> tuple[Local | None, Local | None]:
        """The first scales and zero points in fp32; the latter are loaded only now."""
        if scales is None:
            return None, None
        scale, point = self.quantisers[0]
        wide_scale = self.wide(self.scales.deque(), vector_of(scale))
        if point is None:
            return wide_scale, None
        self.builder.sync("vector", "mte2")
        self.fill_wide(self.squares, vector_of(point))
        self.builder.sync("mte2", "vector")
        return wide_scale, self.wide(self.squares, vector_of(point))

    def _second(self, view: GmView, squares: Local, values: Local) -> None:
        """The second output to *view*, by way of *squares*."""
        assert self.y2 is not None
        out, count = self.y2.alloc(), values.count
        numbers = [slot.of(FLOAT32, count) for _, slot in self.second]
        scale, point = numbers[0], numbers[1] if len(numbers) > 1 else None
        self.quantise(out.of(INT8, count), squares, values, scale, point)
        store(self.builder, self.y2, out, view)
