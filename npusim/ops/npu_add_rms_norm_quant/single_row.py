"""The template single_n of npu_add_rms_norm_quant: the only row of a core, explicit flags."""

from __future__ import annotations

from npusim.data.tensor import Operand
from npusim.devices.schema import Pipe
from npusim.kernel import (
    FLOAT32,
    FLOATS_PER_REPEAT,
    BinaryScalar,
    Cast,
    GmView,
    Local,
)
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore
from npusim.ops.npu_add_rms_norm_quant.steps import Problem, Quantiser


class SingleRow(Quantiser):
    """The only row of a core; single_n sets and waits for its flags explicitly.

    x and gamma later use the buffers of x1 and x2; squares begin with 1 / root, and the first
    scales use the buffer of y.
    """

    FIRST, SECOND, SCALES, BETA = range(4)
    """Events of loads: into the buffers of x1 and x2, of the first scales, and of beta."""

    def __init__(self, core: NormCore, p: Problem, plan: norm.Plan) -> None:
        super().__init__(core, p, plan)
        dtype, room, count, optional = p.x.element, self.room, p.columns, p.optional
        both = core.tile(dtype, 2 * room)
        self.first, self.second = both[:count], both[room : room + count]
        self.over_both = both.as_dtype(FLOAT32, count)
        """fp32 over x1 and x2."""
        self.values = core.tile(FLOAT32, room)[:count]
        self.squares, self.scales = core.tile(FLOAT32, room), core.tile(FLOAT32, room)
        self.lanes = self.scales[:FLOATS_PER_REPEAT]
        has_second = optional.scales2 is not None
        self.spare = core.tile(FLOAT32, room) if has_second or optional.beta is not None else None
        """beta, and later the row for the second output."""
        self.scales2 = core.tile(FLOAT32, room) if has_second else None
        has_points = has_second and optional.zero_points2 is not None
        self.points2 = core.tile(FLOAT32, room) if has_points else None

    def begin(self) -> None:
        """Start to load beta, and the vectors of the second output."""
        core, optional = self.core, self.p.optional
        if optional.beta is not None and self.spare is not None:
            core.fill(self.spare.as_dtype(self.p.x.element), norm.vector_of(optional.beta))
            core.set_flag("mte2", "vector", self.BETA)
        if optional.scales2 is not None and self.scales2 is not None:
            self.fetch(self.scales2, optional.scales2)
            if optional.zero_points2 is not None and self.points2 is not None:
                self.fetch(self.points2, optional.zero_points2)

    def load(self, tile: Local, operand: Operand, event: int) -> None:
        """Start to load *operand* to the end of *tile*."""
        self.fill(tile, operand)
        self.core.set_flag("mte2", "vector", event)

    def store(self, tile: Local, view: GmView) -> None:
        """Start to store *tile* to *view* when the vector pipe has finished."""
        self.core.sync("vector", "mte3")
        self.core.data_copy(view.operand, tile)

    def row(self, x1: GmView, x2: GmView, output: GmView, x: GmView, *y2: GmView) -> None:
        """Process the row, from x1 and x2 to both outputs."""
        core, values, work = self.core, self.values, self.squares[: self.p.columns]
        self.add(x1, x2)
        core.sync("vector", "mte2")
        if self.in_half:
            core.sync("vector", "mte3")
        self.load(self.second, self.p.gamma, self.SECOND)
        if not self.in_half:
            core.sync("vector", "mte3")
        core.data_copy(x.operand, self.first)
        core.set_flag("mte3", "vector", self.FIRST)
        if self.in_half:
            self.load(self.scales, self.p.scales1, self.SCALES)
        if not self.p.per_tensor:
            core.cast(values, self.first)
        core.read_root(self.root_of_row(work))
        self.scale_in_half() if self.in_half else self.scale(work)
        self.plus_beta_if_given(work)
        if not self.in_half:
            # The first zero points are loaded over the squares after this.
            core.set_flag("vector", "mte2", self.FIRST)
            self.await_scales()
        if self.scales2 is not None:
            self.store_second(y2[0])
        if self.in_half:
            self.await_scales()
        self.scale_first(work)
        out = self.narrow(self.scales, values)
        self.store(out, output)

    def add(self, x1: GmView, x2: GmView) -> None:
        """Write the rounded sum of *x1* and *x2* over x1; an fp16 sum also goes to `values`."""
        core, first, second, values = self.core, self.first, self.second, self.values
        for tile, view, event in ((first, x1, self.FIRST), (second, x2, self.SECOND)):
            core.fill(tile, view)
            core.set_flag("mte2", "vector", event)
        core.wait_flag("mte2", "vector", self.FIRST)
        if self.in_half:
            core.wait_flag("mte2", "vector", self.SECOND)
            core.add(first, first, second)
            return
        work = self.squares[: first.count]
        core.emit(Cast(values, first, "none"))
        core.wait_flag("mte2", "vector", self.SECOND)
        core.cast(work, second)
        core.add(values, values, work)
        core.cast(first, values)

    def root_of_row(self, squares: Local) -> Local:
        """1 / root of the row, `(1,)`, at the start of *squares*; fp16 is summed by halves.

        Its ones overwrite the row in fp32, which is then widened again.
        """
        core, values = self.core, self.values
        if not self.in_half:
            return core.root_of_row(values, squares, self.lanes)
        core.square(squares, values)
        core.read_sum("sum", squares)
        core.barrier("vector")
        core.root_by_vector(squares[:1], values[:1])
        core.cast(values, self.first)
        return squares[:1]

    def scale_in_half(self) -> None:
        """fp16 times register `root`, rounded, times gamma, rounded, as fp32 to `values`."""
        core, first, values = self.core, self.first, self.values
        core.set_flag("scalar", "mte2", self.FIRST)
        core.mul(values, values, "root")
        core.wait_flag("mte3", "vector", self.FIRST)
        core.cast(first, values)
        core.wait_flag("mte2", "vector", self.SECOND)
        core.mul(first, first, self.second)
        core.cast(values, first)

    def scale(self, work: Local) -> None:
        """Multiply `values` by register `root` and gamma; the first scales replace the sums."""
        core, values = self.core, self.values
        core.sync("vector", "mte2")
        if not self.p.per_tensor:
            self.load(self.scales, self.p.scales1, self.SCALES)
        core.mul(values, values, "root")
        core.wait_flag("mte3", "vector", self.FIRST)
        core.wait_flag("mte2", "vector", self.SECOND)
        core.cast(work, self.second)
        core.mul(values, values, work)

    def plus_beta_if_given(self, work: Local) -> None:
        """Add beta to `values`, if given."""
        if self.p.optional.beta is None or self.spare is None:
            return
        core = self.core
        core.wait_flag("mte2", "vector", self.BETA)
        if not self.in_half:
            core.barrier()
        room = self.over_both if self.in_half else work
        self.plus_beta(self.values, self.spare.as_dtype(self.p.x.element), room)

    def await_scales(self) -> None:
        """Wait for the first scales."""
        if not self.p.per_tensor:
            self.core.wait_flag("mte2", "vector", self.SCALES)

    def store_second(self, y2: GmView) -> None:
        """Store the second output, from the buffer of its scales."""
        core, values = self.core, self.values
        assert self.spare is not None
        assert self.scales2 is not None
        scaled = self.spare[: values.count]
        self.scale_by(scaled, values, self.scales2)
        if self.points2 is not None:
            core.add(scaled, scaled, self.points2[: values.count])
        self.store(self.narrow(self.scales2, scaled), y2)

    def scale_first(self, work: Local) -> None:
        """Scale `values` by the first scales, plus zero points, which are loaded into *work*."""
        core, values, points = self.core, self.values, self.p.optional.zero_points1
        if self.p.per_tensor:
            self.read_inverse(self.p.scales1)
            core.emit(BinaryScalar("mul", values, values, "inverse"))
        else:
            self.widen(self.scales, self.p.scales1)
            self.scale_by(values, values, self.scales)
        pipe: Pipe = "scalar" if self.in_half else "vector"
        core.wait_flag(pipe, "mte2", self.FIRST)
        if points is None:
            return
        self.fill(self.squares, points)
        core.sync("mte2", "vector")
        self.widen(self.squares, points)
        if self.p.per_tensor:
            core.sync("vector", "scalar")
            core.get_value("point", work[:1])
        core.add(values, values, "point" if self.p.per_tensor else work)


def single_n(core: NormCore, p: Problem, plan: norm.Plan) -> norm.Kernel:
    """The only row of a core. x and y are stored from the buffer of x1, gamma replaces x2.

    The first scales are loaded while squares are summed, their zero points over the squares; beta,
    second scales and zero points before the row.
    """
    here = SingleRow(core, p, plan)
    return norm.Kernel(here.row, here.begin)
