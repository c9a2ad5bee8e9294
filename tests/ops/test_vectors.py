"""Numbers that the vendor printed, or that follow from its examples, on every chip that has them.

Inputs are printed with four or five digits; none of the outputs here is so near a tie that this
matters.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import A2, A3, BF16, INFERENCE, Array

from npusim import Code, OpError, devices, run

ALL = devices.names()


def output(op: str, device: str, *args: Any, **kwargs: Any) -> Array:
    values = run(op, *args, device=device, timing=False, **kwargs).output
    assert isinstance(values, np.ndarray)
    return values


# ---- printed outputs of npu_quantize (torch_npu-npu_quantize.md) ----


@pytest.mark.parametrize("device", A2 + A3)
def test_npu_quantize_bfloat16_example(device: str) -> None:
    x = np.array([[[
        0.9609, 1.3281, -0.6172, 0.5469, -1.1797, -1.1719, -0.7422, 0.9727, -0.9062, -0.0815,
        -0.8047, 1.0703,
    ]]]).astype(BF16)  # fmt: skip
    scale = np.full(12, 0.1).astype(BF16)
    result = output("npu_quantize", device, x, scale, None, "qint8", -1, False)
    assert result.tolist() == [[[0] * 12]]


@pytest.mark.parametrize("device", ALL)
def test_npu_quantize_float32_example(device: str) -> None:
    x = np.float32([
        -7.7834e-01, -1.0473e+00, -1.1155e+00, 1.2233e+00, -1.2271e+00, -2.5612e+00, -1.8274e-01,
        2.8293e+00, 1.9029e-01, -1.9333e+00, -4.9270e-01, -1.0650e+00, -8.9416e-01, 3.1869e-02,
        -5.8144e-01, -4.9477e-01, 9.7323e-02, -3.8681e-01, 2.1969e-03, -6.3244e-01, 7.1591e-01,
        -1.8587e-01, -1.3381e+00, -2.6253e-01, 1.8462e-02, 1.2397e-01, -9.0656e-01, -9.9280e-01,
        -4.4235e-02, 1.0623e+00, -9.8437e-02, 1.2941e+00, 1.0805e+00, -1.7269e-01, -9.9205e-02,
        -6.1429e-01, 1.3678e+00, -2.7348e-01, -4.1354e-01, -9.4638e-01, 4.2792e-01, 8.0462e-01,
        9.3584e-01, 6.3704e-01, 1.1269e+00, -1.5329e+00, 5.8572e-01, -1.3966e+00, 3.5882e-01,
        8.7029e-01, -1.3176e+00, 1.1601e+00, -3.6984e-01, 7.3642e-01, -1.0755e+00, 6.6557e-01,
        3.1149e+00, -6.8776e-01, -1.0913e+00, 4.4962e-01, -1.2505e+00, 1.5474e+00, -7.4332e-02,
        -1.6657e+00, 1.3275e+00, 5.8914e-02, 8.4287e-01, -1.7109e+00, 1.8256e-01, 3.2937e-01,
        2.4875e+00, 1.3921e+00,
    ]).reshape(2, 3, 12)  # fmt: skip
    scale = np.full(12, 3, np.float32)
    assert output("npu_quantize", device, x, scale, None, "qint8", -1, False).tolist() == [
        [[-2, -3, -3, 4, -4, -8, -1, 8, 1, -6, -1, -3],
         [-3, 0, -2, -1, 0, -1, 0, -2, 2, -1, -4, -1],
         [0, 0, -3, -3, 0, 3, 0, 4, 3, -1, 0, -2]],
        [[4, -1, -1, -3, 1, 2, 3, 2, 3, -5, 2, -4],
         [1, 3, -4, 3, -1, 2, -3, 2, 9, -2, -3, 1],
         [-4, 5, 0, -5, 4, 0, 3, -5, 1, 1, 7, 4]],
    ]  # fmt: skip


@pytest.mark.parametrize("device", ALL)
def test_npu_quantize_float16_graph_example_with_the_default_axis(device: str) -> None:
    """The scales have as many elements as the last dimension; axis=1 means it all the same."""
    x = np.float16([
        0.2600, 0.6782, 0.5024, 0.9492, 0.6089, 0.7461, 1.5332, -0.2123, 0.6558, -0.8354, -0.5366,
        -0.6821, -0.2522, 0.2415, -0.0269, -0.1497, 0.2256, -0.5239, 0.7363, -0.2468, 1.6064,
        1.4170, -0.2213, 1.5947, -0.6328, 0.8105, 0.2532, 1.0684, -1.2119, -0.6865, 0.7451,
        -0.8120, 0.6401, -2.1270, -0.9482, -1.1973, -1.7461, -1.1758, -0.5352, 1.5938, 1.8945,
        -2.2500, -0.5073, -0.8164, 0.8267, -0.4377, 1.2490, 0.2415, 0.8062, -1.0498, -0.8345,
        1.1465, -0.7349, 0.1317, 0.2280, -0.8145, 0.2673, 1.4756, -1.6768, 1.1572, -0.3147,
        -0.4446, -1.0508, 0.8325, 1.4590, 0.2096, -0.9961, 0.6089, -0.2460, 1.1543, 0.9277, 0.1079,
    ]).reshape(2, 3, 12)  # fmt: skip
    scale = np.full(12, 3, np.float16)
    result = output("npu_quantize", device, x, scale, zero_points=None, dtype="qint8",
                    div_mode=False)  # fmt: skip
    assert result.tolist() == [
        [[1, 2, 2, 3, 2, 2, 5, -1, 2, -3, -2, -2],
         [-1, 1, 0, 0, 1, -2, 2, -1, 5, 4, -1, 5],
         [-2, 2, 1, 3, -4, -2, 2, -2, 2, -6, -3, -4]],
        [[-5, -4, -2, 5, 6, -7, -2, -2, 2, -1, 4, 1],
         [2, -3, -3, 3, -2, 0, 1, -2, 1, 4, -5, 3],
         [-1, -1, -3, 2, 4, 1, -3, 2, -1, 3, 3, 0]],
    ]  # fmt: skip


# ---- printed outputs of the others ----


@pytest.mark.parametrize("device", A2 + A3)
@pytest.mark.parametrize("dst_dtype", ["qint8", "int8", None])
def test_npu_group_quant_example(device: str, dst_dtype: str | None) -> None:
    """torch_npu-npu_group_quant.md."""
    x = np.float16([
        [1.0029, -1.2373, 1.0107, -0.2681],
        [0.5791, 0.1101, 1.0059, -0.9658],
        [-1.7637, 1.7588, -1.3193, 0.3989],
        [1.3262, 0.4854, 1.9551, 0.9697],
        [-0.8770, -1.8828, 2.1777, -0.0050],
        [0.4722, 0.5605, 0.8267, -0.9810],
    ])  # fmt: skip
    scale = np.float32([
        [-0.2710, -0.9381, 0.2850, -1.1230],
        [0.5217, -0.7233, -0.1730, -0.1245],
        [-1.5433, -0.9129, -2.2095, 1.7371],
        [-0.8253, 0.3973, 0.1430, 0.3885],
    ])  # fmt: skip
    ends, offset = np.array([1, 4, 6, 6], np.int32), np.float32([-1.1658])
    result = output("npu_group_quant", device, x, scale, ends, offset=offset, dst_dtype=dst_dtype)
    assert result.tolist() == [
        [-1, 0, -1, -1],
        [-1, -1, -1, -1],
        [-2, -2, -1, -1],
        [0, -2, -2, -1],
        [0, 1, -6, -1],
        [-2, -2, -3, -3],
    ]


PRINTED = {
    70507248869376: (1.0458984375, 1), 70369794605056: (0.30517578125, 0),
    70509369614336: (-0.11614990234375, 1), 140463675252736: (0.96728515625, -2),
    70507209793536: (0.043365478515625, 1), 70784266256384: (-0.5458984375, 3),
    140463653937152: (0.1741943359375, -2), 70507233009664: (0.288818359375, 1),
    140603250524160: (-0.40087890625, -1), 140601114345472: (0.9755859375, -1),
    140603257561088: (-0.72119140625, -1), 70371966238720: (-2.19921875, 0),
    140603230814208: (-0.078369140625, -1), 140603258257408: (-0.7626953125, -1),
    70369813069824: (1.421875, 0), 140603254505472: (-0.5390625, -1),
}  # fmt: skip


@pytest.mark.parametrize("device", ALL)
@pytest.mark.parametrize("round_mode", [0, 1])
def test_npu_trans_quant_param_example(device: str, round_mode: int) -> None:
    """torch_npu-npu_trans_quant_param.md prints no inputs: what its words hold packs to them."""
    scale, offset = np.array(list(PRINTED.values()), np.float32).T
    result = output("npu_trans_quant_param", device, scale, offset, round_mode)
    assert result.tolist() == list(PRINTED)


# ---- examples whose output follows from the formula ----


@pytest.mark.parametrize("device", ALL)
def test_aclnn_ascend_quant_v3_example(device: str) -> None:
    """ops-nn, quant/ascend_quant_v2/examples."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    scale, offset = np.float32([1, 2]), np.float32([1, 2])
    result = output("npu_quantize", device, x, scale, offset, "qint8", -1, False)
    assert result.tolist() == [[1, 4], [3, 8], [5, 12], [7, 16]]


@pytest.mark.parametrize("device", A2 + A3)
def test_aclnn_group_quant_example(device: str) -> None:
    """ops-nn, quant/group_quant/examples."""
    x, scale = np.arange(8, dtype=np.float32).reshape(4, 2), np.float32([[1, 2]] * 3)
    result = output(
        "npu_group_quant", device, x, scale, np.array([1, 2, 4]), offset=np.float32([2])
    )
    assert result.tolist() == [[2, 4], [4, 8], [6, 12], [8, 16]]


@pytest.mark.parametrize("device", ALL)
def test_aclnn_quantize_example(device: str) -> None:
    """ops-nn, quant/quantize/examples; 1.0761 / -3 + 10 is 9.64, so the last column is all tens."""
    x = np.float32([[0.3382, -0.0919], [0.7564, 0.0234], [3.1024, 1.0761], [0.4228, 1.4621]])
    scales, points = np.float32([2, -3]), np.array([2, 10], np.int32)
    result = output("npu_quantize", device, x, scales, points, "int32", 1, True)
    assert result.tolist() == [[2, 10], [2, 10], [4, 10], [2, 10]]


@pytest.mark.parametrize("device", ALL)
def test_aclnn_trans_quant_param_v2_example(device: str) -> None:
    """ops-nn, quant/trans_quant_param_v2/examples."""
    one = np.ones(1, np.float32)
    assert output("npu_trans_quant_param", device, one, one).tolist() == [70507248484352]


# ---- properties that the kernels' sources give ----


@pytest.mark.parametrize("device", ALL)
@pytest.mark.parametrize(
    ("offset", "field"), [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (300, 255), (-300, -256)]
)
def test_offsets_are_rounded_to_even_and_clipped(device: str, offset: float, field: int) -> None:
    scale = np.float32([1.9999999])
    (word,) = output("npu_trans_quant_param", device, scale, np.float32([offset])).tolist()
    nine_bits = word >> 37 & 0x1FF
    assert nine_bits - (nine_bits >> 8 << 9) == field
    # Cut off, not rounded: rounding would give 2.0.
    assert word & 0xFFFFFFFF == np.float32([1.9990234375]).view(np.uint32)[0]


@pytest.mark.parametrize("device", ALL)
def test_div_mode_false_takes_axis_0_for_the_last_one(device: str) -> None:
    x = np.arange(72, dtype=np.float32).reshape(2, 3, 12)
    scale = np.linspace(0.1, 1, 12, dtype=np.float32)
    results = [
        output("npu_quantize", device, x, scale, None, "qint8", axis, False).tolist()
        for axis in (-1, 0, 1, 2, 3)
    ]
    assert results.count(results[0]) == 5


@pytest.mark.parametrize("device", A2 + A3)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_bad_group_index_is_a_trap_of_the_kernel_not_a_wrong_argument(
    device: str, kind: Any
) -> None:
    x, scale = np.ones((6, 4), np.float16), np.ones((4, 4), np.float32)
    message = (
        "npu_group_quant: group_index must not decrease, not be [2, 1, 6, 6]; "
        "pass the end row of each group, in order (core 0) [507015]"
    )
    with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
        run("npu_group_quant", x, scale, np.array([2, 1, 6, 6], kind), device=device)
    assert caught.value.code is Code.AICORE_EXCEPTION


# ---- weights ----


@pytest.mark.parametrize("device", A2 + A3)
@pytest.mark.parametrize("x", [np.float16, BF16])
def test_aclnn_weight_quant_batch_matmul_v2_example(device: str, x: Any) -> None:
    """ops-nn, examples of weight_quant_batch_matmul_v2: ones everywhere, k = 32."""
    ones = np.ones((16, 32), x), np.ones((32, 16), np.int8), np.ones(16, x)
    found = run("npu_weight_quant_batchmatmul", *ones, device=device, timing=False)
    # m is small, but n is no multiple of 32.
    assert found.template == "custom"
    assert np.array_equal(np.asarray(found.output), np.full((16, 16), 32, x))


@pytest.mark.parametrize("device", A2 + A3)
def test_int4_weights_in_the_order_of_npu_convert_weight_to_int4pack(device: str) -> None:
    whole = np.arange(-8, 8, dtype=np.int32).reshape(2, 8)
    packed = run("npu_convert_weight_to_int4pack", whole, device=device).output
    assert isinstance(packed, np.ndarray)
    assert packed.ravel().tolist() == [-19088744, 1985229328]
    one = np.ones(1, np.float16)
    eye = np.eye(2, dtype=np.float16)
    found = run("npu_weight_quant_batchmatmul", eye, packed, one, device=device, timing=False)
    assert found.template == "custom"
    assert np.array_equal(np.asarray(found.output), whole)


def test_these_are_all_chips() -> None:
    assert sorted(A2 + A3 + INFERENCE) == list(ALL)
