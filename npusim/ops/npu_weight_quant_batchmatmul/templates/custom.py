"""The template custom: vector cores dequantise the weight, cube cores multiply by it.

The weight goes round by round through a ring in global memory, see `custom_tiling`. A round is
handed over by all vector cores together: each stores its pieces, all meet, then each tells its cube
core. The way back is the same, so vector cores are at most as many rounds ahead as the ring has
slots (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom.h, *_common.h,
*_custom_weight_nz.h).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global, Local, QuantMode
from npusim.kernel.builder import Builder
from npusim.kernel.cube import CubeWriter, GmFeed, GmMatrix, Tables
from npusim.kernel.program import Binding, Block, Program
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.custom_tiling import (
    Plan,
    base_tile,
    chain,
    pieces,
    ring,
    ring_bytes,
    tile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequant import Dequant, Piece

__all__ = ["Plan", "build", "tile"]

VECTORS_MEET, CUBES_MEET, FILLED, READ = 6, 7, 8, 9
"""Flags between cores, as the kernel numbers them."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    names = [operand.name for operand in p.inputs] + ["output", *plan.workspaces]
    bindings = {name: Binding(name) for name in names}
    cube, vector = _Cube(spec, p, plan), _Vector(spec, p, plan)
    blocks = []
    for group in range(plan.block_dim):
        first = 3 * group
        blocks.append(Block(first, "aic", cube.program(group), bindings, group))
        for half in (0, 1):
            program = vector.program(2 * group + half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, group))
    return tuple(blocks)


class _Vector:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_weight_quant_batchmatmul", spec.cores["aiv"], spec.sync)
        sizes = plan.piece_rows, plan.piece_columns
        self.dequant = Dequant(self.builder, p, chain(p), *sizes)
        self.ring, self.slot_bytes = ring(p, plan), ring_bytes(p, plan)
        lines = self.ring.dtype.nbytes(self.ring.columns)
        self.stride_bytes = self.ring.nz_stride_bytes if p.traits.is_nz else lines
        self.rounds = [pieces(p, plan, number) for number in range(plan.rounds)]

    def program(self, place: int) -> Program:
        """Dequantise the pieces of vector core *place*, round by round."""
        plan, builder = self.plan, self.builder
        shares = [_run(found, place, 2 * plan.block_dim) for found in self.rounds]
        if any(shares):
            self.dequant.begin()
        for number, share in enumerate(shares):
            if number >= plan.slots:
                builder.call("await slot", {}, self._await_slot)
            for piece in share:
                shifts = self.dequant.shifts(piece) | {self.ring.name: self._place(piece, number)}
                builder.call(piece[2:], shifts, lambda piece=piece: self._write(piece))  # type: ignore[misc]
            builder.call("hand over", {}, self._hand_over)
        return builder.build()

    def _place(self, piece: Piece, number: int) -> int:
        """Bytes from the ring's start to where *piece* goes."""
        start = number * self.plan.width
        at = (piece.column - start) if self.ring.k_is_first else (piece.row - start)
        k = piece.row if self.ring.k_is_first else piece.column
        inside = self.ring.shift(at) + self.ring.shift_k(k)
        return number % self.plan.slots * self.slot_bytes + inside

    def _write(self, piece: Piece) -> None:
        self.dequant.write(piece, self.ring.name, self.stride_bytes)

    def _await_slot(self) -> None:
        self.builder.cross_core_wait_flag("group", "mte3", READ)

    def _hand_over(self) -> None:
        self.builder.cross_core_set_flag("all", "mte3", VECTORS_MEET)
        self.builder.cross_core_wait_flag("all", "mte3", VECTORS_MEET)
        self.builder.cross_core_set_flag("group", "mte3", FILLED)


def _run(found: tuple[Piece, ...], place: int, cores: int) -> tuple[Piece, ...]:
    """The run of pieces of one of so many cores; the first ones get one more."""
    each, more = divmod(len(found), cores)
    start = place * each + min(place, more)
    return found[start : start + each + (place < more)]


class _Cube:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        f = p.traits
        self.builder = Builder("npu_weight_quant_batchmatmul", spec.cores["aic"], spec.sync)
        rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
        self.x = GmMatrix("x", p.x.element, rows, columns, f.trans_x)
        self.ring, self.slot_bytes = ring(p, plan), ring_bytes(p, plan)
        a, b = (GmFeed(self.builder, gm_matrix) for gm_matrix in (self.x, self.ring))
        self.writer = CubeWriter(self.builder, base_tile(plan), a, b, f.k)
        kind = None if p.bias is None else p.bias.element
        self.tables = Tables(self.builder, plan.base_n, kind, p.quant_scale is not None)
        self.single: Local | None = None

    def program(self, place: int) -> Program:
        """Multiply the tiles of cube core *place*, round by round; it may have none."""
        plan, f = self.plan, self.p.traits
        i, j = divmod(place, plan.cores_n)
        high = ceil_div(ceil_div(f.m, plan.base_m), plan.cores_m) * plan.base_m
        rows = range(i * high, min((i + 1) * high, f.m), plan.base_m)
        self.single = None
        quant = self.p.quant_scale
        if rows and quant is not None and quant.spec.size == 1:
            self.single = self.tables.take_scale("quant_scale", 1)
        for number in range(plan.rounds):
            self.builder.call("await round", {}, self._await_round)
            column = number * plan.width + j * plan.base_n
            columns = min(plan.base_n, f.n - column)
            for row in rows if columns > 0 else ():
                size = min(plan.base_m, f.m - row), columns
                shifts = self._shifts(number, row, column)
                self.builder.call(size, shifts, lambda size=size: self._multiply(*size))  # type: ignore[misc]
            self.builder.call("hand back", {}, self._hand_back)
        return self.builder.build()

    def _shifts(self, number: int, row: int, column: int) -> dict[str, int]:
        p, plan = self.p, self.plan
        slot = number % plan.slots * self.slot_bytes
        shifts = {
            "x": self.x.shift(row),
            self.ring.name: slot + self.ring.shift(column - number * plan.width),
            "output": p.output.element.nbytes(row * p.traits.n + column),
        }
        if p.bias is not None:
            shifts["bias"] = p.bias.element.nbytes(column)
        if p.quant_scale is not None and self.single is None:
            shifts["quant_scale"] = p.quant_scale.element.nbytes(column)
        return shifts

    def _multiply(self, rows: int, columns: int) -> None:
        p, tables, out = self.p, self.tables, self.p.output.element
        bias = table = None
        if p.bias is not None:
            table = tables.take_bias("bias", columns)
            bias = tables.bias(table, columns)
        slot = self.writer.product(rows, columns, p.traits.k, bias=bias)
        if table is not None:
            tables.drop_bias(table)
        scale = self.single
        if p.quant_scale is not None and scale is None:
            scale = tables.take_scale("quant_scale", columns)
        high = align_up(rows, 16)
        total = slot.of(FLOAT32, high * align_up(columns, 16))
        place = Global("output", 0, out.nbytes(columns), rows, out.nbytes(p.traits.n))
        mode: QuantMode = "cast" if p.quant_scale is None else "qf322b8"
        self.builder.emit(Fixpipe(place, total, rows, columns, high, out, mode, scale))
        self.writer.release(slot)

    def _await_round(self) -> None:
        self.builder.cross_core_wait_flag("group", "mte2", FILLED)

    def _hand_back(self) -> None:
        self.builder.cross_core_set_flag("all", "fixpipe", CUBES_MEET)
        self.builder.cross_core_wait_flag("all", "fixpipe", CUBES_MEET)
        self.builder.cross_core_set_flag("group", "fixpipe", READ)
