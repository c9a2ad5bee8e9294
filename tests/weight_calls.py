"""Calls of npu_weight_quant_batchmatmul that tests make: numbers in every layout and scaling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from op_calls import Array

from npusim import Tensor, chip, ops
from npusim.data.dtypes import pack_int4
from npusim.data.tensor import GlobalTensor, allocate
from npusim.devices.schema import DeviceSpec
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
    return {
        "x": x.T if kind.trans_x else x,
        "weight": gm_matrix(numbers, kind),
        "antiquant_scale": (rng.random(shape) * 0.1).astype(kind.x),
        "antiquant_offset": rng.normal(0, 9, shape).astype(kind.x) if kind.offset else None,
        "quant_scale": (rng.random(words) * 2).astype(F32) if kind.quant else None,
        "quant_offset": rng.normal(0, 99, words).astype(F32) if kind.quant else None,
        "bias": bias if kind.bias else None,
        "antiquant_group_size": kind.size,
    }


def assert_bits(output: Any, expected: Array) -> None:
    """Equal bit for bit, but for what a NaN looks like, and of the same type and shape."""
    assert isinstance(output, np.ndarray)
    assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
    lost, missing = (np.isnan(values.astype(F32)) for values in (output, expected))
    np.testing.assert_array_equal(lost, missing)
    bits = f"u{expected.dtype.itemsize}"
    found, wanted = (values[~lost].view(bits) for values in (output, expected))
    np.testing.assert_array_equal(found, wanted)
