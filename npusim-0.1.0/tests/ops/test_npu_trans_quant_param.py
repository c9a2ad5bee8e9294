"""npu_trans_quant_param: its rules; the kernel against numpy, numpy against arithmetic bit by bit.

Sources: torch_npu-npu_trans_quant_param.md; for round_mode, op-plugin,
TransQuantParamKernelNpuOpApi.cpp.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from calls import ones
from chips import every
from hypothesis import given
from hypothesis import strategies as st
from op_calls import SPECIAL, Array, Row, assert_same, constraints, floats
from scalar_oracle import fit

from npusim import TensorSpec, devices, ops, run

OP = "npu_trans_quant_param"


BASE = {"scale": ones(4)}
ONE_OR_EACH = "pass one number, or one for each of scale"

ROWS = [
    # tensors and types
    *(
        Row({"scale": ones(4).astype(kind)},
            f"scale must be float32 on {{series}}, not {kind}; convert it")
        for kind in ("float64", "float16", "int64", "uint64", "object", ">f4")
    ),
    Row({"offset": ones(4, dtype=np.int32)},
        "offset must be float32 on {series}, not int32; convert it", {"offset": ones(4)}),
    # shapes
    *(
        Row({"scale": ones(*shape)},
            "scale must have one or two dimensions, none of them 0, not shape "
            f"{shape}; pass (n,) or (1, n)", {"scale": ones(*right)})
        for shape, right in (
            ((), (1,)), ((0,), (1,)), ((1, 0), (1, 1)), ((0, 4), (1, 4)), ((2, 3, 1), (2, 3)),
        )
    ),
    *(
        Row({"scale": ones(*scale), "offset": ones(*offset)},
            f"offset must have shape (1,) or that of scale, {scale}, not {offset}; "
            + ("reshape it" if offset in ((), (1, 4)) else ONE_OR_EACH),
            {"scale": ones(*right[0]), "offset": ones(*right[1])})
        for scale, offset, right in (
            ((4,), (3,), ((4,), (4,))),
            ((3,), (4,), ((1,), (4,))),
            ((4,), (), ((4,), (1,))),
            ((4,), (0,), ((4,), (1,))),
            ((1,), (0,), ((1,), (1,))),
            ((4,), (1, 4), ((1, 4), (1, 4))),
        )
    ),
    *(
        Row({"scale": ones(*scale), "offset": ones(*offset)},
            "scale and offset must both have shape (1, n) if scale has two dimensions, "
            f"not {scale} and {offset}; flatten both", {"scale": ones(*right)})
        for scale, offset, right in (
            ((1, 4), (4,), (1, 4)),
            ((1, 4), (1, 1), (1, 4)),
            ((1, 4), (1, 3), (1, 3)),
            ((4, 1), (4, 1), (4, 1)),
            ((2, 3), (2, 3), (2, 3)),
        )
    ),
    # round_mode
    Row(
        {"round_mode": 2**70},
        "round_mode must fit into 64 bits, not be 1180591620717411303424; pass a smaller one",
        {"round_mode": 1},
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)

SHAPES = [
    ((1,), None, (1,)),
    ((7,), None, (7,)),
    ((1, 7), None, (1, 7)),
    ((7, 1), None, (7, 1)),
    ((3, 5), None, (3, 5)),
    ((1,), (1,), (1,)),
    ((7,), (7,), (7,)),
    ((7,), (1,), (7,)),
    ((1,), (7,), (7,)),
    ((1, 7), (1, 7), (1, 7)),
    ((1, 1), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("device", every(devices.names()))
def test_the_shapes_of_the_document(device: str, subtests: pytest.Subtests) -> None:
    for scale, offset, result in SHAPES:
        with subtests.test(scale=scale, offset=offset):
            args = [ones(*scale), None if offset is None else ones(*offset)]
            assert run(OP, *args, device=device, timing=False).output.shape == result
            specs = [TensorSpec(scale, "float32"), offset and TensorSpec(offset, "float32")]
            timeless = run(OP, *specs, device=device, timing=False)
            assert timeless.output == TensorSpec(result, "int64")


reference = ops.load(OP).reference
by_device = pytest.mark.parametrize("device", every(devices.names()))


def pack(device: str, *args: Any) -> Array:
    output = run(OP, *args, device=device, timing=False).output
    assert isinstance(output, np.ndarray)
    return output


def patterns() -> Array:
    """fp32 numbers with every exponent, around every way in which 13 bits can be rounded off."""
    heads = np.arange(0, 1 << 10, 1, dtype=np.uint32) << 22
    tails = [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x2FFF, 0x3000, 0x3001, 0x3FFFFF]
    return (heads[:, None] | np.array(tails, np.uint32)).reshape(-1).view(np.float32)


@by_device
def test_a_run_equals_the_reference_on_every_kind_of_number(device: str) -> None:
    scale = patterns()
    offset = np.resize(SPECIAL, scale.size)
    with np.errstate(over="ignore"):
        offset = offset.astype(np.float32)
    for args in ((scale, None), (scale, offset), (scale, offset[:1]), (scale[3:4], offset)):
        for round_mode in (0, 1):
            assert_same(pack(device, *args, round_mode), reference(*args, round_mode))


@given(
    st.sampled_from(devices.names()),
    st.integers(1, 300) | st.sampled_from((8191, 8192, 8193, 20001)),
    st.sampled_from(("n", "1n", "n1", "gn")),
    st.sampled_from((None, "same", "one")),
    st.integers(0, 2**32),
)
def test_shapes_equal_the_reference(
    device: str, count: int, form: str, other: str | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = {"n": (count,), "1n": (1, count), "n1": (count, 1), "gn": (2, count)}[form]
    scale = floats(rng, shape, np.float32)
    offset = None
    if form in ("n", "1n") and other:
        offset = floats(rng, (1,) if other == "one" and form == "n" else shape, np.float32)
    output = pack(device, scale, offset)
    assert_same(output, reference(scale, offset))
    assert output.shape == shape


# ---- against arithmetic bit by bit ----


def fp19(bits: int, round_mode: int) -> int:
    """The *bits* of an fp32 with 13 bits less; rounded as numbers are, not as bits are."""
    sign, exponent = bits & 1 << 31, bits >> 23 & 0xFF
    if round_mode == 0 or exponent == 255:
        return bits >> 13 << 13
    if exponent == 0:
        return sign
    quantum = Fraction(2) ** (exponent - 127 - 10)
    (scale,) = struct.unpack("<f", bits.to_bytes(4, "little"))
    steps = round(abs(Fraction(scale)) / quantum)
    # A carry makes it 2048 steps of the next exponent; beyond the last one lies infinity.
    return sign | ((exponent << 10) + steps - 1024) << 13


@pytest.mark.parametrize("round_mode", [0, 1])
def test_the_reference_rounds_scales_as_numbers_are_rounded(round_mode: int) -> None:
    scale = patterns()
    words = reference(scale, None, round_mode).tolist()
    assert words == [fp19(bits, round_mode) | 1 << 46 for bits in scale.view(np.uint32).tolist()]


def test_the_reference_rounds_and_then_clips_offsets() -> None:
    with np.errstate(over="ignore"):
        ties = np.arange(-300, 300, 0.25)
        offset = np.concatenate([ties, SPECIAL]).astype(np.float32)
    words = reference(np.ones(1, np.float32), offset).tolist()
    nine_bits = [fit(float(value), -256, 255) & 0x1FF for value in offset]
    assert words == [0x3F800000 | 1 << 46 | bits << 37 for bits in nine_bits]


def test_a_scale_that_rounds_past_the_last_exponent_becomes_infinite() -> None:
    largest = np.float32([np.finfo(np.float32).max])
    assert reference(largest, None, 0).tolist() == [1 << 46 | 0x7F7FE000]
    assert reference(largest, None, 1).tolist() == [1 << 46 | 0x7F800000]


def test_the_golden_of_op_plugin() -> None:
    """op-plugin, test_npu_trans_quant_param.py: the bits of the scale, 13 of them cut off."""
    scale = np.random.default_rng(4).normal(0, 1, 50).astype(np.float32)
    golden = (scale.view(np.uint32).astype(np.int64) & 0xFFFFE000) | 1 << 46
    for device in devices.names():
        assert_same(pack(device, scale), golden)
        assert math.prod(pack(device, scale[None]).shape) == 50
