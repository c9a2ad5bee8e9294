"""The program that each core runs for matmul."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global, Local
from npusim.kernel.blocks import base_tile, gm_matrix_a, gm_matrix_b, shifts_of, write_pieces
from npusim.kernel.builder import Builder
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import CubeWriter, Feed, GmFeed, Tables
from npusim.kernel.program import Binding, Block
from npusim.kernel.tiles import work
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.tiling import Plan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores share the bodies of their programs."""
    kind = "ai_core" if spec.arch == "2002" else "aic"
    writing = (_Coupled if spec.arch == "2002" else _Split)(spec, p, plan)
    vectors = {} if p.bias is None else {"bias": p.bias.element.nbytes(1)}
    shares = work(plan.cube, p.product)
    bindings = {operand.name: Binding(operand.name) for operand in p.inputs}
    bindings["output"] = Binding("output")
    # Measured decode products with (n, k) weights find them in the L2, those with (k, n) do not.
    past_l2 = plan.cube.bypasses_l2(p.product) and not p.product.transposed_b
    bindings["x2"] = Binding("x2", is_cached=not past_l2)
    blocks = []
    for core, pieces in enumerate(shares):
        write_pieces(
            writing.builder,
            writing.writer,
            p.product,
            pieces,
            lambda piece: shifts_of(p.product, piece, p.output.element, vectors),
            writing.body,
        )
        blocks.append(Block(core, kind, writing.builder.build(), bindings))
    return tuple(blocks)


class _Split:
    """The kernel of a cube core: the fixpipe stores."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.tile = p, base_tile(plan.cube)
        self.builder = Builder("matmul", spec.cores["aic"], spec.sync, alone=True)
        a, b = (
            GmFeed(self.builder, gm_matrix(p.product)) for gm_matrix in (gm_matrix_a, gm_matrix_b)
        )
        self.writer = CubeWriter(self.builder, self.tile, a, b, p.product.k)
        kind = None if p.bias is None else p.bias.element
        self.tables = Tables(self.builder, self.tile.n, kind)

    def body(self, rows: int, columns: int, _: int) -> None:
        p, n = self.p, self.p.product.n
        out = p.output.element
        bias, table = None, None
        if p.bias is not None:
            table = self.tables.take_bias("bias", columns)
            bias = self.tables.bias(table, columns)
        slot = self.writer.product(rows, columns, p.product.k, bias=bias)
        if table is not None:
            self.tables.drop_bias(table)
        high = align_up(rows, 16)
        total = slot.of(FLOAT32, high * align_up(columns, 16))
        place = Global("output", 0, out.nbytes(columns), rows, out.nbytes(n))
        self.builder.emit(Fixpipe(place, total, rows, columns, high, out, "cast"))
        self.writer.release(slot)


class _Coupled:
    """The kernel of a coupled core: operands and results go through the unified buffer."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.tile = p, base_tile(plan.cube)
        self.builder = Builder("matmul", spec.cores["ai_core"], spec.sync)
        a, b = gm_matrix_a(p.product), gm_matrix_b(p.product)
        left: Feed = NdFeed(self.builder, spec, a)
        is_nd = b.layout == "ND"
        right: Feed = NdFeed(self.builder, spec, b) if is_nd else GmFeed(self.builder, b)
        self.writer = CubeWriter(self.builder, self.tile, left, right, p.product.k, "vector")
        self.out = NdOut(self.builder, spec, self.tile.m, self.tile.n, p.output.element)
        self.row = None
        if p.bias is not None:
            self.row = RowTable(self.builder, spec, self.tile.n, p.bias.element, FLOAT32)

    def body(self, rows: int, columns: int, _: int) -> None:
        p = self.p
        high = align_up(rows, 16)
        row = self.row

        def preload(total: Local) -> None:
            assert row is not None
            row.spread("bias", columns, total, high)

        slot = self.writer.product(
            rows, columns, p.product.k, preload=None if row is None else preload
        )
        total = slot.of(FLOAT32, high * align_up(columns, 16))
        stride = p.output.element.nbytes(p.product.n)
        self.out.drain(total, rows, columns, stride, "cast")
        self.writer.release(slot)
