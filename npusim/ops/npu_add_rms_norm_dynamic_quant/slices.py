"""The template slice_d of npu_add_rms_norm_dynamic_quant: a row in slices.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_kernel/add_rms_norm_dynamic_quant_cut_d_kernel.h.
"""

from __future__ import annotations

from npusim.data.tensor import Operand
from npusim.isa import BinaryScalar, Cast
from npusim.kernel import FLOAT32, FLOATS_PER_BLOCK, GmView, Local
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore, block_of
from npusim.ops._row_quant import LARGEST
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import Problem, Steps, padded


class Slices(Steps):
    """The steps of slice_d, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        super().__init__(core, p)
        dtype, self.pitch = p.x.element, padded(plan.column_step, p.target)
        self.out, self.x_in = core.vecout(dtype, self.pitch), core.vecin(FLOAT32, self.pitch)
        # A slice before it is stored to the workspace.
        self.wide_out = core.vecout(FLOAT32, self.pitch)
        self.z: dict[int, Local] = {}
        """z of the first output and of the second; the other tiles are scratch."""
        self.z[1], self.z[2], self.values = (core.tile(FLOAT32, self.pitch) for _ in range(3))
        self.scales_out = core.tiles(FLOAT32, 2 * FLOATS_PER_BLOCK, "scalar", "mte3")
        self.slices = plan.parts(p.columns)

    def group(self, x1: GmView, x2: GmView, x: GmView, *views: GmView) -> None:
        """Process a row, from x1 and x2 to y."""
        core, slices, kept, taken = self.core, self.slices, views[-1], self.p.taken
        core.alu("add", "sum", 0)
        for part in slices:
            self.add_up(x1[:, part], x2[:, part], x[:, part], kept[:1, part])
        core.root_of("sum")
        core.sync("scalar", "vector")
        core.sync("mte3", "mte2")
        for output in taken:
            core.alu("add", f"absmax{output.number}", 0)
        for part in slices:
            self.scale(kept[:, part], part)
        for output in taken:
            largest = float(LARGEST[self.p.target])
            core.alu("f32_div", f"factor{output.number}", largest, f"absmax{output.number}")
        core.sync("scalar", "vector")
        core.sync("mte3", "mte2")
        for part in slices:
            self.quantise(kept[:, part], [view[:, part] for view in views[:-1:2]])
        self.store_scales(views[1:-1:2])

    def load(self, *views: GmView) -> Local:
        """Load *views*, a slice's room apart, to the tile of `x_in`, and wait for them."""
        tile = self.x_in.alloc()
        for index, view in enumerate(views):
            room = tile.as_dtype(view.dtype, 2 * tile.count)[index * self.pitch :]
            self.core.fill(room[: view.columns], view)
        self.x_in.enque(tile)
        return self.x_in.deque().as_dtype(views[0].dtype, len(views) * self.pitch)

    def add_up(self, x1: GmView, x2: GmView, x: GmView, exact: GmView) -> None:
        """Add a slice of x1 and x2; the sum of its squares goes to register `sum`."""
        core, count = self.core, x.columns
        first, second, values = (each[:count] for each in (self.z[1], self.z[2], self.values))
        loaded = self.load(x1, x2)
        core.emit(Cast(first, loaded[:count], "none"))
        core.emit(Cast(second, loaded[self.pitch :][:count], "none"))
        self.x_in.free(self.x_in.only)
        core.barrier("vector")
        core.add(values, first, second)
        rounded, wide = self.out.alloc()[:count], self.wide_out.alloc()[:count]
        core.emit(Cast(rounded, values, core.rounding(x.dtype)))
        self.out.enque(rounded)
        core.emit(BinaryScalar("add", wide, values, 0.0))
        self.wide_out.enque(wide)
        core.barrier("vector")
        for queue, view in ((self.out, x), (self.wide_out, exact)):
            tile = queue.deque()
            core.put_rows(tile, view)
            queue.free(tile)
        core.mul(first, values, values)
        core.read_sum("part", first)
        core.alu("f32_add", "sum", "sum", "part")
        core.barrier("vector")

    def fetch(self, operand: Operand, part: slice) -> Local:
        """Load a slice of a vector as fp32, into the buffer of z of the second output."""
        loaded = self.load(norm.vector_of(operand)[:, part])
        wide = self.z[2][: part.stop - part.start]
        self.core.cast(wide, loaded[: wide.count])
        self.x_in.free(self.x_in.only)
        return wide

    def scale(self, kept: GmView, part: slice) -> None:
        """A slice of the sum times 1 / root and gamma, plus beta, as z of each output."""
        core, p, count = self.core, self.p, kept.columns
        values, first = self.values[:count], self.z[1][:count]
        loaded = self.load(kept[:1, :])
        core.mul(first, loaded[:count], "root")
        self.x_in.free(self.x_in.only)
        core.mul(values, first, self.fetch(p.gamma, part))
        if p.beta is not None:
            core.add(values, values, self.fetch(p.beta, part))
        self.fetch_smooth(part)
        for index, output in enumerate(p.taken):
            z = self.z[output.number][:count]
            core.mul(z, values, z if output.smooth else 1.0)
            wide = self.wide_out.alloc()[:count]
            core.emit(BinaryScalar("add", wide, z, 0.0))
            core.store_rows(self.wide_out, wide, kept[index : index + 1, :])
        for output in reversed(p.taken):
            # Running maximum of the row: a value that is not larger, such as NaN, does not change
            # it.
            largest = f"absmax{output.number}"
            core.abs(values, self.z[output.number][:count])
            self.read_absmax("part", values)
            core.alu("f32_lt", "is_larger", largest, "part")
            core.alu("select", largest, "is_larger", "part", largest)

    def fetch_smooth(self, part: slice) -> None:
        """Load a slice of the smooth scales as fp32, each into the buffer of z of its output."""
        core, count = self.core, part.stop - part.start
        given = [output for output in self.p.taken if output.smooth is not None]
        smooth = [norm.vector_of(each.smooth)[:, part] for each in given if each.smooth]
        if not smooth:
            return
        loaded = self.load(*smooth)
        for index, output in enumerate(given):
            narrow = loaded[index * self.pitch :][:count]
            core.emit(Cast(self.z[output.number][:count], narrow, "none"))
        self.x_in.free(self.x_in.only)
        core.barrier("vector")

    def quantise(self, kept: GmView, outputs: list[GmView]) -> None:
        """Multiply z of a slice of each output by its factor, and round."""
        core, tile, count = self.core, self.out.alloc(), kept.columns
        y = tile.as_dtype(self.p.target, 2 * self.pitch)
        rooms, places = {1: self.values, 2: self.z[1]}, []
        for index, output in enumerate(self.p.taken):
            z, room = self.load(kept[index : index + 1, :]), rooms[output.number][:count]
            core.mul(room, z[:count], f"factor{output.number}")
            self.x_in.free(self.x_in.only)
            places.append(y[(output.number - 1) * self.pitch :][:count])
            self.narrow(places[-1], room)
        self.out.enque(tile)
        self.out.deque()
        for place, view in zip(places, outputs, strict=True):
            core.put_rows(place, view)
        self.out.free(tile)

    def store_scales(self, views: tuple[GmView, ...]) -> None:
        """Store 1 / factor of each output."""
        core, scales = self.core, self.scales_out.alloc()
        for output in self.p.taken:
            core.alu("f32_div", "scale", 1.0, f"factor{output.number}")
            core.set_value(block_of(scales, output.number - 1)[:1], "scale")
        self.scales_out.enque(scales)
        self.scales_out.deque()
        for output, view in zip(self.p.taken, views, strict=True):
            core.put_rows(block_of(scales, output.number - 1), view)
        self.scales_out.free(scales)
