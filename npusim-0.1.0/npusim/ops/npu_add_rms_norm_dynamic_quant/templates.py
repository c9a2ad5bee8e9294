"""The templates of npu_add_rms_norm_dynamic_quant: what the vendor's kernels do with rows.

Each gets x1, x2 and x, and of the outputs that are asked for y and its scales.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import align_up
from npusim.data.tensor import Operand
from npusim.kernel import FLOAT32, FLOATS_PER_BLOCK, INT4, DType, GmView, Local, Register, TileQueue
from npusim.ops import _rms_norm as norm
from npusim.ops import _vocabulary as ops
from npusim.ops._rms_norm.core import NormCore, upper_half
from npusim.ops._row_quant import LARGEST, find_factor, find_max


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two quantised outputs."""

    number: int
    """1 or 2."""
    smooth: Operand | None
    is_taken: bool
    """Whether it is asked for."""

    @property
    def y(self) -> str:
        """Its name as a tensor."""
        return "output" if self.number == 1 else "y2"

    @property
    def scale(self) -> str:
        """The name of its scales."""
        return f"scale{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(norm.Problem):
    """A checked call."""

    beta: Operand | None
    both: tuple[Output, Output]
    is_masked: bool
    """Whether an output_mask says what is asked for: without one both are computed by normal."""
    target: DType
    """int8 or int4."""

    @property
    def taken(self) -> tuple[Output, ...]:
        """The outputs that are asked for."""
        return tuple(output for output in self.both if output.is_taken)


def padded(columns: int, target: DType) -> int:
    """Columns of a row in the buffer: whole blocks of what comes out."""
    return align_up(columns, 64 if target is INT4 else 32)


Room = TileQueue | Local
"""Where what comes out is put: a queue, or a tile if nobody asks for it."""


class Steps:
    """What all templates do to rows, and what they claim first: two numbers, x1 and x2.

    x1 and x2 have *count* elements, and half of an fp32 tile each.
    """

    def __init__(self, core: NormCore, p: Problem, count: int) -> None:
        self.core, self.p, dtype = core, p, p.x.element
        self.absmax, self.total = core.blocks()[:1], core.blocks()[:1]
        self.x_in = core.vecin(FLOAT32, count)
        self.first = self.x_in.only.as_dtype(dtype)[:count]
        self.second = upper_half(self.x_in.only, dtype)

    def take_absmax(self, register: Register, magnitudes: Local) -> None:
        """The largest of *magnitudes* `(columns,)`, which are overwritten, into *register*."""
        find_max(self.core, self.absmax, magnitudes)
        self.core.sync("vector", "scalar")
        self.core.get_value(register, self.absmax)

    def divide(self, absmax: Register, scale: Local) -> None:
        """127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`."""
        find_factor(self.core, absmax, LARGEST[self.p.target], scale)
        self.core.sync("scalar", "vector")


class SeveralRows(Steps):
    """The steps of normal, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        dtype, self.columns, self.pitch = p.x.element, p.columns, padded(p.columns, p.target)
        most, scale_count = plan.row_step * self.pitch, align_up(plan.row_step, FLOATS_PER_BLOCK)
        super().__init__(core, p, most)
        self.x_out = core.vecout(dtype, most)
        self.values, self.work = core.tile(FLOAT32, most), core.tile(FLOAT32, most)
        outputs = [each for each in p.both if each.is_taken or not p.is_masked]
        smooth = (output.smooth for output in outputs)
        self.vectors = {
            each: core.tile(dtype, self.pitch) for each in ops.present(p.gamma, p.beta, *smooth)
        }
        self.rooms: dict[Output, tuple[Room, Room]] = {}
        """For the rows of an output, and for their scales."""
        for output in outputs:
            if output.is_taken:
                y_out = core.vecout(p.target, most)
                self.rooms[output] = y_out, core.tiles(FLOAT32, scale_count, "scalar", "mte3")
            else:
                self.rooms[output] = core.tile(p.target, most), core.tile(FLOAT32, scale_count)
        core.claim_tails()

    def begin(self) -> None:
        """Load all vectors for good."""
        for operand, tile in self.vectors.items():
            self.core.fill(tile, norm.vector_of(operand))
        self.core.sync("mte2", "vector")

    def group(self, x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        """The rows of a step."""
        core, pitch = self.core, self.pitch
        z = self.x_in.alloc()[: x.rows * pitch]
        values, work = self.values[: z.count], self.work[: z.count]
        core.fill(self.second, x2, pitch)
        core.fill(self.first, x1, pitch)
        self.x_in.enque(z)
        self.x_in.deque()
        core.add_in_float32(values, (self.first[: z.count], self.second[: z.count]), work)
        rounded = self.x_out.alloc()[: z.count]
        core.cast(rounded, values)
        core.store(self.x_out, rounded, x, pitch)
        self.scale(values, work)
        found = {output: self.quantise(output, z, values, work) for output in self.rooms}
        self.x_in.free(z)
        for output, y_view, scale_view in zip(self.p.taken, views[::2], views[1::2], strict=True):
            (y, scales), (y_out, scale_out) = found[output], self.rooms[output]
            assert isinstance(y_out, TileQueue)
            assert isinstance(scale_out, TileQueue)
            core.store(y_out, y, y_view, pitch)
            core.store_rows(scale_out, scales, scale_view)

    def rows_of(self, plane: Local) -> list[Local]:
        """The rows of *plane* `(rows, pitch)`, without what fills them up."""
        starts = range(0, plane.count, self.pitch)
        return [plane[start : start + self.columns] for start in starts]

    def widened(self, operand: Operand, work: Local) -> Local:
        """A vector in fp32, at the start of *work*."""
        wide = work[: self.columns]
        self.core.cast(wide, self.vectors[operand][: self.columns])
        return wide

    def scale(self, values: Local, work: Local) -> None:
        """Each row of *values* times 1 / root, gamma, and beta added."""
        core, p, rows = self.core, self.p, self.rows_of(values)
        core.mul(work, values, values)
        for row, squares in zip(rows, self.rows_of(work), strict=True):
            core.halve_into(self.total, squares)
            core.root_by_scalar(self.total)
            core.mul(row, row, "root")
        gamma = self.widened(p.gamma, work)
        for row in rows:
            core.mul(row, row, gamma)
        if p.beta is not None:
            beta = self.widened(p.beta, work)
            for row in rows:
                core.add(row, row, beta)

    def quantise(self, output: Output, z: Local, values: Local, work: Local) -> tuple[Local, Local]:
        """*values* as *output*, by way of *z*, and the scales of its rows."""
        core, (y_room, scale_room) = self.core, self.rooms[output]
        smooth = self.widened(output.smooth, work) if output.smooth else 1.0
        for row, value in zip(self.rows_of(z), self.rows_of(values), strict=True):
            core.mul(row, value, smooth)
        core.abs(work, z)
        scales = _tile_of(scale_room)
        both = zip(self.rows_of(z), self.rows_of(work), strict=True)
        for index, (row, magnitudes) in enumerate(both):
            self.take_absmax("absmax", magnitudes)
            self.divide("absmax", scales[index : index + 1])
            core.mul(row, row, "factor")
        y = _tile_of(y_room)
        core.quantize(y[: z.count], z)
        return y, scales


def _tile_of(room: Room) -> Local:
    """The next tile of a queue, or the tile itself."""
    return room if isinstance(room, Local) else room.alloc()


def normal(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """Several rows a step, which begin at whole blocks of what comes out.

    Everything is single, and z comes where x1 and x2 were: the next rows are loaded when the last
    factor has been applied, and only stores go on meanwhile.
    """
    steps = SeveralRows(core, p, plan)
    return norm.Kernel(steps.group, steps.begin)


class SingleRow(Steps):
    """The steps of single_row, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        dtype, columns, pitch = p.x.element, p.columns, padded(p.columns, p.target)
        super().__init__(core, p, pitch)
        self.out = core.vecout(dtype, pitch)
        self.values, self.work = (core.tile(FLOAT32, pitch)[:columns] for _ in range(2))
        self.kept_smooth = core.tile(dtype, pitch) if p.both[0].smooth else None
        """The first smooth scales, which stay."""
        self.outputs = list(enumerate(p.taken))[::-1]
        self.scales_out = {
            place: core.tiles(FLOAT32, plan.row_step, "scalar", "mte3") for place, _ in self.outputs
        }
        core.claim_tails()

    def begin(self) -> None:
        """Load the first smooth scales."""
        smooth = self.p.both[0].smooth
        if self.kept_smooth and smooth:
            self.core.fetch(self.kept_smooth, norm.vector_of(smooth))

    def group(self, x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        """The rows whose scales leave together."""
        scales = {place: queue.alloc() for place, queue in self.scales_out.items()}
        for index in range(x.rows):
            row = slice(index, index + 1), slice(None)
            loaded = self.scaled(x1[row], x2[row], x[row])
            for place, output in self.outputs:
                scale, y = scales[place][index : index + 1], views[2 * place][row]
                loaded = self.quantise(output, loaded, scale, y)
            self.x_in.free(loaded)
        for place, queue in self.scales_out.items():
            self.core.store_rows(queue, scales[place], views[2 * place + 1])

    def load(self, operand: Operand) -> Local:
        """A vector, where x1 and x2 were."""
        loaded = self.core.load(self.x_in, norm.vector_of(operand))
        return loaded.as_dtype(self.p.x.element, self.p.columns)

    def scaled(self, x1: GmView, x2: GmView, x: GmView) -> Local:
        """The sum of a row times 1 / root and gamma, plus beta, to `values`; a tile to work in."""
        core, values, work, columns = self.core, self.values, self.work, self.p.columns
        core.load_pair(self.x_in, self.second, x1, x2)
        core.add_in_float32(values, (self.first[:columns], self.second[:columns]), work)
        self.x_in.free(self.x_in.only)
        rounded = self.out.alloc()[:columns]
        core.cast(rounded, values)
        core.store(self.out, rounded, x)
        core.mul(work, values, values)
        # Loaded while the squares are added up.
        loaded = self.load(self.p.gamma)
        core.halve_into(self.total, work)
        core.root_by_scalar(self.total)
        core.mul(values, values, "root")
        core.cast(work, loaded)
        core.mul(values, values, work)
        if self.p.beta is not None:
            self.x_in.free(loaded)
            loaded = self.load(self.p.beta)
            core.cast(work, loaded)
            core.add(values, values, work)
        return loaded

    def quantise(self, output: Output, loaded: Local, scale: Local, y_view: GmView) -> Local:
        """`values` as *output* by way of the tile *loaded*, or another one, which is returned."""
        core, work, columns = self.core, self.work, self.p.columns
        if output.smooth is not None:
            smooth = self.kept_smooth
            if output.number == 2:
                self.x_in.free(loaded)
                smooth = loaded = self.load(output.smooth)
            assert smooth is not None
            core.cast(work, smooth[:columns])
        core.mul(work, self.values, 1.0 if output.smooth is None else work)
        magnitudes = loaded.as_dtype(FLOAT32, columns)
        core.abs(magnitudes, work)
        self.take_absmax("absmax", magnitudes)
        self.divide("absmax", scale)
        core.mul(work, work, "factor")
        y = self.out.alloc().as_dtype(self.p.target, columns)
        core.quantize(y, work)
        core.store(self.out, y, y_view)
        return loaded


def single_row(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """A row at a time; x and y leave through one queue, the scales of 128 rows together.

    gamma, beta and the second smooth scales are loaded for each row where x1 and x2 were; what is
    there last serves as room until the row is done. The second output comes first.
    """
    steps = SingleRow(core, p, plan)
    return norm.Kernel(steps.group, steps.begin)


class Slices(Steps):
    """The steps of slice_d, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        dtype, pitch = p.x.element, padded(plan.column_step, p.target)
        super().__init__(core, p, pitch)
        self.vector_in = core.vecin(dtype, pitch)
        # A slice on its way to the workspace, and one of x or y.
        self.wide_out, self.out = core.vecout(FLOAT32, pitch), core.vecout(dtype, pitch)
        self.values, self.work = core.tile(FLOAT32, pitch), core.tile(FLOAT32, pitch)
        self.scales_out = [core.tiles(FLOAT32, FLOATS_PER_BLOCK, "scalar", "mte3") for _ in p.taken]
        core.claim_tails()
        self.slices = plan.parts(p.columns)

    def group(self, x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        """A row, from x1 and x2 to y."""
        core, slices, kept = self.core, self.slices, views[-1]
        core.alu("add", "sum", 0)
        for part in slices:
            self.add_up(x1[:, part], x2[:, part], x[:, part], kept[:1, part])
        core.root_of("sum")
        core.sync("mte3", "mte2")
        for part in slices:
            self.scale(kept[:, part], part)
        core.sync("mte3", "mte2")
        for index, output in enumerate(self.p.taken):
            scales = self.scales_out[index].alloc()
            self.divide(f"absmax{output.number}", scales[:1])
            core.store_rows(self.scales_out[index], scales, views[2 * index + 1])
            for part in slices:
                self.quantise(kept[index : index + 1, part], views[2 * index][:, part])

    def add_up(self, x1: GmView, x2: GmView, x: GmView, exact: GmView) -> None:
        """A slice of x1 and x2 added; the sum of its squares to register `sum`."""
        core, columns = self.core, x.columns
        core.load_pair(self.x_in, self.second, x1, x2)
        values, rounded = self.wide_out.alloc()[:columns], self.out.alloc()[:columns]
        work = self.work[:columns]
        core.add_in_float32(values, (self.first[:columns], self.second[:columns]), work)
        self.x_in.free(self.x_in.only)
        core.cast(rounded, values)
        core.store(self.out, rounded, x)
        core.mul(work, values, values)
        core.store(self.wide_out, values, exact)
        core.halve_into(self.total, work)
        core.sync("vector", "scalar")
        core.get_value("part", self.total)
        core.alu("f32_add", "sum", "sum", "part")

    def vector(self, operand: Operand, part: slice) -> Local:
        """A slice of a vector in fp32, in `work`."""
        view = norm.vector_of(operand)[:, part]
        loaded, wide = self.core.load(self.vector_in, view), self.work[: view.columns]
        self.core.cast(wide, loaded[: view.columns])
        self.vector_in.free(loaded)
        return wide

    def scale(self, kept: GmView, part: slice) -> None:
        """A slice of the sum times 1 / root and gamma, plus beta, as z of each output."""
        core, p = self.core, self.p
        loaded = core.load(self.x_in, kept[:1, :])[: kept.columns]
        values, work = self.values[: kept.columns], self.work[: kept.columns]
        core.mul(values, loaded, "root")
        self.x_in.free(loaded)
        core.mul(values, values, self.vector(p.gamma, part))
        if p.beta is not None:
            core.add(values, values, self.vector(p.beta, part))
        for index, output in enumerate(p.taken):
            smooth = self.vector(output.smooth, part) if output.smooth else 1.0
            z = self.wide_out.alloc()[: kept.columns]
            core.mul(z, values, smooth)
            core.abs(work, z)
            core.store(self.wide_out, z, kept[index : index + 1, :])
            # M of the row so far. Assumed: a NaN stays.
            largest, is_first = f"absmax{output.number}", part is self.slices[0]
            self.take_absmax(largest if is_first else "part", work)
            if not is_first:
                core.alu("f32_max", largest, largest, "part")

    def quantise(self, z_view: GmView, y_view: GmView) -> None:
        """z of a slice times register `factor`, rounded."""
        core = self.core
        z = core.load(self.x_in, z_view)[: z_view.columns]
        core.mul(z, z, "factor")
        y = self.out.alloc().as_dtype(self.p.target, z.count)
        core.quantize(y, z)
        self.x_in.free(z)
        core.store(self.out, y, y_view)


def slice_d(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """A row in slices, three times; all buffers are single.

    First x1 and x2 are added, and the fp32 sum goes to a workspace; then the slices of it are
    scaled, and z goes back to where they were; then they are quantised. The core has rows of its
    own in the workspace, `(outputs, columns)`, the last view.
    """
    return norm.Kernel(Slices(core, p, plan).group)


TEMPLATES: norm.Templates = {
    "normal": normal,
    "single_row": single_row,
    "slice_d": slice_d,
}
