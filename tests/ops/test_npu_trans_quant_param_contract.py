"""npu_trans_quant_param: every constraint, the call that breaks it and the nearest that does not.

Sources: torch_npu-npu_trans_quant_param.md; for round_mode, op-plugin,
TransQuantParamKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from op_calls import Row, constraints

from npusim import TensorSpec, devices, run

OP = "npu_trans_quant_param"


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


BASE = {"scale": ones(4)}
ONE_OR_EACH = "pass one number, or one for each of scale"
NOT_A_TENSOR = "must be a numpy array or a TensorSpec, not"
REMEDY = "choose one of these"

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
