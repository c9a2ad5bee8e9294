"""The templates of npu_add_rms_norm_dynamic_quant: what the vendor's kernels do with rows.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.data.tensor import Operand
from npusim.isa import Local
from npusim.kernel.core import TileQueue
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._protocol import present
from npusim.ops._rms_norm.contract import vector_of
from npusim.ops._rms_norm.residual import load_pair, sum_in_float32
from npusim.ops._rms_norm.steps import halve_into, root_by_scalar, root_of, upper_half
from npusim.ops._rms_norm.tiling import Kernel, Plan
from npusim.ops._row_quant import FLOATS_PER_BLOCK, LARGEST, find_factor, find_max
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Output, Problem, padded

__all__ = ["TEMPLATES", "matrices"]


def matrices(p: Problem) -> dict[str, GmView]:
    """What is cut by rows: x1, x2, x and the outputs `(rows, columns)`, the scales `(rows,)`."""
    views = {name: p.matrix(name) for name in ("x1", "x2", "x")}
    for output in p.taken:
        views[output.y] = GmView.of(output.y, p.target, p.rows, p.columns)
        views[output.scale] = GmView.vector(output.scale, FLOAT32, p.rows)
    return views


class Steps:
    """Small buffers, and steps that a row takes."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        self.pitch = padded(plan.column_step, p.target)
        """Columns from row to row in the buffer."""
        self.absmax, self.total = (core.tile(FLOAT32, FLOATS_PER_BLOCK)[:1] for _ in range(2))
        self.names = tuple(matrices(p))

    def named(self, views: Sequence[GmView]) -> Mapping[str, GmView]:
        """The views of a group by name."""
        return dict(zip(self.names, views, strict=True))

    def smoothed(self, dst: Local, values: Local, smooth: Local | None) -> None:
        """*values* times fp32 *smooth*, or times 1.0, to *dst*."""
        self.core.mul(dst, values, 1.0 if smooth is None else smooth)

    def take_absmax(self, magnitudes: Local, register: str) -> None:
        """The largest of *magnitudes* `(columns,)`, overwritten, into *register*."""
        find_max(self.core, self.absmax, magnitudes)
        self.core.sync("vector", "scalar")
        self.core.get_value(register, self.absmax)

    def divide(self, absmax: str, scale: Local) -> None:
        """127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`."""
        find_factor(self.core, absmax, LARGEST[self.p.target], scale)
        self.core.sync("scalar", "vector")


def normal(core: VectorCore, p: Problem, plan: Plan) -> Kernel:
    """Several rows a step, which begin at whole blocks of what comes out.

    Everything is single, and z comes where x1 and x2 were: the next rows are loaded when the last
    factor has been applied, and only stores go on meanwhile.
    """
    steps, dtype, columns = Steps(core, p, plan), p.x.element, p.columns
    pitch, most = steps.pitch, plan.row_step * steps.pitch
    outputs = [each for each in p.both if each.is_taken or not p.is_masked]
    # x1 and x2, then z in fp32.
    x_in, x_out = core.vecin(FLOAT32, most), core.vecout(dtype, most)
    all_values, all_work = core.tile(FLOAT32, most), core.tile(FLOAT32, most)
    smooth = (output.smooth for output in outputs)
    vectors = {each: core.tile(dtype, pitch) for each in present(p.gamma, p.beta, *smooth)}
    scale_count = align_up(plan.row_step, FLOATS_PER_BLOCK)
    queues: dict[str, TileQueue] = {}
    dropped: dict[str, Local] = {}
    for output in outputs:
        if output.is_taken:
            queues[output.y] = core.vecout(p.target, most)
            queues[output.scale] = core.tiles(FLOAT32, scale_count, "scalar", "mte3")
        else:
            dropped[output.y] = core.tile(p.target, most)
            dropped[output.scale] = core.tile(FLOAT32, scale_count)
    core.claim_tails()

    def begin() -> None:
        for operand, tile in vectors.items():
            core.fill(tile, vector_of(operand))
        core.sync("mte2", "vector")

    def rows_of(plane: Local) -> list[Local]:
        return [plane[start : start + columns] for start in range(0, plane.count, pitch)]

    def room(name: str) -> Local:
        return queues[name].alloc() if name in queues else dropped[name]

    def group(*views: GmView) -> None:
        named = steps.named(views)
        count = named["x1"].rows * pitch
        values, work, loaded = all_values[:count], all_work[:count], x_in.alloc()
        addends = loaded.as_dtype(dtype)[:count], upper_half(loaded, dtype)[:count]
        core.fill(addends[1], named["x2"], pitch)
        core.fill(addends[0], named["x1"], pitch)
        x_in.enque(loaded)
        z = x_in.deque()[:count]
        sum_in_float32(core, values, addends, work)
        total = x_out.alloc()[:count]
        core.cast(total, values)
        core.store(x_out, total, named["x"], pitch)
        scale(values, work)
        found = [(output, *quantise(output, z, values, work)) for output in outputs]
        x_in.free(z)
        for output, y, scales in found:
            if output.is_taken:
                core.store(queues[output.y], y, named[output.y], pitch)
                core.store_rows(queues[output.scale], scales, named[output.scale])

    def widened(operand: Operand, work: Local) -> Local:
        """A vector in fp32, at the start of *work*."""
        core.cast(work[:columns], vectors[operand][:columns])
        return work[:columns]

    def scale(values: Local, work: Local) -> None:
        """Each row of *values* times 1 / root, gamma, and beta added."""
        core.mul(work, values, values)
        for row, squares in zip(rows_of(values), rows_of(work), strict=True):
            halve_into(core, steps.total, squares)
            root_by_scalar(core, steps.total, p)
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
        smooth = widened(output.smooth, work) if output.smooth else None
        for row, value in zip(rows_of(z), rows_of(values), strict=True):
            steps.smoothed(row, value, smooth)
        core.abs(work, z)
        scales = room(output.scale)
        for index, (row, magnitudes) in enumerate(zip(rows_of(z), rows_of(work), strict=True)):
            steps.take_absmax(magnitudes, "absmax")
            steps.divide("absmax", scales[index : index + 1])
            core.mul(row, row, "factor")
        y = room(output.y)[: z.count]
        core.quantize(y, z)
        return y, scales

    return begin, group


def single_row(core: VectorCore, p: Problem, plan: Plan) -> Kernel:
    """A row at a time; x and y leave through one queue, the scales of 128 rows together.

    gamma, beta and the second smooth scales are loaded for each row where x1 and x2 were; what is
    there last serves as room until the row is done. The second output comes first.
    """
    steps, dtype, columns = Steps(core, p, plan), p.x.element, p.columns
    outputs, smooth = p.taken[::-1], p.both[0].smooth
    x_in, out = core.vecin(FLOAT32, steps.pitch), core.vecout(dtype, steps.pitch)
    values, work = (core.tile(FLOAT32, steps.pitch)[:columns] for _ in range(2))
    kept_smooth = core.tile(dtype, steps.pitch) if smooth else None
    scales_out = {
        output.scale: core.tiles(FLOAT32, plan.row_step, "scalar", "mte3") for output in outputs
    }
    core.claim_tails()

    def begin() -> None:
        if kept_smooth is not None and smooth is not None:
            core.fetch(kept_smooth, vector_of(smooth))

    def group(*views: GmView) -> None:
        named = steps.named(views)
        scales = {name: queue.alloc() for name, queue in scales_out.items()}
        for index in range(named["x1"].rows):
            here = {name: view[index : index + 1, :] for name, view in named.items() if view.pitch}
            row(here, {name: tile[index : index + 1] for name, tile in scales.items()})
        for name, tile in scales.items():
            core.store_rows(scales_out[name], tile, named[name])

    def row(views: Mapping[str, GmView], scales: Mapping[str, Local]) -> None:
        first, second = load_pair(core, x_in, views["x1"], views["x2"])
        sum_in_float32(core, values, (first, second), work)
        x_in.free(first)
        total = out.alloc()[:columns]
        core.cast(total, values)
        core.store(out, total, views["x"])
        core.mul(work, values, values)
        # Loaded while the squares are added up.
        loaded = core.load(x_in, vector_of(p.gamma))
        halve_into(core, steps.total, work)
        root_by_scalar(core, steps.total, p)
        core.mul(values, values, "root")
        core.cast(work, loaded.as_dtype(dtype, columns))
        core.mul(values, values, work)
        if p.beta is not None:
            x_in.free(loaded)
            loaded = core.load(x_in, vector_of(p.beta))
            core.cast(work, loaded.as_dtype(dtype, columns))
            core.add(values, values, work)
        for output in outputs:
            factors = kept_smooth
            if output is p.both[1] and output.smooth:
                x_in.free(loaded)
                factors = loaded = core.load(x_in, vector_of(output.smooth))
            elif not output.smooth:
                factors = None
            if factors is not None:
                core.cast(work, factors.as_dtype(dtype, columns))
            steps.smoothed(work, values, None if factors is None else work)
            core.abs(loaded[:columns], work)
            steps.take_absmax(loaded[:columns], "absmax")
            steps.divide("absmax", scales[output.scale])
            core.mul(work, work, "factor")
            y = out.alloc().as_dtype(p.target, columns)
            core.quantize(y, work)
            core.store(out, y, views[output.y])
        x_in.free(loaded)

    return begin, group


def slice_d(core: VectorCore, p: Problem, plan: Plan) -> Kernel:
    """A row in slices, three times; all buffers are single.

    First x1 and x2 are added, and the fp32 sum goes to a workspace; then the slices of it are
    scaled, and z goes back to where they were; then they are quantised. The core has rows of its own
    in the workspace, `(outputs, columns)`, the last view.
    """
    steps, dtype, outputs = Steps(core, p, plan), p.x.element, p.taken
    pitch = steps.pitch
    x_in, vector_in = core.vecin(FLOAT32, pitch), core.vecin(dtype, pitch)
    # A slice on its way to the workspace, and one of x or y.
    wide_out, out = core.vecout(FLOAT32, pitch), core.vecout(dtype, pitch)
    all_values, all_work = core.tile(FLOAT32, pitch), core.tile(FLOAT32, pitch)
    scales_out = {
        output.scale: core.tiles(FLOAT32, FLOATS_PER_BLOCK, "scalar", "mte3") for output in outputs
    }
    core.claim_tails()
    slices = [slice(start, start + width) for start, width in pieces(p.columns, plan.column_step)]

    def group(*views: GmView) -> None:
        *others, kept = views
        named = steps.named(others)
        core.alu("add", "sum", 0)
        for part in slices:
            x1, x2, x = (named[name][:, part] for name in ("x1", "x2", "x"))
            add_up(x1, x2, x, kept[:1, part])
        root_of(core, "sum", p)
        core.sync("mte3", "mte2")
        for part in slices:
            scale(kept, part)
        core.sync("mte3", "mte2")
        for index, output in enumerate(outputs):
            scales = scales_out[output.scale].alloc()
            steps.divide(f"absmax{output.number}", scales[:1])
            core.store_rows(scales_out[output.scale], scales, named[output.scale])
            for part in slices:
                quantise(kept[index : index + 1, part], named[output.y][:, part])

    def add_up(x1: GmView, x2: GmView, x: GmView, exact: GmView) -> None:
        """A slice of x1 and x2 added; the sum of its squares to register `sum`."""
        first, second = load_pair(core, x_in, x1, x2)
        values, rounded = wide_out.alloc()[: x.columns], out.alloc()[: x.columns]
        work = all_work[: x.columns]
        sum_in_float32(core, values, (first, second), work)
        x_in.free(first)
        core.cast(rounded, values)
        core.store(out, rounded, x)
        core.mul(work, values, values)
        core.store(wide_out, values, exact)
        halve_into(core, steps.total, work)
        core.sync("vector", "scalar")
        core.get_value("part", steps.total)
        core.alu("f32_add", "sum", "sum", "part")

    def vector(operand: Operand, part: slice) -> Local:
        """A slice of a vector in fp32, in `work`."""
        view = vector_of(operand)[:, part]
        loaded, wide = core.load(vector_in, view), all_work[: view.columns]
        core.cast(wide, loaded[: view.columns])
        vector_in.free(loaded)
        return wide

    def scale(kept: GmView, part: slice) -> None:
        """A slice of the sum times 1 / root and gamma, plus beta, as z of each output."""
        loaded = core.load(x_in, kept[:1, part])
        count = kept[:1, part].columns
        values, work = all_values[:count], all_work[:count]
        core.mul(values, loaded[:count], "root")
        x_in.free(loaded)
        core.mul(values, values, vector(p.gamma, part))
        if p.beta is not None:
            core.add(values, values, vector(p.beta, part))
        for index, output in enumerate(outputs):
            smooth = vector(output.smooth, part) if output.smooth else None
            z = wide_out.alloc()[:count]
            steps.smoothed(z, values, smooth)
            core.abs(work, z)
            core.store(wide_out, z, kept[index : index + 1, part])
            # M of the row so far. Assumed: a NaN stays.
            absmax = f"absmax{output.number}"
            steps.take_absmax(work, absmax if part is slices[0] else "part")
            if part is not slices[0]:
                core.alu("f32_max", absmax, absmax, "part")

    def quantise(z_view: GmView, output: GmView) -> None:
        """z of a slice times register `factor`, rounded, to *output*."""
        z = core.load(x_in, z_view)[: z_view.columns]
        core.mul(z, z, "factor")
        y = out.alloc().as_dtype(p.target, z.count)
        core.quantize(y, z)
        x_in.free(z)
        core.store(out, y, output)

    return None, group


TEMPLATES: dict[str, Callable[[VectorCore, Problem, Plan], Kernel]] = {
    "normal": normal,
    "single_row": single_row,
    "slice_d": slice_d,
}
