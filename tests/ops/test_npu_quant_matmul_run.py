"""npu_quant_matmul in tiles: every run equals the reference bit for bit, however it is cut.

Sources of examples: ops-nn, matmul/quant_batch_matmul_v4/examples; asc-devkit, examples of
fixpipe_l0c2gm; torch_npu-npu_quant_matmul.md and torch_npu-npu_trans_quant_param.md.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from chips import every
from matrix_calls import (
    CHIPS,
    COUPLED,
    SPLIT,
    bytes_,
    gm_matrix,
    words,
)
from op_calls import BF16, assert_as_reference, assert_same

from npusim import TensorSpec, run
from npusim.isa import Mmad

OP = "npu_quant_matmul"
ONE = np.float32([1])
TARGETS = ("int8", "float16", "bfloat16", "int32")
EACH = [
    case for target in TARGETS for case in every(CHIPS if target in TARGETS[:2] else SPLIT, target)
]


def scales(rng: np.random.Generator, count: int) -> Any:
    return rng.normal(0, 1e-2, count).astype(np.float32)


def output_of(*args: Any, device: str, **kwargs: Any) -> Any:
    return run(OP, *args, device=device, timing=False, **kwargs).output


# ---- where tiles end ----


@pytest.mark.parametrize(
    ("device", "shape", "layout", "more", "template"),
    [
        (SPLIT[0], (20, 128, 1200), "FRACTAL_NZ", (), "basic"),
        (SPLIT[0], (270, 128, 1100), "FRACTAL_NZ", (), "tbe"),
        (SPLIT[0], (40, 100, 300), "ND", ("token",), "tbe_opt"),
        (SPLIT[2], (33, 64, 1100), "ND", ("bias",), "tbe"),
        (COUPLED, (1030, 40, 64), "ND", ("bias",), "pp"),
        (COUPLED, (60, 40, 300), "ND", (), "coupled"),
    ],
)
def test_every_template(
    rng: np.random.Generator,
    device: str,
    shape: tuple[int, int, int],
    layout: str,
    more: tuple[str, ...],
    template: str,
) -> None:
    m, k, n = shape
    x2 = gm_matrix(bytes_(rng, k, n), is_turned=False, layout=layout)
    bias = rng.integers(-999, 999, n).astype(np.int32) if "bias" in more else None
    call: dict[str, Any] = {"output_dtype": "float16"}
    if "token" in more:
        call["pertoken_scale"] = rng.normal(0, 1, m).astype(np.float32)
    call["bias"] = bias
    args = (bytes_(rng, m, k), x2, scales(rng, n))
    assert assert_as_reference(OP, *args, device=device, **call).template == template


def test_pp_lets_each_mmad_end_before_the_next_one() -> None:
    weight, scale = TensorSpec((64, 1024), "int8").T, TensorSpec((64,), "int64")
    gaps = {}
    for bias in (TensorSpec((64,), "int32"), None):
        x1 = TensorSpec((1024, 1024), "int8")
        result = run(OP, x1, weight, scale, bias=bias, output_dtype="float16", device=COUPLED)
        assert result.trace is not None
        sums = [x for x in result.trace.spans() if x.core == 0 and isinstance(x.op, Mmad)]
        gaps[result.template] = min(b.start - a.end for a, b in pairwise(sums))
    # A barrier takes a cycle; without it a Mmad starts while the one before ends.
    assert gaps["pp"] >= 1 > 0 > gaps["coupled"]


def test_a_template_may_be_named(rng: np.random.Generator) -> None:
    x1, x2, scale = bytes_(rng, 70, 96), bytes_(rng, 96, 600), scales(rng, 600)
    token = rng.normal(0, 1, 70).astype(np.float32)
    whole = rng.integers(-999, 999, 600).astype(np.int32)
    late = rng.normal(0, 9, 600).astype(np.float32)
    outputs = []
    for template in ("basic", "tbe", "tbe_opt"):
        for each, bias, kind in (
            (scale, whole, "float16"), (scale[:1], late, "float16"),
            (scale.astype(BF16), None, "bfloat16"),
        ):  # fmt: skip
            args = x1, x2, each
            call: dict[str, Any] = {"bias": bias, "template": template, "device": SPLIT[0]}
            assert_as_reference(OP, *args, output_dtype="bfloat16", **call)
            found = assert_as_reference(OP, *args, pertoken_scale=token, output_dtype=kind, **call)
            assert (found.template, found.reason) == (template, "asked for")
            outputs.append(found.output)
    # All give the same values.
    for place, output in enumerate(outputs):
        assert_same(output, outputs[place % 3])
    found = run(OP, x1, x2, scale, template="pp", device=COUPLED, output_dtype="float16")
    assert (found.template, found.reason) == ("pp", "asked for")


def test_the_reason_of_the_choice_is_reported() -> None:
    def reason(m: int, k: int, n: int, *batch: int, **call: Any) -> tuple[Any, Any]:
        x1, x2 = TensorSpec((*batch, m, k), "int8"), TensorSpec((*batch, k, n), "int8")
        call = {"device": SPLIT[0], "timing": False} | call
        found = run(OP, x1, x2, TensorSpec((n,), "float32"), output_dtype="bfloat16", **call)
        return found.template, found.reason

    sizes = "(m, k, n) = (1024, 2048, 1024)"
    basic = f"the default, since {sizes} is not on the vendor's list of exceptions"
    assert reason(1024, 2048, 1024) == ("basic", basic)
    batches = "basic takes no batches, and this one has 2 matrices"
    assert reason(300, 64, 64, 2) == ("tbe", batches)
    sizes = "(m, k, n) = (300, 64, 64)"
    assert reason(300, 64, 64) == (
        "tbe",
        f"{sizes} is on the vendor's list of exceptions from basic",
    )
    rows = "few rows, and room for a row of blocks in the workspace"
    assert reason(16, 64, 64) == ("tbe_opt", rows)
    coupled: dict[str, Any] = {"device": COUPLED, "output_dtype": "float16"}
    x1, x2 = TensorSpec((4, 32), "int8"), TensorSpec((32, 32), "int8")
    found = run(OP, x1, x2, TensorSpec((1,), "int64"), timing=False, **coupled)
    assert (found.template, found.reason) == ("coupled", "m = 4, without a bias")


# ---- how the matrices lie ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", every(SPLIT))
@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_packed_int4(rng: np.random.Generator, device: str, target: str) -> None:
    sizes = ((3, 16, 8), (40, 72, 200), (33, 320, 264))
    for is_turned, (m, k, n) in product((False, True), sizes):
        x2 = gm_matrix(words(rng, *((k // 8, n) if is_turned else (k, n // 8))), is_turned)
        call: dict[str, Any] = {"device": device, "output_dtype": target}
        args = words(rng, m, k // 8), x2, scales(rng, n)
        assert_as_reference(OP, *args, **call)
        token = rng.normal(0, 1, m).astype(np.float32)
        assert_as_reference(OP, *args, pertoken_scale=token, **call)


# ---- parameters ----


@pytest.mark.sample(5)
@pytest.mark.parametrize(("device", "target"), EACH)
@pytest.mark.parametrize("count", [1, 75])
def test_kinds_of_scales_and_biases(
    rng: np.random.Generator, device: str, target: str, count: int
) -> None:
    x1, x2 = bytes_(rng, 20, 60), bytes_(rng, 60, 75)
    scale, token = scales(rng, count), rng.normal(0, 1, 20).astype(np.float32)
    offset = rng.normal(0, 90, 75).astype(np.float32)
    packed = run("npu_trans_quant_param", scale, device=device).output
    whole = rng.integers(-9999, 9999, 75).astype(np.int32)
    real = rng.normal(0, 9, 75).astype(np.float32)
    half = real.astype(BF16 if target == "bfloat16" else np.float16)
    wide: dict[str, Any] = {"pertoken_scale": token}
    calls: dict[str, list[tuple[Any, Any, Any, dict[str, Any]]]] = {
        "int8": [
            (scale, offset, whole, {}),
            (scale, offset[:1], None, {}),
            (packed, None, None, {}),
        ],
        "float16": [(scale, None, whole, {}), (packed, None, None, {})],
        "bfloat16": [(scale, None, half, {}), (scale.astype(BF16), None, real, {})],
        "int32": [(scale, None, whole, {}), (scale.astype(BF16), None, None, {})],
    }
    tokens = [(scale, None, bias, wide) for bias in (None, whole, real, half)]
    chosen = calls[target] + (tokens if device in SPLIT and target in TARGETS[1:3] else [])
    for s, o, bias, more in chosen:
        call: dict[str, Any] = {"device": device, "output_dtype": target, **more}
        assert_as_reference(OP, x1, x2, s, offset=o, bias=bias, **call)


@pytest.mark.parametrize("device", every(CHIPS))
def test_a_float_scale_that_is_not_a_number(rng: np.random.Generator, device: str) -> None:
    x1, x2 = bytes_(rng, 5, 40), bytes_(rng, 40, 6)
    scale = np.float32([np.nan, np.inf, -np.inf, 1e-45, 3e38, -0.0])
    for target in TARGETS if device in SPLIT else TARGETS[:2]:
        call: dict[str, Any] = {"device": device, "output_dtype": target}
        assert_as_reference(OP, x1, x2, scale, **call)


# ---- the ends of int32 ----


@pytest.mark.parametrize("device", every(SPLIT))
def test_the_longest_sums_of_the_largest_products(device: str) -> None:
    k = 65535
    x1, x2 = np.full((2, k), -128, np.int8), np.full((k, 3), -128, np.int8)
    call: dict[str, Any] = {"device": device, "output_dtype": "int32"}
    assert output_of(x1, x2, ONE, **call).tolist() == [[k << 14] * 3] * 2
    top, bottom = 2**31 - 1, -(2**31)
    bias = np.int32([top, bottom, top - (k << 14)])
    y = output_of(x1, x2, ONE, bias=bias, **call)
    assert y.tolist() == [[top, bottom + (k << 14), top]] * 2


def test_310p_saturates_the_longest_sums() -> None:
    k = 65535
    x1, x2 = np.full((2, k), -128, np.int8), np.full((k, 2), -128, np.int8)
    # 2^-16 of the largest sum is 16384 - 2^-2; with the bias, 2^31 - 1 becomes 2^31 in float32.
    bias = np.int32([0, 2**31 - 1])
    scale = np.float32([2.0**-16])
    call: dict[str, Any] = {"device": COUPLED, "output_dtype": "float16"}
    y = assert_as_reference(OP, x1, x2, scale, bias=bias, **call)
    assert np.asarray(y.output).tolist() == [[16384.0, 32768.0]] * 2


# ---- examples of others ----


@pytest.mark.parametrize("device", every(SPLIT))
def test_the_example_with_tokens_gives_three(device: str) -> None:
    matrices = np.ones((5, 2), np.int8), np.ones((2, 3), np.int8)
    ones = {"bias": np.ones(3, np.float32), "pertoken_scale": np.ones(5, np.float32)}
    y = output_of(*matrices, ONE, output_dtype="float16", device=device, **ones)
    assert_same(y, np.full((5, 3), 3.0, np.float16))


@pytest.mark.parametrize("device", every(CHIPS))
def test_twice_the_product_of_the_fixpipe_examples(device: str) -> None:
    draw = np.random.default_rng(9)
    a = draw.integers(-3, 3, (128, 128), dtype=np.int8)
    b = draw.integers(-3, 3, (128, 256), dtype=np.int8)
    twice = 2 * np.einsum("mk,kn->mn", a.astype(int), b.astype(int))
    two = run("npu_trans_quant_param", np.float32([2]), device=device).output
    call: dict[str, Any] = {"device": device}
    assert_same(output_of(a, b, two, **call), np.clip(twice, -128, 127).astype(np.int8))
    y = output_of(a, b, two, output_dtype="float16", **call)
    assert_same(y, twice.astype(np.float16))


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", every(CHIPS))
def test_a_packed_scale_does_what_scale_and_offset_do(
    rng: np.random.Generator, device: str
) -> None:
    x1, x2 = bytes_(rng, 1, 256, 768), bytes_(rng, 31, 768, 16)
    scale, offset = scales(rng, 16) / 10, rng.normal(0, 30, 16).astype(np.float32)
    packed = run("npu_trans_quant_param", scale, offset, device=device).output
    whole = assert_as_reference(
        OP, x1, x2, scale, offset=offset, output_dtype="int8", device=device
    )
    assert (whole.output.shape, len(np.unique(np.asarray(whole.output)))) == ((31, 256, 16), 256)
    assert_same(output_of(x1, x2, packed, device=device), np.asarray(whole.output))


@pytest.mark.parametrize("device", every(CHIPS))
def test_the_graph_example_with_its_bias(rng: np.random.Generator, device: str) -> None:
    x1 = rng.integers(-1, 1, (15, 1, 512), dtype=np.int8)
    x2 = rng.integers(-1, 1, (15, 512, 128), dtype=np.int8)
    bias = rng.integers(-1, 1, (15, 1, 128), dtype=np.int32)
    scale, offset = np.float32([0.46]), ONE
    packed = run("npu_trans_quant_param", scale, offset, device=device).output
    y = output_of(x1, x2, packed, offset=offset, bias=bias, device=device)
    exact = np.einsum("bik,bkn->bn", x1.astype(int), x2.astype(int)) + bias[:, 0]
    # 0.45996094 is what 19 bits leave of 0.46.
    nine = np.rint(np.float32(exact) * np.float32(0.45996094))
    assert_same(y, np.clip(nine + 1, -128, 127).astype(np.int8)[:, None])


@pytest.mark.parametrize("device", every(CHIPS))
def test_nine_bits_come_before_the_offset(device: str) -> None:
    # 16129 saturates to 255, less 200 is 55; to -256, and 200 more is -56.
    x1, x2 = np.int8([[127]]), np.int8([[127, -127]])
    y = output_of(x1, x2, ONE, offset=np.float32([-200, 200]), device=device)
    assert y.tolist() == [[55, -56]]
