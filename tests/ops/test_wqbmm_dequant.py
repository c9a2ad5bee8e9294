"""Weights of npu_weight_quant_batchmatmul made floats on a vector core, against whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_calls import BF16, Array
from weight_calls import F32, HALF, OP, Kind, weight_call

from npusim import chip, devices, ops
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, unpack_int4
from npusim.data.integers import align_up
from npusim.data.layout import NZ, c0, from_fractals
from npusim.data.tensor import GlobalTensor
from npusim.isa import Global
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.program import Binding, Block
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import repeat
from npusim.ops._dequantised_weight import (
    Dequantiser,
    MatrixTile,
    Precision,
    tile_view,
)
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem

A2 = devices.load("ascend910b2")


def dequantised(p: Problem, precision: Precision, rows: int, columns: int) -> Array:
    """What a kernel of one vector core writes, as it lies in memory without what fills edges."""
    gm_matrix = p.gm_weight
    builder = VectorCore("dequant", A2)
    kernel = Dequantiser(builder, p.quantised_weight, precision, rows, columns)
    kernel.load_registers()
    is_nz, width, high = p.traits.is_nz, gm_matrix.columns, gm_matrix.rows
    if is_nz:
        width, high = align_up(width, c0(gm_matrix.dtype)), align_up(high, 16)
    output = GmMatrix("out", precision.out, high, width, True, gm_matrix.layout)
    for row, tile_rows in pieces(gm_matrix.rows, rows):
        for column, tile_columns in pieces(gm_matrix.columns, columns):
            tile = MatrixTile(row, column, tile_rows, tile_columns)
            repeat(builder, *kernel.call(tile, output, row, column))
    names = [operand.name for operand in p.inputs] + ["out"]
    block = Block(0, "aiv", builder.build(), {name: Binding(name) for name in names})
    out = GlobalTensor("out", 2 * high * width, np.full(2 * high * width, 0x7B, np.uint8))
    orders = chip.verify((block,), A2)
    chip.compute((block,), [operand.place() for operand in p.inputs] + [out], A2, orders)
    assert out.data is not None
    found = out.data.view(precision.out.numpy)
    if not p.traits.is_nz:
        return found.reshape(high, width)
    fractals = found.reshape(NZ.array_shape(high, width, (16, 16)))
    return from_fractals(fractals, NZ, (gm_matrix.rows, gm_matrix.columns))


def numbers_of(p: Problem, weight: Any) -> Array:
    """The weight's numbers `(k, n)`."""
    whole = np.asarray(weight)
    if p.traits.weight == "int8":
        return whole
    turned = np.ascontiguousarray(whole.T if p.traits.trans_weight else whole)
    nibbles = unpack_int4(turned.view(np.uint8))
    return nibbles.T if p.traits.trans_weight else nibbles


def per_row(p: Problem, parameter: Any, k: int) -> Array:
    """A scale or offset for each element of the weight, float32."""
    plain = np.asarray(parameter).astype(F32)
    if p.traits.group_size:
        return np.repeat(plain, p.traits.group_size, axis=0)[:k]
    return plain.reshape(1, -1)


def expected(p: Problem, call: dict[str, Any], precision: Precision) -> Array:
    """Each step rounded to the type that *precision* names."""
    value, k = numbers_of(p, call["weight"]).astype(F32), p.traits.k
    for name, kind, apply in (
        ("antiquant_offset", precision.offset, np.add),
        ("antiquant_scale", precision.scale, np.multiply),
    ):
        if call[name] is not None and kind is not None:
            met = per_row(p, call[name], k).astype(kind.numpy).astype(F32)
            value = apply(value, met).astype(kind.numpy).astype(F32)
    value = value.astype(precision.out.numpy)
    return value.T if p.traits.trans_weight else value


FP16 = Precision(FLOAT16, FLOAT16, FLOAT16)
BF16_ONCE = Precision(FLOAT32, FLOAT32, BFLOAT16)
BF16_OFFSET = Precision(FLOAT16, None, BFLOAT16)
BF16_TWICE = Precision(FLOAT16, FLOAT32, BFLOAT16)

CASES = [
    (Kind(HALF, "int8", "ND", offset=True), FP16, (70, 200), (48, 128)),
    (Kind(HALF, "int8", "ND"), FP16, (7, 33), (48, 512)),
    (Kind(HALF, "int8", "ND", size=32, offset=True), FP16, (101, 150), (40, 128)),
    (Kind(HALF, "int8", "NDT", size=96, offset=True), FP16, (300, 41), (40, 256)),
    (Kind(BF16, "int8", "ND", size=64, offset=True), BF16_ONCE, (130, 70), (32, 512)),
    (Kind(BF16, "int8", "NDT", size=32, offset=True), BF16_ONCE, (300, 41), (32, 128)),
    (Kind(BF16, "int8", "NDT", size=32, offset=True), BF16_ONCE, (300, 41), (16, 256)),
    (Kind(HALF, "int8", "NDT", size=32, offset=True), FP16, (850, 11), (8, 512)),
    (Kind(HALF, "int4", "NDT", size=64, offset=True), FP16, (1600, 11), (8, 1024)),
    (Kind(BF16, "int8", "NDT", offset=True), BF16_ONCE, (99, 17), (16, 512)),
    (Kind(BF16, "int8", "ND", single=True, offset=True), BF16_ONCE, (99, 17), (16, 512)),
    (Kind(HALF, "int8", "NDT", single=True), FP16, (99, 17), (16, 512)),
    (Kind(HALF, "int4", "ND", size=32, offset=True), FP16, (70, 200), (48, 128)),
    (Kind(HALF, "int4", "NDT", size=64, offset=True), FP16, (200, 33), (24, 128)),
    (Kind(BF16, "int4", "NDT"), BF16_ONCE, (200, 33), (24, 128)),
    (Kind(HALF, "int8", "NZ", offset=True), FP16, (99, 70), (48, 32)),
    (Kind(HALF, "int8", "NZT"), FP16, (99, 70), (32, 64)),
    (Kind(BF16, "int8", "NZ"), BF16_ONCE, (99, 70), (48, 32)),
    (Kind(BF16, "int8", "NZT", offset=True), BF16_ONCE, (99, 70), (32, 64)),
    (Kind(HALF, "int4", "NZ", size=64, offset=True, trans_x=True), FP16, (192, 192), (80, 64)),
    (
        Kind(BF16, "int4", "NZ", size=128, offset=True, trans_x=True),
        BF16_ONCE,
        (256, 128),
        (160, 64),
    ),
    (Kind(HALF, "int4", "NZT", offset=True), FP16, (200, 33), (32, 128)),
    (Kind(BF16, "int8", "NZT", offset=True), BF16_OFFSET, (99, 70), (32, 64)),
    (Kind(BF16, "int8", "NZT"), BF16_OFFSET, (99, 70), (32, 64)),
    (Kind(BF16, "int8", "ND", size=64, offset=True), BF16_TWICE, (192, 128), (32, 512)),
]


@pytest.mark.parametrize(("kind", "precision", "sizes", "piece"), CASES)
def test_pieces_are_the_whole(
    rng: np.random.Generator,
    kind: Kind,
    precision: Precision,
    sizes: tuple[int, int],
    piece: tuple[int, int],
) -> None:
    call = weight_call(rng, 70, *sizes, kind)
    p = ops.load(OP).check(A2, **call, template="custom")
    found, wanted = dequantised(p, precision, *piece), expected(p, call, precision)
    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


def test_a_tile_of_fractals_is_a_burst_of_each_column_of_them() -> None:
    weight = GmMatrix("weight", INT8, 70, 99, k_is_first=True, layout="FRACTAL_NZ")
    tile = MatrixTile(row=16, column=32, rows=40, columns=50)
    # 70 rows are filled up to 80; rows 16 to 56 end in the fractal of row 64, columns 32 to 82 lie
    # in the second and the third column of fractals, each 32 bytes wide.
    assert tile_view(weight, tile).operand == Global(
        "weight", (80 + 16) * 32, burst_bytes=48 * 32, bursts=2, stride_bytes=80 * 32
    )
