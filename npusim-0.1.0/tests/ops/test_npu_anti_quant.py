"""npu_anti_quant: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from chips import THREE, every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import assert_same

from npusim import OpError, TensorSpec, devices, ops, run

OP = "npu_anti_quant"
SPEC = TensorSpec


def anti_quant(x: Any, scale: Any, device: str = "ascend910b2", **more: Any) -> Any:
    return run(OP, x, scale, device=device, timing=False, **more).output


# ---- values ----


def test_the_example_of_the_vendor() -> None:
    """ops-nn, aclnnAscendAntiQuant."""
    x, two = np.array([1, 2, 3, 4], np.int8), np.array([2], np.float32)
    for device in THREE:
        assert anti_quant(x, two, device, offset=two).tolist() == [6, 8, 10, 12]


@pytest.mark.parametrize("device", every(devices.names()))
def test_the_offset_comes_first_and_halves_come_last(device: str) -> None:
    x = np.array([-128, -7, 0, 127], np.int8)
    scale, offset = np.float32([0.0123]), np.float32([0.3])
    y = anti_quant(x, scale, device, offset=offset)
    assert [f"{word:04X}" for word in y.view(np.uint16)] == ["BE48", "AD46", "1B8F", "3E43"]


def test_eight_int4_come_out_of_an_int32_the_lowest_first() -> None:
    word = np.array([[0x7654_3210], [0xFEDC_BA98 - 2**32]]).astype(np.int32)
    y = anti_quant(word, np.float32([1]), src_dtype="quint4x2")
    assert y.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [-8, -7, -6, -5, -4, -3, -2, -1]]


@pytest.mark.parametrize(
    ("device", "expected"),
    [("ascend310p3", [65504.0, -65504.0]), ("ascend910b2", [np.inf, -np.inf])],
)
def test_beyond_fp16_it_saturates_on_310p_alone(device: str, expected: list[float]) -> None:
    x = np.array([127, -128], np.int8)
    assert anti_quant(x, np.float32([1000]), device).tolist() == expected


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_special_scales_give_special_numbers(name: str) -> None:
    x = np.array([-1, 0, 1, 2], np.int8)
    scale = np.float32([np.inf, np.inf, np.nan, -0.0])
    y = anti_quant(x, scale, dst_dtype=name).astype(np.float32)
    assert np.array_equal(y, [-np.inf, np.nan, np.nan, -0.0], equal_nan=True)
    assert np.signbit(y[3])


SHAPES = st.lists(st.integers(1, 5), max_size=2).map(tuple)


@draws(40)
@given(
    device=st.sampled_from(THREE),
    front=SHAPES,
    n=st.one_of(st.integers(1, 80), st.sampled_from([1024, 4103])),
    is_packed=st.booleans(),
    is_single=st.booleans(),
    has_offset=st.booleans(),
    kinds=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str,
    front: tuple[int, ...],
    n: int,
    is_packed: bool,
    is_single: bool,
    has_offset: bool,
    kinds: tuple[bool, bool],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    is_310p = device == "ascend310p3"
    if is_packed and not is_310p:
        x = rng.integers(-(2**31), 2**31, (*front, n), np.int32)
    else:
        x = rng.integers(-128, 128, (*front, n), np.int8)
    columns = 8 * n if x.dtype == np.int32 else n
    is_half, is_bf16_out = (False, False) if is_310p else kinds
    kind = np.dtype(ml_dtypes.bfloat16) if is_half else np.dtype(np.float32)
    vectors = rng.normal(0, 100, (2, 1 if is_single else columns)).astype(kind)
    more = {"offset": vectors[1]} if has_offset else {}
    name = "bfloat16" if is_bf16_out else "float16"

    found = anti_quant(x, vectors[0], device, dst_dtype=name, **more)

    spec = devices.load(device)
    assert_same(found, ops.load(OP).reference(x, vectors[0], dst_dtype=name, spec=spec, **more))


def test_the_reference_agrees_with_a_loop_over_numbers() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (3, 5), np.int8)
    scale, offset = (rng.normal(size=5).astype(np.float32) for _ in range(2))
    expected = [
        [np.float16(np.float32(np.float32(x[i, j]) + offset[j]) * scale[j]) for j in range(5)]
        for i in range(3)
    ]
    assert_same(ops.load(OP).reference(x, scale, offset=offset), np.array(expected))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4)])
def test_a_scalar_and_nothing_at_all_are_taken(shape: tuple[int, ...]) -> None:
    y = anti_quant(np.full(shape, 5, np.int8), np.float32([2]))
    assert_same(y, np.full(shape, 10, np.float16))


# ---- time ----


@pytest.mark.parametrize("device", THREE)
def test_large_tensors_fit_the_buffer_and_use_every_core(device: str) -> None:
    for scale in (SPEC((1,), "float32"), SPEC((8192,), "float32")):
        found = run(OP, SPEC((4096, 8192), "int8"), scale, offset=scale, device=device)
        assert found.trace is not None
        assert len(found.counters) == len(found.device.vector_cores)


def test_a_second_core_starts_after_a_full_buffer() -> None:
    scale = SPEC((1,), "float32")
    cores = [
        len(run(OP, SPEC((n,), "int8"), scale, device="ascend910b2").counters)
        for n in (8192, 16384)
    ]
    assert cores == [1, 2]


# ---- contract ----

X, ONE = SPEC((4, 6), "int8"), SPEC((1,), "float32")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "ascend910b2",
        {"x": SPEC((), "int32")},
        "x must have at least one dimension if it is int32, not none; reshape it",
    ),
    (
        "ascend910b2",
        {"scale": SPEC((4,), "float32")},
        "scale must have shape (1,) or (6,) for an output of shape (4, 6), not (4,); "
        "pass one scale, or one for each number of the last dimension",
    ),
    (
        "ascend910b2",
        {"scale": SPEC((1, 6), "float32")},
        "scale must have shape (1,) or (6,) for an output of shape (4, 6), not (1, 6); "
        "pass one scale, or one for each number of the last dimension",
    ),
    (
        "ascend910b2",
        {"offset": SPEC((6,), "float32")},
        "offset must have the shape of scale, (1,), not (6,); pass as many elements as scale has",
    ),
]


@pytest.mark.parametrize(("device", "change", "text"), REFUSED)
def test_what_the_document_does_not_allow_is_refused(
    device: str, change: dict[str, Any], text: str
) -> None:
    call = {"x": X, "scale": ONE} | change
    with pytest.raises(OpError, match="^" + re.escape(f"{OP}: {text} [161002]") + "$"):
        run(OP, **call, device=device)
