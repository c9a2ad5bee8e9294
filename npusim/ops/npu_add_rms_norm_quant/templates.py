"""The templates of npu_add_rms_norm_quant: how the vendor's kernels process the rows of a core.

ops-nn@e5c3fa9 norm/add_rms_norm_quant/op_kernel, and norm/add_rms_norm_quant_v2, which accepts a
single scale with the same templates. They read as many scales and zero points as a row has columns,
past the only one; here only that one is read, once, before the first row.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.tensor import Operand
from npusim.kernel import (
    FLOAT32,
    GmView,
    Local,
    TileQueue,
)
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore, Residual, upper_half
from npusim.ops.npu_add_rms_norm_quant.single_row import single_n
from npusim.ops.npu_add_rms_norm_quant.steps import Problem, Quantiser


class Second(NamedTuple):
    """Buffers of the second output."""

    scaled: Local
    y_out: TileQueue
    scales: Local
    points: Local | None


class Vectors(Quantiser):
    """Scales and zero points that stay in the buffer, in fp32, and how they are applied.

    Those of the second output are separate; a single scale is in a register.
    """

    scales: Local
    points: Local | None
    second: Second | None

    def tile_for(self, operand: Operand | None) -> Local | None:
        """Room for *operand* in fp32, if it is given."""
        return None if operand is None else self.core.tile(FLOAT32, self.room)

    def claim_second(self) -> Second | None:
        """The buffers of the second output, if there are scales for it."""
        core, optional = self.core, self.p.optional
        if optional.scales2 is None:
            return None
        scaled, y_out = core.tile(FLOAT32, self.room), core.vecout(self.p.x.element, self.room)
        scales = core.tile(FLOAT32, self.room)
        return Second(scaled, y_out, scales, self.tile_for(optional.zero_points2))

    def begin(self) -> None:
        """Compute 1 / the only scale in its register."""
        if self.p.per_tensor:
            self.read_inverse(self.p.scales1)

    def fetch_vectors(self, part: slice = slice(None)) -> None:
        """Load columns *part* of scales and zero points; of a single zero point, all."""
        p, optional, second = self.p, self.p.optional, self.second
        wanted = [(self.points, optional.zero_points1)]
        if not p.per_tensor:
            wanted.insert(0, (self.scales, p.scales1))
        if second is not None:
            wanted += [(second.scales, optional.scales2), (second.points, optional.zero_points2)]
        for tile, operand in wanted:
            if tile is not None and operand is not None:
                self.fetch(tile, operand, slice(None) if p.per_tensor else part)

    def quantise_second(self, values: Local) -> Local | None:
        """Quantise *values* as the second output, in a tile of its queue."""
        if self.second is None:
            return None
        scaled, y_out, scales, points = self.second
        scaled = scaled[: values.count]
        self.scale_by(scaled, values, scales)
        if points is not None:
            self.core.add(scaled, scaled, points[: values.count])
        return self.narrow(y_out.alloc(), scaled)

    def scale_first(self, values: Local) -> None:
        """Scale *values* by the first scales, plus their zero points, for the first output."""
        core, points = self.core, self.points
        if not self.p.per_tensor:
            self.scale_by(values, values, self.scales)
            if points is not None:
                core.add(values, values, points[: values.count])
            return
        core.mul(values, values, "inverse")
        assert points is not None
        core.sync("vector", "scalar")
        core.get_value("point", points[:1])
        core.add(values, values, "point")


class Rows(Vectors):
    """The steps of normal, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        super().__init__(core, p, plan)
        dtype, room, optional = p.x.element, self.room, p.optional
        self.x_in, self.gamma = core.vecin(dtype, room), core.tile(dtype, room)
        self.scales, self.y_out = core.tile(FLOAT32, room), core.vecout(dtype, room)
        values, squares = core.tile(FLOAT32, room), core.tile(FLOAT32, room)
        self.lanes = core.lanes()
        self.beta = None if optional.beta is None else core.tile(dtype, room)
        self.points = self.tile_for(optional.zero_points1)
        self.second = self.claim_second()
        core.claim_tails()
        x2 = upper_half(squares, dtype)
        self.residual = Residual(
            core, self.x_in, x2, self.y_out, values, squares, self.rounding, in_pieces=False
        )

    def begin(self) -> None:
        """Load all vectors, once."""
        super().begin()
        self.fetch(self.gamma, self.p.gamma)
        if self.beta is not None and self.p.optional.beta is not None:
            self.fetch(self.beta, self.p.optional.beta)
        self.fetch_vectors()
        self.core.sync("mte2", "vector")

    def row(self, x1: GmView, x2: GmView, output: GmView, x: GmView, *y2: GmView) -> None:
        """Process a row, from x1 and x2 to both outputs."""
        core = self.core
        values, work = self.residual(x1, x2, x)
        core.read_root(core.root_of_row(values, work, self.lanes, one_by_one=True))
        self.times_gamma(values, self.gamma, work)
        if self.beta is not None:
            core.barrier("mte2")
            self.plus_beta(values, self.beta, work)
        # The next row may be loaded.
        core.sync("vector", "mte2")
        second = self.quantise_second(values)
        self.scale_first(values)
        core.store(self.y_out, self.narrow(self.y_out.alloc(), values), output)
        if self.second is not None and second is not None:
            core.store(self.second.y_out, second, y2[0])


def normal(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """One row at a time. All vectors stay in the buffer, scales and zero points in fp32.

    x2 is loaded into the later buffer of squares. The queue of the first output carries x, and then
    y; all queues are single.
    """
    rows = Rows(core, p, plan)
    return norm.Kernel(rows.row, rows.begin)


class Pieces(Vectors):
    """The steps of split_d, and its buffers."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        super().__init__(core, p, plan)
        dtype, room, rows, optional = p.x.element, self.room, plan.row_step, p.optional
        self.x_in, self.gamma_in = core.vecin(dtype, 2 * room), core.vecin(dtype, room)
        self.y_out, self.scales = core.vecout(dtype, room), core.tile(FLOAT32, room)
        self.points = self.tile_for(optional.zero_points1)
        values, squares = core.tile(FLOAT32, room), core.tile(FLOAT32, room)
        self.sums, self.roots = (core.blocks(rows), core.lanes()), core.tile(FLOAT32, rows)
        self.beta_in = None if optional.beta is None else core.vecin(dtype, room)
        self.second = self.claim_second()
        core.claim_tails()
        second = self.x_in.only[room:]
        self.residual = Residual(
            core, self.x_in, second, self.y_out, values, squares, self.rounding, in_pieces=True
        )
        self.parts = plan.parts(p.columns)

    def group(self, x1: GmView, x2: GmView, output: GmView, x: GmView, *y2: GmView) -> None:
        """Process rows whose squares are summed before they are scaled."""
        core, roots = self.core, self.roots[: x.rows]
        self.residual.roots_of_parts(roots, self.sums, self.parts, x1, x2, x)
        for part in self.parts:
            vectors = self.load_vectors(part)
            for row in range(x.rows):
                here = slice(row, row + 1), part
                values, work = self.residual(x1[here], x2[here], x[here])
                core.read_root(roots[row : row + 1])
                core.barrier("vector")
                self.times_gamma(values, vectors[self.gamma_in], work)
                if self.beta_in is not None:
                    core.barrier("mte2")
                    self.plus_beta(values, vectors[self.beta_in], work)
                second = self.quantise_second(values)
                self.scale_first(values)
                self.store(self.y_out, self.narrow(self.y_out.alloc(), values), output[here])
                if self.second is not None and second is not None:
                    self.store(self.second.y_out, second, y2[0][here])
            for queue, tile in vectors.items():
                queue.free(tile)

    def store(self, queue: TileQueue, out: Local, view: GmView) -> None:
        """Store *out* while all pipes wait."""
        self.core.barrier()
        self.core.store(queue, out, view)
        self.core.barrier()

    def load_vectors(self, part: slice) -> dict[TileQueue, Local]:
        """Load columns *part* of every vector; return those that come in queues."""
        core, vectors = (
            self.core,
            ((self.gamma_in, self.p.gamma), (self.beta_in, self.p.optional.beta)),
        )
        queues = []
        for queue, operand in vectors:
            if queue is not None and operand is not None:
                core.copy_in(queue, norm.vector_of(operand)[:, part])
                queues.append(queue)
        self.fetch_vectors(part)
        return {queue: queue.deque() for queue in queues}


def split_d(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows in pieces, loaded and added twice; all buffers are single.

    First the sums of up to 64 rows, each piece for all of them; then 1 / root of all; then a piece
    of every vector, and of all rows again. x is stored both times, and all pipes wait around each
    store of y.
    """
    pieces = Pieces(core, p, plan)
    return norm.Kernel(pieces.group, pieces.begin)


TEMPLATES: norm.Templates = {
    "single_n": single_n,
    "normal": normal,
    "split_d": split_d,
}
