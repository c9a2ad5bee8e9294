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
from npusim.ops._row_quant import LARGEST, find_factor, find_max

__all__ = ["TEMPLATES", "Output", "Problem", "padded"]


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


def _take_absmax(core: norm.NormCore, register: Register, absmax: Local, magnitudes: Local) -> None:
    """The largest of *magnitudes* `(columns,)`, overwritten, to *absmax* and into *register*."""
    find_max(core, absmax, magnitudes)
    core.sync("vector", "scalar")
    core.get_value(register, absmax)


def _divide(core: norm.NormCore, p: Problem, absmax: Register, scale: Local) -> None:
    """127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`."""
    find_factor(core, absmax, LARGEST[p.target], scale)
    core.sync("scalar", "vector")


def normal(core: norm.NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """Several rows a step, which begin at whole blocks of what comes out.

    Everything is single, and z comes where x1 and x2 were: the next rows are loaded when the last
    factor has been applied, and only stores go on meanwhile.
    """
    dtype, columns, pitch = p.x.element, p.columns, padded(p.columns, p.target)
    most, scale_count = plan.row_step * pitch, align_up(plan.row_step, FLOATS_PER_BLOCK)
    outputs = [each for each in p.both if each.is_taken or not p.is_masked]
    absmax, total = core.blocks()[:1], core.blocks()[:1]
    # x1 and x2, then z in fp32.
    x_in, x_out = core.vecin(FLOAT32, most), core.vecout(dtype, most)
    first, second = x_in.only.as_dtype(dtype)[:most], norm.upper_half(x_in.only, dtype)
    all_values, all_work = core.tile(FLOAT32, most), core.tile(FLOAT32, most)
    smooth = (output.smooth for output in outputs)
    vectors = {each: core.tile(dtype, pitch) for each in ops.present(p.gamma, p.beta, *smooth)}
    queues: dict[Output, tuple[TileQueue, TileQueue]] = {}
    dropped: dict[Output, tuple[Local, Local]] = {}
    for output in outputs:
        if output.is_taken:
            y_out = core.vecout(p.target, most)
            queues[output] = y_out, core.tiles(FLOAT32, scale_count, "scalar", "mte3")
        else:
            dropped[output] = core.tile(p.target, most), core.tile(FLOAT32, scale_count)
    core.claim_tails()

    def begin() -> None:
        for operand, tile in vectors.items():
            core.fill(tile, norm.vector_of(operand))
        core.sync("mte2", "vector")

    def rows_of(plane: Local) -> list[Local]:
        return [plane[start : start + columns] for start in range(0, plane.count, pitch)]

    def group(x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        count = x.rows * pitch
        values, work, z = all_values[:count], all_work[:count], x_in.alloc()[:count]
        core.fill(second, x2, pitch)
        core.fill(first, x1, pitch)
        x_in.enque(z)
        x_in.deque()
        core.add_in_float32(values, (first[:count], second[:count]), work)
        rounded = x_out.alloc()[:count]
        core.cast(rounded, values)
        core.store(x_out, rounded, x, pitch)
        scale(values, work)
        found = {output: quantise(output, z, values, work) for output in outputs}
        x_in.free(z)
        for output, y_view, scale_view in zip(p.taken, views[::2], views[1::2], strict=True):
            (y, scales), (y_out, scale_out) = found[output], queues[output]
            core.store(y_out, y, y_view, pitch)
            core.store_rows(scale_out, scales, scale_view)

    def widened(operand: Operand, work: Local) -> Local:
        """A vector in fp32, at the start of *work*."""
        core.cast(work[:columns], vectors[operand][:columns])
        return work[:columns]

    def scale(values: Local, work: Local) -> None:
        """Each row of *values* times 1 / root, gamma, and beta added."""
        core.mul(work, values, values)
        for row, squares in zip(rows_of(values), rows_of(work), strict=True):
            core.halve_into(total, squares)
            core.root_by_scalar(total)
            core.mul(row, row, "root")
        gamma = widened(p.gamma, work)
        for row in rows_of(values):
            core.mul(row, row, gamma)
        if p.beta is not None:
            beta = widened(p.beta, work)
            for row in rows_of(values):
                core.add(row, row, beta)

    def quantise(output: Output, z: Local, values: Local, work: Local) -> tuple[Local, Local]:
        """*values* as *output*, by way of *z*, and the scales of its rows."""
        smooth = widened(output.smooth, work) if output.smooth else 1.0
        for row, value in zip(rows_of(z), rows_of(values), strict=True):
            core.mul(row, value, smooth)
        core.abs(work, z)
        scales = queues[output][1].alloc() if output.is_taken else dropped[output][1]
        for index, (row, magnitudes) in enumerate(zip(rows_of(z), rows_of(work), strict=True)):
            _take_absmax(core, "absmax", absmax, magnitudes)
            _divide(core, p, "absmax", scales[index : index + 1])
            core.mul(row, row, "factor")
        y = queues[output][0].alloc() if output.is_taken else dropped[output][0]
        core.quantize(y[: z.count], z)
        return y, scales

    return begin, group


def single_row(core: norm.NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """A row at a time; x and y leave through one queue, the scales of 128 rows together.

    gamma, beta and the second smooth scales are loaded for each row where x1 and x2 were; what is
    there last serves as room until the row is done. The second output comes first.
    """
    dtype, columns, pitch = p.x.element, p.columns, padded(p.columns, p.target)
    absmax, total = core.blocks()[:1], core.blocks()[:1]
    x_in, out = core.vecin(FLOAT32, pitch), core.vecout(dtype, pitch)
    values, work = (core.tile(FLOAT32, pitch)[:columns] for _ in range(2))
    first, second = x_in.only.as_dtype(dtype)[:pitch], norm.upper_half(x_in.only, dtype)
    smooth1 = p.both[0].smooth
    kept_smooth = core.tile(dtype, pitch) if smooth1 else None
    outputs = list(enumerate(p.taken))[::-1]
    scales_out = {
        place: core.tiles(FLOAT32, plan.row_step, "scalar", "mte3") for place, _ in outputs
    }
    core.claim_tails()

    def begin() -> None:
        if kept_smooth and smooth1:
            core.fetch(kept_smooth, norm.vector_of(smooth1))

    def group(x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        scales = {place: queue.alloc() for place, queue in scales_out.items()}
        for index in range(x.rows):
            row = slice(index, index + 1), slice(None)
            loaded = scaled(x1[row], x2[row], x[row])
            for place, output in outputs:
                scale, y = scales[place][index : index + 1], views[2 * place][row]
                loaded = quantise(output, loaded, scale, y)
            x_in.free(loaded)
        for place, queue in scales_out.items():
            core.store_rows(queue, scales[place], views[2 * place + 1])

    def load(operand: Operand) -> Local:
        return core.load(x_in, norm.vector_of(operand)).as_dtype(dtype, columns)

    def scaled(x1: GmView, x2: GmView, x: GmView) -> Local:
        """The sum of a row times 1 / root and gamma, plus beta, to `values`; a tile to work in."""
        core.load_pair(x_in, second, x1, x2)
        core.add_in_float32(values, (first[:columns], second[:columns]), work)
        x_in.free(x_in.only)
        rounded = out.alloc()[:columns]
        core.cast(rounded, values)
        core.store(out, rounded, x)
        core.mul(work, values, values)
        # Loaded while the squares are added up.
        loaded = load(p.gamma)
        core.halve_into(total, work)
        core.root_by_scalar(total)
        core.mul(values, values, "root")
        core.cast(work, loaded)
        core.mul(values, values, work)
        if p.beta is not None:
            x_in.free(loaded)
            loaded = load(p.beta)
            core.cast(work, loaded)
            core.add(values, values, work)
        return loaded

    def quantise(output: Output, loaded: Local, scale: Local, y_view: GmView) -> Local:
        """`values` as *output* by way of the tile *loaded*, or another one, which is returned."""
        if output.smooth is not None:
            smooth = kept_smooth
            if output.number == 2:
                x_in.free(loaded)
                smooth = loaded = load(output.smooth)
            assert smooth is not None
            core.cast(work, smooth[:columns])
        core.mul(work, values, 1.0 if output.smooth is None else work)
        magnitudes = loaded.as_dtype(FLOAT32, columns)
        core.abs(magnitudes, work)
        _take_absmax(core, "absmax", absmax, magnitudes)
        _divide(core, p, "absmax", scale)
        core.mul(work, work, "factor")
        y = out.alloc().as_dtype(p.target, columns)
        core.quantize(y, work)
        core.store(out, y, y_view)
        return loaded

    return begin, group


def slice_d(core: norm.NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """A row in slices, three times; all buffers are single.

    First x1 and x2 are added, and the fp32 sum goes to a workspace; then the slices of it are
    scaled, and z goes back to where they were; then they are quantised. The core has rows of its
    own in the workspace, `(outputs, columns)`, the last view.
    """
    dtype, pitch = p.x.element, padded(plan.column_step, p.target)
    absmax, total = core.blocks()[:1], core.blocks()[:1]
    x_in, vector_in = core.vecin(FLOAT32, pitch), core.vecin(dtype, pitch)
    # A slice on its way to the workspace, and one of x or y.
    wide_out, out = core.vecout(FLOAT32, pitch), core.vecout(dtype, pitch)
    all_values, all_work = core.tile(FLOAT32, pitch), core.tile(FLOAT32, pitch)
    scales_out = [core.tiles(FLOAT32, FLOATS_PER_BLOCK, "scalar", "mte3") for _ in p.taken]
    core.claim_tails()
    slices = plan.parts(p.columns)
    first, second = x_in.only.as_dtype(dtype)[:pitch], norm.upper_half(x_in.only, dtype)

    def group(x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        kept = views[-1]
        core.alu("add", "sum", 0)
        for part in slices:
            add_up(x1[:, part], x2[:, part], x[:, part], kept[:1, part])
        core.root_of("sum")
        core.sync("mte3", "mte2")
        for part in slices:
            scale(kept[:, part], part)
        core.sync("mte3", "mte2")
        for index, output in enumerate(p.taken):
            scales = scales_out[index].alloc()
            _divide(core, p, f"absmax{output.number}", scales[:1])
            core.store_rows(scales_out[index], scales, views[2 * index + 1])
            for part in slices:
                quantise(kept[index : index + 1, part], views[2 * index][:, part])

    def add_up(x1: GmView, x2: GmView, x: GmView, exact: GmView) -> None:
        """A slice of x1 and x2 added; the sum of its squares to register `sum`."""
        core.load_pair(x_in, second, x1, x2)
        values, rounded = wide_out.alloc()[: x.columns], out.alloc()[: x.columns]
        work = all_work[: x.columns]
        core.add_in_float32(values, (first[: x.columns], second[: x.columns]), work)
        x_in.free(x_in.only)
        core.cast(rounded, values)
        core.store(out, rounded, x)
        core.mul(work, values, values)
        core.store(wide_out, values, exact)
        core.halve_into(total, work)
        core.sync("vector", "scalar")
        core.get_value("part", total)
        core.alu("f32_add", "sum", "sum", "part")

    def vector(operand: Operand, part: slice) -> Local:
        """A slice of a vector in fp32, in `all_work`."""
        view = norm.vector_of(operand)[:, part]
        loaded, wide = core.load(vector_in, view), all_work[: view.columns]
        core.cast(wide, loaded[: view.columns])
        vector_in.free(loaded)
        return wide

    def scale(kept: GmView, part: slice) -> None:
        """A slice of the sum times 1 / root and gamma, plus beta, as z of each output."""
        loaded = core.load(x_in, kept[:1, :])[: kept.columns]
        values, work = all_values[: kept.columns], all_work[: kept.columns]
        core.mul(values, loaded, "root")
        x_in.free(loaded)
        core.mul(values, values, vector(p.gamma, part))
        if p.beta is not None:
            core.add(values, values, vector(p.beta, part))
        for index, output in enumerate(p.taken):
            smooth = vector(output.smooth, part) if output.smooth else 1.0
            z = wide_out.alloc()[: kept.columns]
            core.mul(z, values, smooth)
            core.abs(work, z)
            core.store(wide_out, z, kept[index : index + 1, :])
            # M of the row so far. Assumed: a NaN stays.
            largest = f"absmax{output.number}"
            _take_absmax(core, largest if part is slices[0] else "part", absmax, work)
            if part is not slices[0]:
                core.alu("f32_max", largest, largest, "part")

    def quantise(z_view: GmView, y_view: GmView) -> None:
        """z of a slice times register `factor`, rounded."""
        z = core.load(x_in, z_view)[: z_view.columns]
        core.mul(z, z, "factor")
        y = out.alloc().as_dtype(p.target, z.count)
        core.quantize(y, z)
        x_in.free(z)
        core.store(out, y, y_view)

    return None, group


TEMPLATES: norm.Templates = {
    "normal": normal,
    "single_row": single_row,
    "slice_d": slice_d,
}
