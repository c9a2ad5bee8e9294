"""Weights of npu_weight_quant_batchmatmul made floats on a vector core, against whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_calls import BF16, Array

from npusim import Tensor, chip, devices, ops
from npusim.dtypes import BFLOAT16, FLOAT16, FLOAT32, pack_int4
from npusim.layout import NZ, c0, from_fractals
from npusim.ops._cube import rounded_up
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequant import (
    Chain,
    Dequant,
    dequant_bytes,
    lying_weight,
    piece_of,
)
from npusim.program import Binding, Block, Builder
from npusim.tensor import GlobalTensor

A2 = devices.load("ascend910b2")
HALF, F32 = np.float16, np.float32
OP = "npu_weight_quant_batchmatmul"


def call_of(
    rng: np.random.Generator,
    k: int,
    n: int,
    kind: Any,
    weight: str,
    layout: str,
    size: int,
    way: str,
) -> tuple[dict[str, Any], Array]:
    """Arguments, and the weight's numbers `(k, n)`; *way* names the scaling and has "+" offsets."""
    trans, fractal = layout.endswith("T"), layout.startswith("NZ")
    limit = 128 if weight == "int8" else 8
    numbers = rng.integers(-limit, limit, (k, n)).astype(np.int8)
    lying = np.ascontiguousarray(numbers.T if trans else numbers)
    if weight == "int4":
        lying = pack_int4(lying).view(np.int32).reshape(lying.shape[0], -1)
    tensor: Any = Tensor.of(lying, "FRACTAL_NZ") if fractal else lying
    shape = {"tensor": (1,), "channel": (1, n), "group": (-(-k // size) if size else 1, n)}[
        way.rstrip("+")
    ]
    scale = (rng.random(shape) * 0.1).astype(kind)
    call = {
        "x": np.zeros((k, 70), kind).T if fractal and size else np.zeros((70, k), kind),
        "weight": tensor.T if trans else tensor,
        "antiquant_scale": scale,
        "antiquant_offset": rng.normal(0, 9, shape).astype(kind) if way.endswith("+") else None,
        "antiquant_group_size": size if way.startswith("group") else 0,
    }
    return call, numbers


def dequantised(p: Problem, chain: Chain, rows: int, columns: int) -> Array:
    """What a kernel of one vector core writes, as it lies in memory without what fills edges."""
    lying = lying_weight(p)
    builder = Builder("dequant", A2.cores["aiv"], A2.sync)
    room = builder.room_bytes("ub")
    kernel = Dequant(builder, p, chain, rows, columns)
    assert room - builder.room_bytes("ub") == dequant_bytes(p, chain, rows, columns)
    kernel.begin()
    width = rounded_up(lying.columns, c0(lying.dtype)) if p.facts.is_nz else lying.columns
    high = rounded_up(lying.rows, 16) if p.facts.is_nz else lying.rows
    stride = 32 * high if p.facts.is_nz else 2 * width
    for row in range(0, lying.rows, rows):
        for column in range(0, lying.columns, columns):
            down, across = min(rows, lying.rows - row), min(columns, lying.columns - column)
            piece = piece_of(p, row, column, down, across)
            start = column // 16 * stride + 32 * row if p.facts.is_nz else row * stride + 2 * column
            builder.call(
                piece[2:],
                kernel.shifts(piece) | {"out": start},
                lambda piece=piece: kernel.write(piece, "out", stride),  # type: ignore[misc]
            )
    names = [operand.name for operand in p.inputs] + ["out"]
    block = Block(0, "aiv", builder.build(), {name: Binding(name) for name in names})
    out = GlobalTensor("out", 2 * high * width, np.full(2 * high * width, 0xA5, np.uint8))
    orders = chip.verify((block,), A2)
    chip.compute((block,), [operand.place() for operand in p.inputs] + [out], A2, orders)
    assert out.data is not None
    found = out.data.view(chain.out.numpy)
    if not p.facts.is_nz:
        return found.reshape(high, width)
    fractals = found.reshape(NZ.array_shape(high, width, (16, 16)))
    return from_fractals(fractals, NZ, (lying.rows, lying.columns))


def per_row(p: Problem, parameter: Any, k: int) -> Array:
    """A scale or offset for each element of the weight, float32."""
    plain = np.asarray(parameter).astype(F32)
    if p.facts.group_size:
        return np.repeat(plain, p.facts.group_size, axis=0)[:k]
    return plain.reshape(1, -1)


def expected(p: Problem, call: dict[str, Any], numbers: Array, chain: Chain) -> Array:
    """Each step rounded to the type that *chain* names."""
    value, k = numbers.astype(F32), len(numbers)
    for name, kind, apply in (
        ("antiquant_offset", chain.offset, np.add),
        ("antiquant_scale", chain.scale, np.multiply),
    ):
        if call[name] is not None and kind is not None:
            met = per_row(p, call[name], k).astype(kind.numpy).astype(F32)
            value = apply(value, met).astype(kind.numpy).astype(F32)
    value = value.astype(chain.out.numpy)
    return value.T if p.facts.trans_weight else value


FP16 = Chain(FLOAT16, FLOAT16, FLOAT16)
BF16_ONCE = Chain(FLOAT32, FLOAT32, BFLOAT16)
BF16_OFFSET = Chain(FLOAT16, None, BFLOAT16)
BF16_TWICE = Chain(FLOAT16, FLOAT32, BFLOAT16)

CASES = [
    (HALF, "int8", "ND", 0, "channel+", FP16, (70, 200), (48, 128)),
    (HALF, "int8", "ND", 0, "channel", FP16, (7, 33), (48, 512)),
    (HALF, "int8", "ND", 32, "group+", FP16, (101, 150), (40, 128)),
    (HALF, "int8", "NDT", 96, "group+", FP16, (300, 41), (40, 256)),
    (BF16, "int8", "ND", 64, "group+", BF16_ONCE, (130, 70), (32, 512)),
    (BF16, "int8", "NDT", 32, "group+", BF16_ONCE, (300, 41), (32, 128)),
    (BF16, "int8", "NDT", 0, "channel+", BF16_ONCE, (99, 17), (16, 512)),
    (BF16, "int8", "ND", 0, "tensor+", BF16_ONCE, (99, 17), (16, 512)),
    (HALF, "int8", "NDT", 0, "tensor", FP16, (99, 17), (16, 512)),
    (HALF, "int4", "ND", 32, "group+", FP16, (70, 200), (48, 128)),
    (HALF, "int4", "NDT", 64, "group+", FP16, (200, 33), (24, 128)),
    (BF16, "int4", "NDT", 0, "channel", BF16_ONCE, (200, 33), (24, 128)),
    (HALF, "int8", "NZ", 0, "channel+", FP16, (99, 70), (48, 32)),
    (HALF, "int8", "NZT", 0, "channel", FP16, (99, 70), (32, 64)),
    (BF16, "int8", "NZ", 0, "channel", BF16_ONCE, (99, 70), (48, 32)),
    (BF16, "int8", "NZT", 0, "channel+", BF16_ONCE, (99, 70), (32, 64)),
    (HALF, "int4", "NZ", 64, "group+", FP16, (192, 192), (80, 64)),
    (BF16, "int4", "NZ", 128, "group+", BF16_ONCE, (256, 128), (160, 64)),
    (HALF, "int4", "NZT", 0, "channel+", FP16, (200, 33), (32, 128)),
    (BF16, "int8", "NZT", 0, "channel+", BF16_OFFSET, (99, 70), (32, 64)),
    (BF16, "int8", "NZT", 0, "channel", BF16_OFFSET, (99, 70), (32, 64)),
    (BF16, "int8", "ND", 64, "group+", BF16_TWICE, (192, 128), (32, 512)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[1:5])))
def test_pieces_are_the_whole(rng: np.random.Generator, case: tuple[Any, ...]) -> None:
    kind, weight, layout, size, way, chain, (k, n), (rows, columns) = case
    call, numbers = call_of(rng, k, n, kind, weight, layout, size, way)
    p = ops.load(OP).check(A2, **call, template="custom")
    found = dequantised(p, chain, rows, columns)
    np.testing.assert_array_equal(
        found.view(np.uint16), expected(p, call, numbers, chain).view(np.uint16)
    )
