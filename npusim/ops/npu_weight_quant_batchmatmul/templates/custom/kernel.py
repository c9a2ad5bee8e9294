"""The kernels of the template custom: one of a cube core, one of a vector core."""

from __future__ import annotations

from collections.abc import Callable

from npusim.data.dtypes import FLOAT32, UINT64
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Local, QuantMode
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import CubeWriter, GmFeed, GmMatrix, GmTile, Tables
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._dequantised_weight import (
    Dequantiser,
)
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.custom.tiling import (
    CustomPlan,
    precision,
    ring_slot,
    slot_bytes,
    weight_tiles,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import quantised_weight
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import bindings

__all__ = ["build"]

VECTORS_DONE, CUBES_DONE, FILLED, READ = 6, 7, 8, 9
"""Flags between cores, as the kernel numbers them: of all cores of a kind, then of a group."""
BODY_TILES = 64
"""Base tiles of rows that a cube core calls together. It is of no consequence for what runs."""
MAX_ROUNDS_AHEAD = 2
"""Vector cores store a round after cube cores have read the one so many before."""


def build(spec: DeviceSpec, p: Problem, plan: CustomPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    bound = bindings(p, plan)
    cube, vector = _CubeKernel(spec, p, plan), _VectorKernel(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bound,
        cube.program,
        lambda group, half: vector.program(2 * group + half),
    )


class _VectorKernel:
    """What a vector core does: its share of each round's tiles of the weight, into the ring."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: CustomPlan) -> None:
        self._plan = plan
        self._builder = VectorCore("npu_weight_quant_batchmatmul", spec)
        self._dequantiser = Dequantiser(
            self._builder,
            quantised_weight(p),
            precision(p),
            plan.tile_rows,
            plan.tile_columns,
        )
        self._ring, self._slot_bytes = ring_slot(p, plan), slot_bytes(p, plan)
        self._rounds = [weight_tiles(p, plan, number) for number in range(plan.rounds)]

    def program(self, core: int) -> Program:
        """The program of vector core number *core*."""
        plan, builder = self._plan, self._builder
        # As many tiles for each core as the busiest one needs: the last cores may have none.
        runs = [ceil_div(len(tiles), 2 * plan.block_dim) for tiles in self._rounds]
        shares = [
            tiles[core * run : (core + 1) * run]
            for tiles, run in zip(self._rounds, runs, strict=True)
        ]
        if any(shares):
            self._dequantiser.load_registers()
        # A round: (k, round_n) of the weight, its tiles shared out over all vector cores
        for number, tiles in enumerate(shares):
            offset_bytes, start = number % plan.slots * self._slot_bytes, number * plan.round_n
            between = self._between(number)
            for tile in tiles:
                # (k, n) goes to (k, n - start), (n, k) to (n - start, k).
                row, column = tile.row - start, tile.column
                if self._ring.k_is_first:
                    row, column = tile.row, tile.column - start
                self._dequantiser.write(tile, self._ring, row, column, offset_bytes, between)
                between = None
            if between is not None:
                repeat(builder, between)
        repeat(builder, self._hand_over)
        return builder.build()

    def _between(self, number: int) -> Callable[[], None] | None:
        """What comes before the first store of round *number*, when its first tile is made."""
        if number == 0:
            return None
        return self._hand_over if number < MAX_ROUNDS_AHEAD else self._hand_over_and_wait

    def _hand_over(self) -> None:
        """Wait until all vector cores have stored the round before, then tell the cube core."""
        sync_all(self._builder, "mte3", "scalar", VECTORS_DONE, FILLED)

    def _hand_over_and_wait(self) -> None:
        """After that wait until all cube cores have read the round `MAX_ROUNDS_AHEAD` before."""
        self._hand_over()
        self._builder.cross_core_wait_flag("group", "scalar", READ)


class _CubeKernel:
    """What a cube core does: x times each round's columns, a base tile at a time."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: CustomPlan) -> None:
        self._p, self._plan, f = p, plan, p.traits
        self._builder = Builder("npu_weight_quant_batchmatmul", spec.cores["aic"], spec.sync)
        rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
        self._x = GmMatrix("x", p.x.element, rows, columns, f.trans_x)
        self._ring, self._slot_bytes = ring_slot(p, plan), slot_bytes(p, plan)
        a, b = GmFeed(self._builder, self._x), GmFeed(self._builder, self._ring)
        self._writer = CubeWriter(self._builder, plan.base, a, b, f.k)
        bias, quant = p.bias, p.quant_scale
        self._tables = Tables(
            self._builder, plan.base.n, None if bias is None else bias.element, quant is not None
        )
        self._output = GmView.of("output", p.output.element, f.m, f.n)
        self._bias = None if bias is None else GmView.vector("bias", bias.element, f.n)
        self._quant: GmView | None = None
        """A scale a column, if there is more than one."""
        if quant is not None and quant.spec.size > 1:
            self._quant = GmView.vector("quant_scale", UINT64, f.n)
        self._single_scale: Local | None = None

    def program(self, group: int) -> Program:
        """The program of cube core number *group*, which may have nothing to multiply."""
        plan, f, builder = self._plan, self._p.traits, self._builder
        # Position in the grid (cores_m, cores_n): whole base tiles along m, one along n a round.
        i, j = divmod(group, plan.cores_n)
        core_m = ceil_div(ceil_div(f.m, plan.base.m), plan.cores_m) * plan.base.m
        top, bottom = i * core_m, min((i + 1) * core_m, f.m)
        if top < bottom and self._p.quant_scale is not None and self._quant is None:
            self._single_scale = self._tables.take_scale(GmView.vector("quant_scale", UINT64, 1))
        # Every cube core takes part in all rounds, even with nothing to multiply: all wait for all.
        for number in range(plan.rounds):
            repeat(builder, builder.cross_core_wait_flag, "group", "mte2", FILLED)
            column = number * plan.round_n + j * plan.base.n
            columns = slice(column, min(column + plan.base.n, f.n))
            for row, rows in pieces(max(0, bottom - top), BODY_TILES * plan.base.m):
                if column < f.n:
                    self._call(number, slice(top + row, top + row + rows), columns)
            repeat(builder, sync_all, builder, "fixpipe", "fixpipe", CUBES_DONE, READ)
        return builder.build()

    def _call(self, number: int, rows: slice, columns: slice) -> None:
        """Make *rows* x *columns* of the output, in round *number*."""
        plan, output = self._plan, self._output[rows, columns]
        slot = number % plan.slots * self._slot_bytes
        weight = self._ring.tile(columns.start - number * plan.round_n, output.columns)
        repeat(
            self._builder,
            self._multiply if output.rows <= plan.base.m else self._multiply_tiles,
            self._x.tile(rows.start, output.rows),
            weight.shifted_to(weight.offset_bytes + slot),
            output,
            None if self._bias is None else self._bias[:, columns],
            None if self._quant is None else self._quant[:, columns],
        )

    def _multiply_tiles(
        self, x: GmTile, weight: GmTile, output: GmView, bias: GmView | None, quant: GmView | None
    ) -> None:
        """`_multiply`, a base tile of rows after the other."""
        for row, rows in pieces(output.rows, self._plan.base.m):
            tile = self._x.tile(row, rows)
            tile = tile.shifted_to(x.offset_bytes + tile.offset_bytes)
            of_rows = output[row : row + rows, :]
            repeat(self._builder, self._multiply, tile, weight, of_rows, bias, quant)

    def _multiply(
        self, _x: GmTile, _weight: GmTile, output: GmView, bias: GmView | None, quant: GmView | None
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), scaled to int8 with a quant_scale.

        The feeds load x and the weight, from where these tiles begin.
        """
        tables, m, n = self._tables, output.rows, output.columns
        start = None if bias is None else tables.take_bias(bias)
        # (m, k) @ (k, n) of the ring's slot, fp32 sums that start from the bias or from zero
        slot = self._writer.product(m, n, self._p.traits.k, bias=start)
        tables.drop_bias()
        scale = self._single_scale if quant is None else tables.take_scale(quant)
        # (n / 16, m, 16) fp32 in L0C -> (m, n)
        rows_padded = align_up(m, FRACTAL_ROWS)
        total = slot.of(FLOAT32, rows_padded * align_up(n, FRACTAL_ROWS))
        mode: QuantMode = "cast" if self._p.quant_scale is None else "qf322b8"
        self._builder.emit(
            Fixpipe(output.operand, total, m, n, rows_padded, output.dtype, mode, scale)
        )
        self._writer.release(slot)
