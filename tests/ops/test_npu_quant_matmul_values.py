"""The reference of npu_quant_matmul: vectors of others, corners typed by hand, equal roads.

Sources: ops-nn, matmul/quant_batch_matmul_v4/examples; asc-devkit, examples of fixpipe_l0c2gm;
torch_npu-npu_quant_matmul.md and torch_npu-npu_trans_quant_param.md.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from npusim import DocumentWarning, TensorSpec, devices, ops, run
from npusim.data.layout import NZ, to_fractals
from npusim.data.tensor import Tensor
from npusim.ops import npu_trans_quant_param

BF16 = ml_dtypes.bfloat16
Array = NDArray[Any]
OPERATOR = ops.load("npu_quant_matmul")
check, reference = OPERATOR.check, OPERATOR.reference


def row(*acc: int) -> tuple[Array, Array]:
    """int8 matrices whose product is *acc*: each number as 127 times a part, and a rest."""
    columns = []
    for value in acc:
        parts, rest = divmod(abs(value), 127 * 127)
        sevens, ones = divmod(rest, 127)
        sign = 1 if value >= 0 else -1
        assert parts <= 4
        columns.append([sign * 127 * (i < parts) for i in range(4)] + [sign * sevens, sign * ones])
    x1 = np.array([[127, 127, 127, 127, 127, 1]], np.int8)
    return x1, np.array(columns, np.int8).T


def bits_of(scale: float, offset: float | None = None) -> Array:
    point = None if offset is None else np.float32([offset])
    return npu_trans_quant_param.reference(np.float32([scale]), point)


def small(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-128, 128, shape, dtype=np.int8)


# ---- int8 ----


def test_int8_typed_by_hand(subtests: pytest.Subtests) -> None:
    for acc, scale, offset, expected in [
        # The sum saturates to nine bits before the offset is added.
        (10000, 1.0, -200.0, 55),
        (255, 1.0, -200.0, 55),
        (254, 1.0, -200.0, 54),
        (-10000, 1.0, 200.0, -56),
        (-256, 1.0, 255.0, -1),
        (10000, 1.0, 0.0, 127),
        (-10000, 1.0, 0.0, -128),
        # Ties go to even, before the offset.
        (1, 0.5, 1.0, 1),
        (3, 0.5, 1.0, 3),
        (5, 0.5, 1.0, 3),
        (-3, 0.5, 1.0, -1),
        (511, 0.5, -200.0, 55),
        # The offset is rounded, then clipped to nine bits.
        (0, 1.0, 2.5, 2),
        (0, 1.0, -0.5, 0),
        (200, 1.0, -300.0, -56),
        (-200, 1.0, 300.0, 55),
        # 1 + 2^-11 loses its last bit: 19 bits remain.
        (2048, 1.0 + 2.0**-11, -256.0, -1),
        (5, 0.5 + 2.0**-11, 0.0, 3),
        (5, 0.5 + 2.0**-12, 0.0, 2),
        # NaN becomes 0, infinity the limit.
        (0, np.inf, 7.0, 7),
        (3, np.inf, -200.0, 55),
        (1, np.nan, 7.0, 7),
    ]:
        with subtests.test(acc=acc, scale=scale, offset=offset):
            packed = reference(*row(acc), bits_of(scale, offset))
            apart = reference(*row(acc), np.float32([scale]), offset=np.float32([offset]))
            assert packed.tolist() == apart.tolist() == [[expected]]


def test_a_word_may_shift_the_sum_before_it_is_scaled() -> None:
    """By two bits here, and to at most sixteen of them."""
    x1, x2 = row(1001, -1001, 4 * 127**2)
    words = bits_of(0.5, 1.0) | np.int64(0x11 << 32)
    y = run("npu_quant_matmul", x1, x2, np.repeat(words, 3), device="Atlas A2").output
    assert y.tolist() == reference(x1, x2, words).tolist() == [[126, -125, 127]]
    half = run("npu_quant_matmul", x1, x2, np.repeat(words, 3), output_dtype="float16",
               device="Atlas A2").output  # fmt: skip
    assert half.tolist() == [[125.0, -125.5, 8064.0]]


def test_words_without_a_sign_leave_uint8_in_the_output() -> None:
    message = (
        "npu_quant_matmul: scale must have bit 46 set for an int8 output, without it the kernel "
        "writes uint8; pack it with npu_trans_quant_param"
    )
    x1, x2 = row(200, 300, -5)
    words = np.repeat(bits_of(1.0) & 0xFFFFFFFF, 3)
    with pytest.warns(DocumentWarning, match=f"^{message}$"):
        y = run("npu_quant_matmul", x1, x2, words, device="Atlas A2").output
    assert y.view(np.uint8).tolist() == [[200, 255, 0]]
    assert y.tolist() == reference(x1, x2, words).tolist()


# ---- float16 ----


@pytest.mark.parametrize(
    ("acc", "scale", "expected"),
    [
        (3, 1.0 + 2.0**-10, 3.00390625),  # a tie between 3.001953125 and 3.00390625: to even
        (3, 1.0 + 2.0**-11, 3.0),  # the scale loses its last bit
        (64000, 1.0, 64000.0),
        (65519, 1.0, 65504.0),
        (65520, 1.0, np.inf),
        (-65520, 1.0, -np.inf),
    ],
)  # fmt: skip
def test_float16_typed_by_hand(acc: int, scale: float, expected: float) -> None:
    y = reference(*row(acc), bits_of(scale), output_dtype="float16")
    assert y.tolist() == [[expected]]


def test_310p_saturates_what_does_not_fit_into_float16() -> None:
    spec = devices.load("ascend310p3")
    scale = np.float32([1.0, -2.0, np.nan])
    y = reference(*row(64516, 64516, 1), scale * 4, output_dtype="float16", spec=spec)
    assert y.tolist() == [[65504.0, -65504.0, 0.0]]
    y = reference(*row(64516, 64516, 1), scale * 4, output_dtype="float16")
    np.testing.assert_array_equal(y, np.float16([[np.inf, -np.inf, np.nan]]))


# ---- float32 epilogue ----


def test_the_full_scale_then_the_token_then_the_bias() -> None:
    f = np.float32
    scale, token, bias = f(0.58998734), f(0.49520215), f(-0.37152556)
    expected = f(f(f(f(8808) * scale) * token) + bias)
    for other in (f(f(8808) * f(scale * token)), f(f(f(8808) * token) * scale)):
        assert np.float16(expected) != np.float16(other + bias)
    for output, kind in (("float16", np.float16), ("bfloat16", BF16)):
        y = reference(
            *row(8808), np.array([scale]), bias=np.array([bias]),
            pertoken_scale=np.array([token]), output_dtype=output,
        )  # fmt: skip
        assert (y.dtype, y[0, 0]) == (kind, kind(expected))


def test_bfloat16_keeps_all_of_a_float32_scale() -> None:
    # 1 + 2^-8 + 2^-20 is above a tie of bfloat16; cut to 19 bits it is the tie, and goes to 1.
    scale = np.float32([1 + 2.0**-8 + 2.0**-20])
    assert reference(*row(1), scale, output_dtype="bfloat16").tolist() == [[1 + 2.0**-7]]
    assert reference(*row(1), scale, output_dtype="float16").tolist() == [[1 + 2.0**-8]]


def test_an_int32_bias_is_scaled_and_a_float_bias_is_not() -> None:
    call = {"scale": np.float32([0.5]), "output_dtype": "bfloat16"}
    assert reference(*row(3), bias=np.int32([5]), **call).tolist() == [[4.0]]
    assert reference(*row(3), bias=np.float32([5]), **call).tolist() == [[6.5]]
    assert reference(*row(3), bias=np.array([5], BF16), **call).tolist() == [[6.5]]


# ---- int32 ----


def test_int32_ignores_the_scale_and_saturates() -> None:
    top, bottom = 2**31 - 1, -(2**31)
    bias = np.int32([top, bottom, 5])
    y = reference(*row(1, -1, 2), np.float32([9]), bias=bias, output_dtype="int32")
    assert y.tolist() == [[top, bottom, 7]]


# ---- what the matrices look like ----


def test_batches_broadcast(rng: np.random.Generator) -> None:
    x1, x2 = small(rng, 3, 1, 4, 20), small(rng, 2, 20, 5)
    y = reference(x1, x2, np.float32([1]), output_dtype="int32")
    assert y.shape == (3, 2, 4, 5)
    for i in range(3):
        for j in range(2):
            expected = x1[i, 0].astype(int) @ x2[j].astype(int)
            np.testing.assert_array_equal(y[i, j], expected)


def test_fractals_and_views_are_the_same_matrix(rng: np.random.Generator) -> None:
    x1, x2 = small(rng, 7, 40), small(rng, 40, 50)
    one = np.float32([1])
    expected = reference(x1, x2, one, output_dtype="int32")
    spec = TensorSpec((50, 40), "int8", "FRACTAL_NZ")
    turned = Tensor(spec, to_fractals(x2.T, NZ, (16, 32))).T
    for same in (np.asfortranarray(x2), turned):
        y = reference(np.asfortranarray(x1), same, one, output_dtype="int32")
        np.testing.assert_array_equal(y, expected)


def test_packed_int4_lie_along_the_inner_axis() -> None:
    # The first row of x1 is 1 .. 7, -8; x2 has ones in column 0 and the row's number in column 1.
    x1 = np.array([[0x87654321 - 2**32]], np.int32)
    x2 = np.array([[0x0000_0001 + (i % 8 << 4)] for i in range(8)], np.int32)
    scale = np.float32([1])
    y = reference(x1, x2, scale, output_dtype="bfloat16")
    weighted = sum((i + 1) * i for i in range(7)) + 8 * 7 * -1
    assert y[0, :3].tolist() == [20.0, float(weighted), 0.0]


def test_transposed_int4_are_packed_along_k(rng: np.random.Generator) -> None:
    a, b = rng.integers(-8, 8, (3, 16)), rng.integers(-8, 8, (16, 8))

    def packed(values: Array) -> Array:
        nibbles = (values.astype(np.int64) & 15).reshape(*values.shape[:-1], -1, 8)
        words = (nibbles << np.arange(0, 32, 4)).sum(-1)
        return np.ascontiguousarray(words.astype(np.uint32)).view(np.int32)

    scale = np.float32([1])
    expected = (a @ b).astype(BF16)
    for x2 in (packed(b), packed(b.T).T):
        y = reference(packed(a), x2, scale, output_dtype="bfloat16")
        np.testing.assert_array_equal(y, expected)


# ---- what the kernel is given ----


def test_the_kernel_reads_packed_words_and_no_offset() -> None:
    spec = devices.load("ascend910b2")
    ones = np.ones((4, 8), np.int8)
    scale, offset = np.float32([0.3]), np.float32([1.5, -2.5, 3, 4])
    p = check(spec, ones, ones.T, scale, offset=offset)
    assert [operand.name for operand in p.inputs] == ["x1", "x2", "scale"]
    assert p.scale is not None
    assert p.scale.array is not None
    assert p.scale.spec == TensorSpec((4,), "uint64")
    assert (
        p.scale.array.view(np.int64).tolist()
        == npu_trans_quant_param.reference(scale, offset).tolist()
    )
    assert (p.epilogue, p.mode) == ("fixpipe", "req8")
    assert p.product.transposed_b
    assert check(spec, ones, ones.T, scale, output_dtype="int32").scale is None
    p = check(spec, ones, ones.T, scale, output_dtype="bfloat16", bias=np.ones(4, np.float32))
    assert (p.epilogue, p.mode, p.start) == ("vector", "none", None)


def test_310p_gets_fractals_of_the_transposed_weight(rng: np.random.Generator) -> None:
    x1, x2 = small(rng, 4, 40), small(rng, 40, 50)
    p = check(devices.load("ascend310p3"), x1, x2, np.float32([1]))
    x2_nz = p.inputs[1]
    assert x2_nz.spec == TensorSpec((50, 40), "int8", "FRACTAL_NZ").T
    assert x2_nz.array is not None
    np.testing.assert_array_equal(Tensor(x2_nz.spec, x2_nz.array).numpy(), x2)
    assert (p.product.fractal_b, p.product.transposed_b) == (True, True)


def test_pairs_say_which_matrices_meet() -> None:
    spec = devices.load("ascend910b2")
    x1, x2 = TensorSpec((3, 1, 4, 8), "int8"), TensorSpec((2, 8, 4), "int8")
    p = check(spec, x1, x2, TensorSpec((1,), "float32"))
    assert p.product.batch == (3, 2)
    assert p.product.pairs == ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1))
    assert p.output == TensorSpec((3, 2, 4, 4), "int8")
