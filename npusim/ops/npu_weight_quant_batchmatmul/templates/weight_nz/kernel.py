"""The kernel of the template weight_nz: what a coupled core does."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BroadcastToL0c, Cast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.coupled import NdFeed
from npusim.kernel.cube import GmMatrix, GmTile, L0Pair, L1Operand, MmadInit, l1_bytes
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import fill, pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.grid import rectangles
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.block_out import BlockOut
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.tiling import WeightNzPlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.weight_feed import WeightFeed
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import bindings

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> tuple[Block, ...]:
    """One block a core; cores share the bodies of their programs."""
    kernel = _Kernel(spec, p, plan)
    bound = bindings(p, plan)
    f, t = p.traits, plan.tiles
    shares = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (t.base_m, t.base_n))
    return tuple(
        Block(core, "ai_core", kernel.program(share), bound) for core, share in enumerate(shares)
    )


class _Kernel:
    """What a core does."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> None:
        f, t = p.traits, plan.tiles
        self._spec, self._tiles = spec, t
        self._builder = builder = Builder(p.choice.template, spec.cores["ai_core"], spec.sync)
        rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
        self._x = GmMatrix("x", FLOAT16, rows, columns, k_is_first=f.trans_x)
        self._weight = GmMatrix("weight", INT8, f.n, f.k, False, "FRACTAL_NZ")
        self._output = GmView.of("output", FLOAT16, f.m, f.n)
        names = ["antiquant_offset"] * f.has_offset + ["antiquant_scale"]
        self._parameters = [GmView.vector(name, FLOAT16, f.n) for name in names]
        self._bias = GmView.vector("bias", FLOAT16, f.n) if f.has_bias else None
        # In the unified buffer: the weight and the output on top of it, x, parameters, the bias.
        self._b = WeightFeed(builder, spec, self._weight, f.has_offset, t.base_n, t.part_k)
        part = (t.part_x_k, t.part_m) if f.trans_x else (t.part_m, t.part_x_k)
        self._a = NdFeed(builder, spec, self._x, part)
        self._out = BlockOut(builder, spec, t.base_m, t.base_n, self._b.first)
        self._b.claim_parameters(t.base_n)
        columns_padded = align_up(t.base_n, FRACTAL_ROWS)
        if f.has_bias:
            self._bias_half = builder.claim("ub", FLOAT16.nbytes(columns_padded))
            self._bias_row = builder.claim("ub", FLOAT32.nbytes(columns_padded))
        # One piece of each operand in L1, and one event for both.
        longest = min(t.l1_k, align_up(f.k, FRACTAL_ROWS))
        a_bytes, b_bytes = (
            l1_bytes(FLOAT16, extent, longest, feed.k_is_first)
            for feed, extent in ((self._a, t.base_m), (self._b, t.base_n))
        )
        self._l1 = builder.queue("l1", b_bytes, "mte3", "mte1")
        self._l1_a = builder.claim("l1", a_bytes)
        self._l0 = L0Pair(builder, FLOAT16, t.base_m, t.base_n, t.base_k)
        sums = align_up(t.base_m, FRACTAL_ROWS) * columns_padded
        self._l0c = builder.queue("l0c", FLOAT32.nbytes(sums), "cube", "vector", t.l0c_depth)

    def program(self, share: tuple[MatrixTile, ...]) -> Program:
        """Make the blocks of *share*."""
        for row, column, m, n in share:
            rows, columns = slice(row, row + m), slice(column, column + n)
            repeat(
                self._builder,
                self._block,
                self._x.tile(row, m),
                self._weight.tile(column, n),
                self._output[rows, columns],
                None if self._bias is None else self._bias[:, columns],
                *(parameter[:, columns] for parameter in self._parameters),
            )
        return self._builder.build()

    def _block(
        self, x: GmTile, _weight: GmTile, output: GmView, bias: GmView | None, *parameters: GmView
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), the weight dequantised on its way.

        The feeds load x and the weight, from where these tiles begin.
        """
        m, n = output.rows, output.columns
        # (n,) fp16 scale and offset, for all k of the block
        self._b.load_parameters(parameters)
        slot = self._l0c.alloc()
        # (n / 16, m, 16) fp32 sums
        sums = slot.of(FLOAT32, align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS))
        for k, count in pieces(x.k, self._tiles.l1_k):
            piece = self._l1.alloc()
            self._b.load(piece, k, count, n)
            self._a.load(self._l1_a, k, count, m)
            if bias is not None:
                self._start_from(bias, sums, m, is_first=k == 0)
            self._l1.enque(piece)
            piece = self._l1.deque()
            a = L1Operand(self._l1_a, self._a, m, count)
            b = L1Operand(piece, self._b, n, count)
            for start, step_k in pieces(count, self._tiles.base_k):
                # (m, step_k) @ (step_k, n); only the first step of all starts the sums.
                starts = k == start == 0 and bias is None
                init: MmadInit = "zero" if starts else "accumulate"
                self._l0.multiply(sums, a.at_k(start), b.at_k(start), (m, n, step_k), init)
            self._l1.free(piece)
            # Only then may the next weight be loaded.
            self._builder.sync("mte3", "mte2")
        self._l0c.enque(slot)
        slot = self._l0c.deque()
        self._out.drain(sums, output)
        self._l0c.free(slot)
        # The next weight goes where the output was.
        self._builder.sync("mte3", "mte2")

    def _start_from(self, bias: GmView, sums: Local, m: int, *, is_first: bool) -> None:
        """Load *bias* `(n,)` as fp32, as each k tile does; the first one writes it into L0C."""
        builder, columns = self._builder, align_up(bias.columns, FRACTAL_ROWS)
        fill(builder, self._spec, self._bias_half, bias)
        builder.sync("mte2", "vector")
        row = self._bias_row.of(FLOAT32, columns)
        step(builder, Cast(row, self._bias_half.of(FLOAT16, columns), "none"))
        if is_first:
            # (n,) -> (n / 16, m, 16), the same numbers in each row
            step(builder, BroadcastToL0c(sums, row, align_up(m, FRACTAL_ROWS)))
            builder.sync("vector", "cube")
