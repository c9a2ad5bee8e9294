"""The templates of npu_add_rms_norm_dynamic_quant: how the vendor's kernels process rows.

Each gets x1, x2 and x, and for the requested outputs y and its scales.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_kernel.
"""

from __future__ import annotations

from npusim.data.integers import align_up
from npusim.data.tensor import Operand
from npusim.isa import BinaryScalar, Cast
from npusim.kernel import FLOAT32, FLOATS_PER_BLOCK, GmView, Local
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore
from npusim.ops.npu_add_rms_norm_dynamic_quant.slices import Slices
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import Output, Problem, Steps, padded


class SeveralRows(Steps):
    """The steps of normal, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        super().__init__(core, p)
        dtype, self.columns, self.pitch = p.x.element, p.columns, padded(p.columns, p.target)
        most = plan.row_step * self.pitch
        self.x_in, self.out = core.vecin(FLOAT32, most), core.vecout(FLOAT32, most)
        self.values, self.work = core.tile(FLOAT32, most), core.tile(FLOAT32, most)
        self.gamma, *smooth = (core.tile(dtype, self.pitch) for _ in range(3))
        self.beta = core.tile(dtype, self.pitch) if p.beta else None
        self.scale_room = align_up(plan.row_step, FLOATS_PER_BLOCK)
        self.scales = core.tile(FLOAT32, 2 * self.scale_room)
        self.vectors = {p.gamma: self.gamma}
        """The buffer of each vector."""
        for output, tile in zip(p.both, smooth, strict=True):
            if output.smooth is not None:
                self.vectors[output.smooth] = tile
        if p.beta is not None and self.beta is not None:
            self.vectors[p.beta] = self.beta

    def begin(self) -> None:
        """Start to load all vectors, once; the flag of the first rows also covers them."""
        for operand, tile in self.vectors.items():
            self.core.fill(tile, norm.vector_of(operand))

    def group(self, x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        """Process the rows of a step."""
        core, count = self.core, x.rows * self.pitch
        values, work = self.values[:count], self.work[:count]
        self.add(x1, x2, values, work)
        rounded = self.out.alloc().as_dtype(x.dtype, count)
        core.cast(rounded, values)
        self.store((rounded, x))
        self.scale(values, work)
        y = self.out.alloc().as_dtype(self.p.target, 2 * count)
        both = [(y[:count], self.scales), (y[count:], self.scales[self.scale_room :])]
        if self.p.both[0].is_taken or not self.p.is_masked:
            self.quantise(self.p.both[0], work, values, *both[0])
        if self.p.both[1].is_taken or not self.p.is_masked:
            self.quantise(self.p.both[1], values, values, *both[1])
        stored: list[tuple[Local, GmView]] = []
        for output, y_view, scale_view in zip(self.p.taken, views[::2], views[1::2], strict=True):
            place, scales = both[output.number - 1]
            stored += [(place, y_view), (scales, scale_view)]
        self.store(*stored)

    def add(self, x1: GmView, x2: GmView, values: Local, work: Local) -> None:
        """Write the sum of rows of x1 and x2, which follow those of x2, to fp32 *values*."""
        core, count, tile = self.core, values.count, self.x_in.alloc()
        loaded = tile.as_dtype(x1.dtype, 2 * count)
        first, second = loaded[count:], loaded[:count]
        for place, view in ((second, x2), (first, x1)):
            pitch_bytes = view.dtype.nbytes(self.pitch) if view.rows > 1 else 0
            core.data_copy(place[: self.extent(view)], view.operand, pitch_bytes)
        self.x_in.enque(tile)
        self.x_in.deque()
        core.emit(Cast(values, first, "none"), Cast(work, second, "none"))
        self.x_in.free(tile)
        core.barrier("vector")
        core.add(values, values, work)

    def extent(self, view: GmView) -> int:
        """Elements from the first to the last of *view* in the buffer."""
        return (view.rows - 1) * self.pitch + view.columns

    def store(self, *stored: tuple[Local, GmView]) -> None:
        """Store the tile of `out`, and values that belong to it."""
        self.out.enque(self.out.only)
        self.out.deque()
        for place, view in stored:
            self.core.put_rows(place, view, self.pitch)
        self.out.free(self.out.only)

    def rows_of(self, plane: Local) -> list[Local]:
        """The rows of *plane* `(rows, pitch)`, without padding."""
        starts = range(0, plane.count, self.pitch)
        return [plane[start : start + self.columns] for start in starts]

    def scale(self, values: Local, work: Local) -> None:
        """Multiply each row of *values* by 1 / root and gamma, and add beta."""
        core, rows = self.core, self.rows_of(values)
        core.mul(work, values, values)
        for row, squares in zip(rows, self.rows_of(work), strict=True):
            self.root_of(squares)
            core.emit(BinaryScalar("mul", row, row, "root"))
        core.barrier("vector")
        wide = work[: self.columns]
        core.cast(wide, self.gamma[: self.columns])
        for row in rows:
            core.mul(row, row, wide)
        if self.beta is not None:
            core.emit(Cast(wide, self.beta[: self.columns], "none"))
            for row in rows:
                core.barrier("vector")
                core.add(row, row, wide)

    def quantise(self, output: Output, z: Local, values: Local, y: Local, scales: Local) -> None:
        """Quantise *values* for *output*, using *z*, and compute the scales of its rows.

        The fp32 smooth scales replace the loaded rows; in the vendor's kernel those of the first
        output replace the last row of *z*, and only program order makes the other rows read them
        first.
        """
        core, room = self.core, self.x_in.alloc()
        smooth: Local | float = 1.0
        if output.smooth is not None:
            smooth = room[: self.columns]
            core.cast(smooth, self.vectors[output.smooth][: self.columns])
        with core.independent():
            for row, value in zip(self.rows_of(z), self.rows_of(values), strict=True):
                core.mul(row, value, smooth)
        magnitudes = room[: z.count]
        core.abs(magnitudes, z)
        both = zip(self.rows_of(z), self.rows_of(magnitudes), strict=True)
        for index, (row, found) in enumerate(both):
            self.read_absmax("absmax", found)
            self.divide("absmax", scales[index : index + 1])
            core.emit(BinaryScalar("mul", row, row, "factor"))
        core.barrier("vector")
        self.narrow(y, z)
        self.x_in.free(room)


def normal(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """Several rows per step, which begin at whole blocks of the output.

    Everything is single: x and the outputs are stored from one tile, and magnitudes replace the
    loaded rows, so the next ones are loaded when the last factor has been applied.
    """
    steps = SeveralRows(core, p, plan)
    return norm.Kernel(steps.group, steps.begin)


class SingleRow(Steps):
    """The steps of single_row, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        super().__init__(core, p)
        dtype, self.columns, self.pitch = p.x.element, p.columns, padded(p.columns, p.target)
        self.x_in, self.out = core.vecin(FLOAT32, self.pitch), core.vecout(dtype, self.pitch)
        self.values, self.work = (core.tile(FLOAT32, self.pitch)[: p.columns] for _ in range(2))
        self.kept_smooth = core.tile(dtype, self.pitch)
        """The first smooth scales, which stay resident."""
        self.scales_room = plan.row_step
        self.scales_out = core.vecout(FLOAT32, 2 * self.scales_room)

    def begin(self) -> None:
        """Start to load the first smooth scales; the flag of the first row also covers them."""
        smooth = self.p.both[0].smooth
        if smooth is not None:
            self.core.fill(self.kept_smooth, norm.vector_of(smooth))

    def group(self, x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        """Process the rows whose scales are stored together."""
        core, scales, taken = self.core, self.scales_out.alloc(), self.p.taken
        for index in range(x.rows):
            row = slice(index, index + 1), slice(None)
            self.scale(x1[row], x2[row], x[row])
            y = self.out.alloc().as_dtype(self.p.target, 2 * self.pitch)
            stored: list[tuple[Local, GmView]] = []
            for output, view in reversed([*zip(taken, views[::2], strict=True)]):
                number = output.number - 1
                place = y[number * self.pitch :][: self.columns]
                at = number * self.scales_room + index
                quantise = self.quantise_second if number else self.quantise_first
                quantise(output, place, scales[at : at + 1])
                stored.insert(0, (place, view[row]))
            core.barrier("vector")
            self.out.enque(self.out.only)
            self.out.deque()
            for place, y_view in stored:
                core.put_rows(place, y_view)
            self.out.free(self.out.only)
        self.scales_out.enque(scales)
        self.scales_out.deque()
        for output, view in zip(taken, views[1::2], strict=True):
            core.put_rows(scales[(output.number - 1) * self.scales_room :], view)
        self.scales_out.free(scales)

    def load(self, operand: Operand) -> None:
        """Start to load a vector, into the buffer of x1 and x2."""
        tile = self.x_in.alloc()
        self.core.fill(tile, norm.vector_of(operand))
        self.x_in.enque(tile)

    def loaded(self) -> Local:
        """The vector, once it is loaded."""
        return self.x_in.deque().as_dtype(self.p.x.element, self.columns)

    def scale(self, x1: GmView, x2: GmView, x: GmView) -> None:
        """Multiply the sum of a row by 1 / root and gamma, add beta, to `values`."""
        core, p, values, work, columns = self.core, self.p, self.values, self.work, self.columns
        both = self.x_in.only.as_dtype(x.dtype, 2 * self.pitch)
        core.load_pair(self.x_in, both[self.pitch :], x1, x2)
        core.emit(Cast(values, both[:columns], "none"))
        core.emit(Cast(work, both[self.pitch :][:columns], "none"))
        self.x_in.free(self.x_in.only)
        core.barrier("vector")
        core.add(values, work, values)
        rounded = self.out.alloc()[:columns]
        core.cast(rounded, values, "rint")
        core.store_rows(self.out, rounded, x)
        # Loaded while the squares are summed.
        self.load(p.gamma)
        core.mul(work, values, values)
        self.root_of(work)
        core.mul(values, values, "root")
        core.cast(work, self.loaded())
        self.x_in.free(self.x_in.only)
        core.mul(values, values, work)
        if p.beta is not None:
            self.load(p.beta)
            core.cast(work, self.loaded())
            core.add(values, values, work)
            self.x_in.free(self.x_in.only)
        if p.both[1].smooth is not None:
            self.load(p.both[1].smooth)

    def quantise_first(self, output: Output, y: Local, scale: Local) -> None:
        """Quantise `values` as the first output; their magnitudes replace them."""
        self.smoothen(self.kept_smooth[: self.columns] if output.smooth else None)
        self.find_factor(self.values, scale)
        self.narrow(y, self.work)

    def quantise_second(self, output: Output, y: Local, scale: Local) -> None:
        """Quantise `values` as the second output; their magnitudes replace its smooth scales."""
        smooth = self.loaded() if output.smooth else None
        room = self.x_in.only if output.smooth else self.x_in.alloc()
        self.smoothen(smooth)
        self.find_factor(room[: self.columns], scale)
        self.x_in.free(room)
        self.narrow(y, self.work)

    def smoothen(self, smooth: Local | None) -> None:
        """Write `values` times *smooth*, or 1, to `work`."""
        core, work = self.core, self.work
        if smooth is None:
            core.mul(work, self.values, 1.0)
            return
        core.cast(work, smooth)
        core.mul(work, self.values, work)

    def find_factor(self, magnitudes: Local, scale: Local) -> None:
        """Multiply `work` by 127 / M; its *magnitudes* are overwritten."""
        core = self.core
        core.abs(magnitudes, self.work)
        self.read_absmax("absmax", magnitudes)
        self.divide("absmax", scale)
        core.mul(self.work, self.work, "factor")
        core.barrier("vector")


def single_row(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """One row at a time; x and y are stored through one queue, the scales of 128 rows together.

    gamma, beta and the second smooth scales are loaded for each row into the buffer of x1 and x2.
    The second output comes first. The vendor's kernel has no barrier between widening gamma and the
    product with it.
    """
    steps = SingleRow(core, p, plan)
    return norm.Kernel(steps.group, steps.begin)


def slice_d(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """A row in slices, in three passes; all buffers are single.

    First x1 and x2 are added, and the fp32 sum goes to a workspace; then its slices are scaled, and
    z replaces them; then they are quantised, and the scales stored. Data for the workspace and for
    x is copied into output queues. The core has separate rows in the workspace, `(outputs,
    columns)`, the last view.
    """
    return norm.Kernel(Slices(core, p, plan).group)


TEMPLATES: norm.Templates = {
    "normal": normal,
    "single_row": single_row,
    "slice_d": slice_d,
}
