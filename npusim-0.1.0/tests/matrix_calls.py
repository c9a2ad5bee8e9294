"""Calls of products that tests make: matrices however they lie, drawn shapes, equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_calls import BF16, RNG, DrawnCall

from npusim import Tensor, TensorSpec, ops

Array = NDArray[Any]

CHIPS = ("ascend910b2", "ascend910b3", "ascend910b4", "ascend910_9391", "ascend310p3")
"""Of each product line; 24 cube cores, 20, 20 with half the memory, 24, and 8 coupled ones."""
SPLIT, COUPLED = CHIPS[:4], CHIPS[4]
# Infinities, NaN, zeros, the largest fp16, its subnormals, and what overflows when multiplied.
SPECIAL = np.array([
    np.inf, -np.inf, np.nan, 0.0, -0.0, 65504.0, -65504.0, 6e-8, -1e-7, 300.0, -300.0,
])  # fmt: skip


def described(value: Any) -> Any:
    """An array or Tensor without its values; anything else as it is."""
    if isinstance(value, Tensor):
        return value.spec
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim > 1 and not value.flags.c_contiguous:
        return TensorSpec(value.swapaxes(-1, -2).shape, value.dtype.name).T
    return TensorSpec(value.shape, value.dtype.name)


def turned(array: Array) -> Array:
    """The same matrices, their last two dimensions the other way round in memory."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)


def gm_matrix(array: Array, is_turned: bool, layout: str = "ND") -> Array | Tensor:
    """*array* as it may come: contiguous, as a view of its transpose, or in FRACTAL_NZ."""
    if layout == "ND":
        return turned(array) if is_turned else array
    return Tensor.of(array, layout, is_turned)


def halves(rng: np.random.Generator, shape: tuple[int, ...], kind: Any = np.float16) -> Array:
    """Numbers of *kind* that make the accumulator round."""
    return rng.normal(0, 1, shape).astype(kind)


def bytes_(rng: np.random.Generator, *shape: int) -> Array:
    """All int8 numbers."""
    return rng.integers(-128, 128, shape, dtype=np.int8)


def words(rng: np.random.Generator, *shape: int) -> Array:
    """int32 that hold eight int4 each."""
    return rng.integers(-(2**31), 2**31, shape).astype(np.int32)


def packed(numbers: Array) -> Array:
    """int4 numbers, eight an int32 along the last dimension, the first in the lowest bits."""
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8).astype(np.uint32) & 0xF
    words = (eights << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(words).view(np.int32)


def fractals(matrix: Array) -> Tensor:
    """*matrix* in FRACTAL_NZ."""
    return Tensor.of(np.ascontiguousarray(matrix), "FRACTAL_NZ")


def with_special(rng: np.random.Generator, values: Array) -> Array:
    """One number in fifty replaced by a special one."""
    special = rng.choice(SPECIAL, values.shape).astype(values.dtype)
    return np.where(rng.random(values.shape) < 0.02, special, values)


BATCHES = [
    *(((), ()),) * 6,
    *[((2,), (2,)), ((3, 1), (2,)), ((2,), ()), ((), (3,)), ((1, 2), (2, 1)), ((2, 1), (2, 1))],
]


def sizes(most: int) -> st.SearchStrategy[int]:
    """Small ones, whole fractals, and anything up to *most*."""
    return (
        st.integers(1, 20) | st.integers(1, most) | st.integers(1, most // 32).map(lambda x: 32 * x)
    )


@st.composite
def matmul_calls(draw: st.DrawFn, most: int = 90) -> DrawnCall:
    """Any call of matmul that is accepted."""
    device, rng = draw(st.sampled_from(CHIPS)), draw(RNG)
    m, k, n = (draw(sizes(most)) for _ in range(3))
    batch_a, batch_b = draw(st.sampled_from(BATCHES))
    kind = draw(st.sampled_from((np.float16, BF16) if device in SPLIT else (np.float16,)))
    a, b = halves(rng, (*batch_a, m, k), kind), halves(rng, (*batch_b, k, n), kind)
    if draw(st.booleans()):
        a, b = with_special(rng, a), with_special(rng, b)
    layout = draw(st.sampled_from(("ND", "FRACTAL_NZ")))
    x1, x2 = gm_matrix(a, draw(st.booleans())), gm_matrix(b, draw(st.booleans()), layout)
    bias = None
    if draw(st.booleans()):
        kinds = (np.float32,) if kind is BF16 else (np.float32, np.float16)
        shape = draw(st.sampled_from(((n,), (1, n))))
        bias = halves(rng, shape, draw(st.sampled_from(kinds)))
    return DrawnCall(device, (x1, x2, bias), {})


@st.composite
def quant_matmul_calls(draw: st.DrawFn, most: int = 90) -> DrawnCall:
    """Any call of npu_quant_matmul that is accepted."""
    device, rng = draw(st.sampled_from(CHIPS)), draw(RNG)
    targets = ("int8", "float16", "bfloat16", "int32")
    target = draw(st.sampled_from(targets if device in SPLIT else targets[:2]))
    m, k, n = (draw(sizes(most)) for _ in range(3))
    batch_a, batch_b = draw(st.sampled_from(BATCHES))
    is_turned = draw(st.booleans())
    is_packed = device in SPLIT and target in targets[1:3] and draw(st.booleans())
    x1: Array | Tensor
    x2: Array | Tensor
    if is_packed:
        k, n = -(-k // 8) * 8 + 8, -(-n // 8) * 8
        x1 = words(rng, *batch_a, m, k // 8)
        shape = (k // 8, n) if is_turned else (k, n // 8)
        x2 = gm_matrix(words(rng, *batch_b, *shape), is_turned)
    else:
        layout = draw(st.sampled_from(("ND", "FRACTAL_NZ")))
        is_turned |= device == COUPLED and layout != "ND"
        x1 = gm_matrix(bytes_(rng, *batch_a, m, k), draw(st.booleans()))
        x2 = gm_matrix(bytes_(rng, *batch_b, k, n), is_turned, layout)
    is_token = device in SPLIT and target in targets[1:3] and draw(st.booleans())
    is_vector = target == "bfloat16" or is_token
    kwargs: dict[str, Any] = {"output_dtype": target}
    if is_token:
        kwargs["pertoken_scale"] = rng.normal(0, 1, m).astype(np.float32)
    scale = rng.normal(0, 1e-2, draw(st.sampled_from((1, n)))).astype(np.float32)
    offset = None
    if target == "int8" and draw(st.booleans()):
        offset = rng.normal(0, 90, draw(st.sampled_from((1, n)))).astype(np.float32)
    if not is_vector and target != "int32" and draw(st.booleans()):
        scale = ops.load("npu_trans_quant_param").reference(scale, offset)
    elif target in targets[2:] and draw(st.booleans()):
        scale = scale.astype(BF16)
    bias = None
    if draw(st.booleans()):
        kinds = {"float16": np.float16, "bfloat16": BF16}
        choices = (np.int32, np.float32, kinds[target]) if is_vector else (np.int32,)
        batch = np.broadcast_shapes(batch_a, batch_b)
        shapes = ((n,), (batch[0], 1, n)) if len(batch) == 1 else ((n,),)
        shape = draw(st.sampled_from(shapes))
        kind = draw(st.sampled_from(choices))
        wide = rng.normal(0, 1e9 if draw(st.booleans()) else 1e3, shape)
        # No sum may leave int32 and come back: each Mmad saturates, the reference at the end.
        bias = wide.clip(-2.1e9, 2.1e9).astype(np.int32)
        bias = bias if kind is np.int32 else rng.normal(0, 5, shape).astype(kind)
    kwargs |= {"offset": offset, "bias": bias}
    return DrawnCall(device, (x1, x2, scale), kwargs)
