"""Calls of npu_weight_quant_batchmatmul that tests make: numbers in every layout and scaling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from op_calls import Array

from npusim import Tensor, TensorSpec, chip, ops
from npusim.data.dtypes import pack_int4
from npusim.data.tensor import GlobalTensor, allocate
from npusim.devices.schema import DeviceSpec
from npusim.ops import npu_trans_quant_param
from npusim.ops._vocabulary import Given
from npusim.ops.npu_weight_quant_batchmatmul.oracle import Inputs

HALF, F32 = np.float16, np.float32
OP = "npu_weight_quant_batchmatmul"
OPERATOR = ops.load(OP)
check, reference, tile, build = (
    OPERATOR.check, OPERATOR.reference, OPERATOR.tile, OPERATOR.build
)  # fmt: skip


def inputs_of(**call: Any) -> Inputs:
    """What the oracle makes of a call."""
    arguments = {each.name: each.default for each in OPERATOR.parameters}
    return Inputs.of(Given(OP, arguments | call))


def played(spec: DeviceSpec, p: Any, plan: Any) -> Array:
    """What the programs of *plan* compute, in workspaces that are not zero before."""
    blocks = build(spec, p, plan)
    tensors = [allocate("output", p.output, True), *(x.place() for x in p.inputs)]
    for name, nbytes in plan.workspaces.items():
        tensors.append(GlobalTensor(name, nbytes, np.full(nbytes, 0x7B, np.uint8)))
    chip.compute(blocks, tensors, spec, chip.verify(blocks, spec))
    assert tensors[0].data is not None
    raw = tensors[0].data[: p.output.nbytes].view(p.output.element.numpy)
    return np.asarray(raw.reshape(p.output.shape))


class Kind(NamedTuple):
    """What a call is like, sizes aside."""

    x: Any = HALF
    weight: str = "int8"
    layout: str = "ND"
    """ND or NZ, with a T if the weight is transposed."""
    size: int = 0
    """Of a group; 0 is one scale a column."""
    single: bool = False
    """One scale for all."""
    offset: bool = False
    bias: bool = False
    quant: int = 0
    """How many quantisation parameters: none, one, or as many as columns if more."""
    trans_x: bool = False
    packed: bool = False
    """Scales in the words of the fixpipe, offsets of int32."""


def gm_matrix(numbers: Array, kind: Kind) -> Any:
    """The weight's *numbers* `(k, n)`, int8, as *kind* wants them."""
    trans = kind.layout.endswith("T")
    turned = np.ascontiguousarray(numbers.T if trans else numbers)
    if kind.weight == "int4":
        turned = pack_int4(turned).view(np.int32).reshape(len(turned), -1)
    tensor: Any = Tensor.of(turned, "FRACTAL_NZ") if kind.layout.startswith("NZ") else turned
    return tensor.T if trans else tensor


def weight_call(rng: np.random.Generator, m: int, k: int, n: int, kind: Kind) -> dict[str, Any]:
    """Arguments of that kind, with random numbers."""
    limit = 128 if kind.weight == "int8" else 8
    numbers = rng.integers(-limit, limit, (k, n)).astype(np.int8)
    groups = -(-k // kind.size) if kind.size else 1
    shape = (1,) if kind.single else (groups, n)
    x = rng.normal(0, 1, (k, m) if kind.trans_x else (m, k)).astype(kind.x)
    bias = rng.normal(0, 9, n).astype(HALF if kind.x is HALF else F32)
    words = 1 if kind.quant == 1 else n
    scale = (rng.random(shape) * 0.1).astype(F32 if kind.packed else kind.x)
    offset = rng.normal(0, 9, shape).astype(kind.x)
    if kind.packed:
        scale = npu_trans_quant_param.reference(scale)
        offset = rng.integers(-128, 128, shape, np.int32)
    return {
        "x": x.T if kind.trans_x else x,
        "weight": gm_matrix(numbers, kind),
        "antiquant_scale": scale,
        "antiquant_offset": offset if kind.offset else None,
        "quant_scale": (rng.random(words) * 2).astype(F32) if kind.quant else None,
        "quant_offset": rng.normal(0, 99, words).astype(F32) if kind.quant else None,
        "bias": bias if kind.bias else None,
        "antiquant_group_size": kind.size,
    }


def weight_specs(m: int, k: int, n: int, kind: Kind, **more: Any) -> dict[str, Any]:
    """The same without values, and *more*."""
    is_int4, is_turned = kind.weight == "int4", kind.layout.endswith("T")
    rows, columns = (n, k) if is_turned else (k, n)
    weight = TensorSpec(
        (rows, columns // 8 if is_int4 else columns),
        "int32" if is_int4 else "int8",
        "FRACTAL_NZ" if kind.layout.startswith("NZ") else "ND",
    )
    groups = -(-k // kind.size) if kind.size else 1
    shape, dtype = (1,) if kind.single else (groups, n), np.dtype(kind.x).name
    x = TensorSpec((k, m) if kind.trans_x else (m, k), dtype)
    return {
        "x": x.T if kind.trans_x else x,
        "weight": weight.T if is_turned else weight,
        "antiquant_scale": TensorSpec(shape, "int64" if kind.packed else dtype),
        "antiquant_offset": TensorSpec(shape, "int32" if kind.packed else dtype)
        if kind.offset
        else None,
        "bias": TensorSpec((n,), "float16" if kind.x is HALF else "float32") if kind.bias else None,
        "antiquant_group_size": kind.size,
    } | more
