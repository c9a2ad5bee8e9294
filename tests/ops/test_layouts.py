"""Arrays, Tensors and TensorSpecs of one layout get the same verdict from every operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import CALLS, F32, STENCIL, N, ones
from chips import THREE

from npusim import OpError, Tensor, TensorSpec, devices, ops, run
from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT64,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:npu_weight_quant_batchmatmul:UserWarning"),
    pytest.mark.filterwarnings("ignore:npu_dynamic_quant:UserWarning"),
    pytest.mark.filterwarnings("ignore:npu_swiglu_quant:UserWarning"),
    pytest.mark.filterwarnings("ignore:npu_transpose_batchmatmul:UserWarning"),
]

DTYPES = (FLOAT16, FLOAT32, BFLOAT16, INT8, UINT8, INT32, INT64, UINT64)
WRONG_SHAPES = ((), (3,), (3, 5), (2, 3, 4, 5), (0, 4), (1,) * 9)
TENSORS = [
    (call, name)
    for call, (_, given) in CALLS.items()
    for name, value in given.items()
    if isinstance(value, np.ndarray)
]


ONLY_FRACTALS = {("npu_grouped_matmul_swiglu_quant", "weight")}
"""Those that are never plain."""
CHECKED_VALUES = {
    ("npu_kv_rmsnorm_rope_cache", "index"),
    ("npu_moe_init_routing", "row_idx"),
    ("npu_moe_token_permute", "indices"),
    ("npu_scatter_pa_kv_cache", "slot_mapping"),
}
"""Those of whose values some are refused, which a TensorSpec does not have."""


def plain(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """Full of what *like* holds, so that no value is refused; a stencil as it is.

    64-bit words have the bit that says int8, unless they are the rows of groups.
    """
    if shape == STENCIL.shape:
        return like.astype(dtype)
    most = like.max() if like.size else 0
    is_word = np.dtype(dtype).itemsize == 8 and not (like.dtype == np.int64 and most <= N)
    return np.full(shape, 1 << 46 if is_word else min(most, N), dtype)


def forms(value: Any, layout: str, transposed: bool) -> list[Any]:
    """*value* laid out so: as an array where it can be one, as a Tensor, and as a TensorSpec."""
    tensor = Tensor.of(value, layout, transposed)
    return ([tensor.numpy()] if layout == "ND" else []) + [tensor, tensor.spec]


def verdict(op: str, device: str, given: dict[str, Any]) -> Any:
    """The code and the message of a refusal, or what the kernel is given and gives back."""
    try:
        problem = ops.load(op).check(devices.load(device), **given)
    except OpError as error:
        return error.code, str(error)
    return {operand.name: operand.spec for operand in problem.inputs}, problem.outputs


REFUSED_WHEN_GIVEN = {
    ("npu_incre_flash_attention", "atten_mask"),
    ("npu_incre_flash_attention", "antiquant_offset"),
    ("npu_fused_infer_attention_score_v2", "learnable_sink"),
}
"""Those that a row of support names and a rule refuses: what they do is not simulated."""


def test_every_tensor_of_every_operator_is_among_the_calls() -> None:
    wanted = {
        (op, parameter.name)
        for op in ops.names()
        for parameter in ops.load(op).parameters
        if parameter.is_tensor
        and any(row.operands(parameter.name).dtypes for row in ops.load(op).support)
    }
    assert {(CALLS[call][0], name) for call, name in TENSORS} >= (
        wanted - ONLY_FRACTALS - REFUSED_WHEN_GIVEN
    )


@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_taken_somewhere(call: str) -> None:
    """Else its refusals would say nothing of layouts."""
    op, given = CALLS[call]
    assert any(isinstance(verdict(op, device, given)[0], dict) for device in THREE)


@pytest.mark.sample(90)
@pytest.mark.parametrize(("call", "name"), TENSORS, ids=lambda value: str(value))
@pytest.mark.filterwarnings("ignore::npusim.data.errors.DocumentWarning")
def test_every_form_of_a_tensor_gets_one_verdict(call: str, name: str) -> None:
    op, given = CALLS[call]
    value = given[name]
    variants = [(value, "ND", False)]
    if value.ndim >= 2:
        variants += [(value, "ND", True), (value, "FRACTAL_NZ", False), (value, "FRACTAL_NZ", True)]
    else:
        # A matrix where there should be a row, in fractals.
        variants += [(value.reshape(1, -1), "FRACTAL_NZ", False)]
    variants += [(plain(value.shape, dtype.numpy, value), "ND", False) for dtype in DTYPES]
    variants += [(plain(shape, value.dtype, value), "ND", False) for shape in WRONG_SHAPES]
    for device in THREE:
        for numbers, layout, transposed in variants:
            alike = forms(numbers, layout, transposed)
            if (op, name) in CHECKED_VALUES:
                alike.pop()
            first, *others = (verdict(op, device, given | {name: form}) for form in alike)
            assert others == [first] * len(others)


def test_a_plain_tensor_gives_what_its_array_gives() -> None:
    x, scales = np.linspace(-9, 9, 128, dtype=F32).reshape(8, 16), ones(16)
    given = (None, "qint8", -1, False)
    for turned in (False, True):
        tensor = Tensor.of(x, transposed=turned)
        from_tensor = run("npu_quantize", tensor, Tensor.of(scales), *given, device="Atlas A2")
        from_array = run("npu_quantize", x, scales, *given, device="Atlas A2")
        np.testing.assert_array_equal(from_tensor.output, from_array.output)
        spec = TensorSpec(x.shape, "float32", transposed=turned)
        timed = run("npu_quantize", spec, scales, *given, device="Atlas A2")
        assert from_tensor.cycles == from_array.cycles == timed.cycles
