"""torch_npu.testing: which results count as equal, and for which cards a test is."""
# ruff: noqa: PT009 (the assertions of unittest are what is tested)

from __future__ import annotations

import re
import tracemalloc
import unittest
from typing import Any

import numpy as np
import pytest
from simulated_card import torch, torch_npu

import npusim.torch

testing = torch_npu.testing

CASE = testing.TestCase()


def is_equal(x: Any, y: Any, **options: Any) -> bool:
    try:
        CASE.assertRtolEqual(x, y, **options)
    except AssertionError:
        return False
    return True


def spoilt(count: int, dtype: Any, by: float = 1.0, size: int = 10000) -> tuple[Any, Any]:
    """Two arrays of twos that differ in *count* elements."""
    x, y = np.full(size, 2, dtype), np.full(size, 2, dtype)
    y[:count] += np.asarray(by, dtype)
    return x, y


@pytest.mark.parametrize(
    ("dtype", "most"), [(np.float32, 1), (np.float64, 1), (np.int8, 1), (np.float16, 10)]
)
def test_a_share_of_elements_may_differ(dtype: Any, most: int) -> None:
    assert is_equal(*spoilt(most, dtype))
    assert not is_equal(*spoilt(most + 1, dtype))


def test_all_elements_may_differ_in_proportion() -> None:
    assert is_equal(*spoilt(10000, np.float32, 1.9e-4))
    assert not is_equal(*spoilt(10000, np.float32, 2.1e-4))
    assert is_equal(*spoilt(10000, np.float32, 2.1e-4), prec=2e-4)
    assert is_equal(*spoilt(10000, np.float16, 2**-9))
    assert not is_equal(*spoilt(10000, np.float16, 2**-8))
    assert is_equal(*spoilt(10000, np.float16, 2**-8), prec16=4e-3)


def test_small_numbers_are_near_whatever_their_proportion() -> None:
    x = np.full(100, 4e-5)
    assert is_equal(x, -x)
    assert not is_equal(2 * x, -2 * x)
    assert is_equal(2 * x, -2 * x, prec=2e-4)
    half = np.full(100, 4e-4, np.float16)
    assert is_equal(half, -half)
    assert not is_equal(2 * half, -2 * half)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64])
def test_nan_is_equal_to_nan_alone(dtype: Any) -> None:
    x, nan = np.ones(10, dtype), np.full(10, np.nan, dtype)
    infinite = np.full(10, np.inf, dtype)
    assert is_equal(nan, nan)
    assert is_equal(infinite, infinite)
    assert not is_equal(nan, x)
    assert not is_equal(x, nan)
    assert not is_equal(infinite, -infinite)


def test_large_results_are_compared_in_little_memory() -> None:
    x = np.ones((1 << 24, 2), np.float16)[:, 0]
    y = x.copy()
    y[: len(y) // 1000 + 1] = 2
    tracemalloc.start()
    assert not is_equal(x, y)
    y[0] = 1
    assert is_equal(x, y)
    assert tracemalloc.get_traced_memory()[1] < x.nbytes * 3
    tracemalloc.stop()


def test_far_integers_do_not_wrap() -> None:
    assert not is_equal(np.full(10, -128, np.int8), np.full(10, 127, np.int8))


def test_bool_must_be_equal_and_bfloat16_close() -> None:
    x = torch.ones(1000).bfloat16()
    assert is_equal(np.array([True, False]), np.array([True, False]))
    assert not is_equal(np.array([True, False]), np.array([True, True]))
    assert not is_equal(x, x + 0.0078125)
    assert is_equal(x, x + 0.0078125, prec16=0.01)
    assert not is_equal(x, x[:10])


def test_tensors_of_the_card_lists_and_numbers() -> None:
    x = torch.arange(4.0)
    assert is_equal(x.npu(), x)
    assert is_equal([x.npu(), 1.0], [x.numpy(), 1.0])
    assert not is_equal([x, 1.0], [x, 2.0])
    assert is_equal(x.half(), x, auto_trans_dtype=True)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones(2), np.ones(3), "shape error: x has shape (2,), y (3,)"),
        (np.ones(2), np.ones(2, np.int8), "dtype error: x is float64, y int8"),
        (
            np.ones(2),
            np.zeros(2),
            "result error: at most 0.0002 of 2 elements may be off by more than 0.0001 or by "
            "a share of more than 0.0001, not 2 and 2",
        ),
        (np.array([True]), np.array([False]), "result error: 1 of 1 elements are not equal"),
    ],
)
def test_what_is_different_is_reported(x: Any, y: Any, message: str) -> None:
    with pytest.raises(AssertionError, match="^" + re.escape(message) + "$"):
        CASE.assertRtolEqual(x, y)
    with pytest.raises(AssertionError, match="^here: " + re.escape(message) + "$"):
        CASE.assertRtolEqual(x, y, message="here")


def test_what_cannot_be_compared() -> None:
    message = (
        "assertRtolEqual: x must be a tensor, an array, a number or a list, not NoneType; "
        "convert it"
    )
    with pytest.raises(TypeError, match="^" + re.escape(message) + "$"):
        CASE.assertRtolEqual(None, 1.0)


def test_assert_equal_of_tensors_and_others() -> None:
    x = torch.tensor([1.0, float("nan")])
    CASE.assertEqual(x.npu(), x + 5e-6)
    CASE.assertEqual(x, x + 0.05, 0.1)
    CASE.assertEqual("a", "a")
    CASE.assertEqual(np.ones(3), np.ones(3) + 1e-6)
    CASE.assertEqual([x, 2], [x, 2])
    CASE.assertEqual(0.1, 0.100001)
    with pytest.raises(AssertionError, match=r"^elements must be no more than 1e-05 apart, not "):
        CASE.assertEqual([np.ones(3)], [np.zeros(3)])
    with pytest.raises(AssertionError, match=r"^0\.1 != 0\.2 within 1e-05 delta"):
        CASE.assertEqual(0.1, 0.2)
    with pytest.raises(AssertionError, match=r"^elements must be no more than 1e-05 apart, not "):
        CASE.assertEqual(x[:1], x[:1] + 1)
    with pytest.raises(AssertionError, match=r"torch\.Size\(\[2\]\) != torch\.Size\(\[1\]\)"):
        CASE.assertEqual(x, x[:1])
    with pytest.raises(AssertionError, match=r"^'a' != 'b'"):
        CASE.assertEqual("a", "b")


@pytest.mark.parametrize(("npu_format", "told"), [(-1, 2), (0, 0), (2, 2), (29, 29)])
def test_common_tensors_are_the_same_on_both_sides(npu_format: int, told: int) -> None:
    on_cpu, on_npu = testing.create_common_tensor([np.float16, npu_format, [32, 48]], -2, 3)
    assert (on_cpu.dtype, on_cpu.shape, on_npu.device.type) == (torch.float16, (32, 48), "npu")
    assert torch.equal(on_cpu, on_npu.cpu())
    assert -2 <= on_cpu.min() < on_cpu.max() <= 3
    assert torch_npu.get_npu_format(on_npu) == told


def test_tensors_of_a_torch_dtype() -> None:
    on_cpu, on_npu = testing.common_utils.create_dtype_tensor((50, 4), torch.int8, no_zero=True)
    assert torch.equal(on_cpu, on_npu.cpu())
    assert (on_cpu != 0).all()
    flags, _ = testing.common_utils.create_dtype_tensor((50,), torch.bool)
    assert flags.any()
    assert not flags.all()


Dtypes, Formats = testing.decorator.Dtypes, testing.decorator.Formats


@testing.decorator.instantiate_tests
class Quantized(testing.TestCase):  # type: ignore[misc]
    """As torch_npu's own tests are written."""

    __test__ = False

    @testing.SupportedDevices(["Ascend910B", "Ascend910_93"])
    def test_on_a2_and_a3(self) -> None:
        _, x = testing.create_common_tensor([np.float16, 2, (4, 16)], -1, 1)
        scale = torch.full((16,), 100.0).half().npu()
        found = torch_npu.npu_quantize(x, scale, None, torch.qint8, -1, False)
        wanted = (x.cpu().float() * 100).round().to(torch.int8)
        self.assertRtolEqual(found.cpu().numpy(), wanted.numpy())

    @Dtypes(torch.float32, torch.float16)
    @Formats(2, 29)
    def test_all(self, device: str, dtype: Any, npu_format: int) -> None:
        self.assertEqual(device, "npu:0")
        _, x = testing.common_utils.create_dtype_tensor((16, 16), dtype, npu_format)
        self.assertEqual(torch_npu.get_npu_format(x), npu_format)

    def test_that_fails(self) -> None:
        self.assertRtolEqual(torch.ones(2).npu(), torch.zeros(2))


def outcome() -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Quantized).run(result)
    return result


def test_a_test_case_runs_each_combination() -> None:
    result = outcome()
    assert (result.testsRun, len(result.errors), len(result.skipped)) == (6, 0, 0)
    assert [test.id().split(".")[-1] for test, _ in result.failures] == ["test_that_fails"]


def test_tests_for_other_cards_are_skipped() -> None:
    npusim.torch.install(device="ascend310p3")
    reasons = [reason for _, reason in outcome().skipped]
    assert reasons == ["only for Ascend910B, Ascend910_93; the card is Ascend310P3"]


def test_tests_for_more_cards_and_for_later_versions_are_skipped() -> None:
    common = torch_npu.testing.common_distributed
    done = common.skipIfUnsupportMultiNPU(1)(lambda: "done")
    assert done() == "done"
    with pytest.raises(unittest.SkipTest, match=r"^needs 2 cards, not 1$"):
        common.skipIfUnsupportMultiNPU(2)(lambda: "done")()
    later = testing.common_utils.SkipIfNotGteCANNVersion
    assert later("9.0.0")(lambda: "done")() == "done"
    with pytest.raises(unittest.SkipTest, match=r"^needs CANN 9\.9\.0, not 9\.1\.0$"):
        later("9.9.0")(lambda: "done")()


def test_every_test_starts_with_the_same_numbers() -> None:
    drawn = []
    for _ in range(2):
        CASE.setUp()
        drawn.append((torch.rand(1).item(), np.random.uniform()))
    assert drawn[0] == drawn[1]


def test_pairs_of_operands_of_which_one_is_broadcast() -> None:
    shapes = []
    for on_cpu, on_npu in testing.common_utils.test_2args_broadcast(torch.div):
        np.testing.assert_array_equal(on_cpu, on_npu)
        shapes.append(on_npu.shape)
    assert shapes == [(2, 3, 4, 5)] * 2


@pytest.mark.parametrize(
    ("decorator", "words"),
    [
        ("common_utils.SkipIfNotGteCANNVersion('9.2.0')", "needs CANN 9.2.0, not 9.1.0"),
        ("common_distributed.skipIfUnsupportMultiNPU(2)", "needs 2 cards, not 1"),
        ("common_utils.SkipIfNotGteCANNVersion('8.5.0.alpha1')", None),
        ("common_distributed.skipIfUnsupportMultiNPU(1)", None),
    ],
)
def test_tests_for_later_versions_or_more_cards_are_skipped(
    decorator: str, words: str | None
) -> None:
    test = eval(f"testing.{decorator}")(lambda: 7)
    if words is None:
        assert test() == 7
        return
    with pytest.raises(unittest.SkipTest, match=f"^{re.escape(words)}$"):
        test()
