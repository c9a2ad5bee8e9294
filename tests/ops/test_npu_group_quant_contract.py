"""npu_group_quant: every constraint, with the call that breaks it and the nearest that does not.

Sources: torch_npu-npu_group_quant.md; for what the kernel checks, ops-nn, group_quant_base.h.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import (
    BF16,
    INFERENCE,
    NEW,
    Row,
    assert_accepted,
    assert_refused,
    on_each_line,
)

from npusim import Code, OpError, TensorSpec, run

OP = "npu_group_quant"


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def ends(*values: int, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


BASE = {"x": ones(6, 4), "scale": ones(4, 4), "group_index": ends(1, 4, 6, 6)}
FLOATS = "must be float32, float16 or bfloat16 on {series}, not"
NOT_A_TENSOR = "must be a numpy array or a TensorSpec, not"

ROWS = [
    # tensors
    *(
        Row({name: None}, f"{name} must be given, not None; pass a tensor", {}, NEW,
            Code.NULL_POINTER)
        for name in BASE
    ),
    Row({"x": [[1.0]]}, f"x {NOT_A_TENSOR} list; make it one of them", {}, NEW),
    Row({"group_index": [1, 4, 6, 6]},
        f"group_index {NOT_A_TENSOR} list; make it one of them", {}, NEW),
    Row({"offset": 1.0}, f"offset {NOT_A_TENSOR} float; make it one of them",
        {"offset": np.array(1.0, np.float32)}, NEW),
    Row({"group_index": np.ma.masked_array(ends(1, 4, 6, 6))},
        "group_index must be an array without a mask, not a MaskedArray; fill it first", {}, NEW),
    # types
    *(
        Row({"x": ones(6, 4).astype(kind)}, f"x {FLOATS} {kind}; convert it",
            {"x": ones(6, 4, dtype=np.float16)}, NEW)
        for kind in ("float64", "int8", "object", ">f2")
    ),
    Row({"scale": np.ones((4, 4))}, f"scale {FLOATS} float64; convert it",
        {"scale": ones(4, 4, dtype=BF16)}, NEW),
    *(
        Row({"group_index": ends(1, 4, 6, 6).astype(kind)},
            f"group_index must be int32 or int64 on {{series}}, not {kind}; convert it",
            {"group_index": ends(1, 4, 6, 6, dtype=np.int64)}, NEW)
        for kind in ("float32", "uint8", "int16", "uint64", "bool", ">i4")
    ),
    Row({"offset": ones(1, dtype=np.float16)},
        "offset must be float32 with scale of float32 on {series}, not float16; convert it",
        {"offset": ones(1)}, NEW),
    Row({"scale": ones(4, 4, dtype=BF16), "offset": ones(1)},
        "offset must be bfloat16 with scale of bfloat16 on {series}, not float32; convert it",
        {"scale": ones(4, 4, dtype=BF16), "offset": ones(1, dtype=BF16)}, NEW),
    # shapes
    *(
        Row({"x": ones(*shape)},
            f"x must have shape (rows, columns), not {shape}; pass one of that shape", {}, NEW)
        for shape in ((), (4,), (1, 6, 4))
    ),
    Row({"x": ones(*[1] * 9)}, "x must have at most 8 dimensions, not 9; reshape it", {}, NEW),
    *(
        Row({"scale": ones(*shape)},
            f"scale must have shape (groups, 4) like x, not {shape}; pass one of that shape",
            {}, NEW)
        for shape in ((4,), (1, 4, 4))
    ),
    *(
        Row({"group_index": np.zeros(shape, np.int32)},
            f"group_index must have shape (4,) like scale, not {shape}; pass one of that shape",
            {}, NEW)
        for shape in ((), (1, 4))
    ),
    Row({"scale": ones(0, 4), "group_index": ends()},
        "scale must have at least one row, not shape (0, 4); add one, and its end to "
        "group_index",
        {"scale": ones(1, 4), "group_index": ends(6)}, NEW),
    Row({"scale": ones(4, 3)},
        "scale must have shape (groups, 4) like x, not (4, 3); pass one of that shape", {}, NEW),
    Row({"scale": ones(4, 1)},
        "scale must have shape (groups, 4) like x, not (4, 1); pass one of that shape", {}, NEW),
    Row({"group_index": ends(1, 4, 6)},
        "group_index must have shape (4,) like scale, not (3,); pass one of that shape", {}, NEW),
    *(
        Row({"offset": ones(*shape)},
            f"offset must be one number, of shape () or (1,), not {shape}; pass one",
            {"offset": ones(*right)}, NEW)
        for shape, right in (((0,), (1,)), ((2,), (1,)), ((4,), ()), ((1, 1), ()))
    ),
    # dst_dtype
    *(
        Row({"dst_dtype": dtype},
            f"dst_dtype must be int8, qint8 or quint4x2, not {dtype!r}; choose one of these",
            {"dst_dtype": right}, NEW)
        for dtype, right in (
            ("int4", "int8"), ("quint8", "qint8"), ("int32", None), (1, "int8"), (int, "int8"),
        )
    ),
    *(
        Row({"x": ones(6, columns), "scale": ones(4, columns), "dst_dtype": "quint4x2"},
            "the last dimension of x must be a multiple of 8 with dst_dtype='quint4x2', "
            f"not {columns}; pad x and scale",
            {"x": ones(6, 8), "scale": ones(4, 8), "dst_dtype": "quint4x2"}, NEW)
        for columns in (4, 9, 12)
    ),
]  # fmt: skip


@on_each_line(ROWS)
def test_what_is_checked_before_the_launch(
    series: str, rows: list[Row], subtests: pytest.Subtests
) -> None:
    for row in rows:
        with subtests.test(row.message):
            assert_refused(OP, BASE | row.wrong, row, series)
            assert_accepted(OP, BASE | row.right, series)


@pytest.mark.parametrize("device", INFERENCE)
def test_a_310p_has_no_such_kernel(device: str) -> None:
    message = (
        f"npu_group_quant: the chip must be of Atlas A2 or Atlas A3, not {device} of "
        "Atlas inference, which has no such kernel; use npu_quantize with "
        "div_mode=False for each group [361001]"
    )
    # Whatever the arguments are.
    for call in (BASE, dict.fromkeys(BASE)):
        with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
            run(OP, device=device, **call)
        assert caught.value.code is Code.UNSUPPORTED


# ---- what the kernel finds out ----

DECREASE = "group_index must not decrease, not be [{}]"
NEGATIVE = "group_index must not be negative, not be [{}]"
LAST = "group_index must end with the number of rows of x, 6, not be [{}]"
TRAPS = [
    ((2, 1, 6, 6), DECREASE, (1, 2, 6, 6)),
    ((1, 4, 6, 5), DECREASE, (1, 4, 5, 6)),
    ((1, 4, 7, 6), DECREASE, (1, 4, 6, 6)),
    ((2**31 - 1, -(2**31), 6, 6), DECREASE, (0, 0, 6, 6)),
    ((-1, 4, 6, 6), NEGATIVE, (0, 4, 6, 6)),
    ((-(2**31), 0, 0, 6), NEGATIVE, (0, 0, 0, 6)),
    ((1, 4, 5, 5), LAST, (1, 4, 5, 6)),
    ((1, 4, 6, 7), LAST, (1, 4, 6, 6)),
    ((0, 0, 0, 0), LAST, (0, 0, 0, 6)),
    ((6, 6, 6, 2**31 - 1), LAST, (6, 6, 6, 6)),
]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
def test_a_bad_group_index_stops_the_kernel(
    device: str, kind: Any, subtests: pytest.Subtests
) -> None:
    for bad, template, good in TRAPS:
        with subtests.test(bad=bad):
            text = template.format(", ".join(map(str, bad)))
            says = f"{OP}: {text}; pass the end row of each group, in order"
            wrong = BASE | {"group_index": ends(*bad, dtype=kind)}
            for timing in (True, False):
                with pytest.raises(
                    OpError, match="^" + re.escape(f"{says} (core 0) [507015]") + "$"
                ) as e:
                    run(OP, device=device, timing=timing, **wrong)
                assert e.value.code is Code.AICORE_EXCEPTION
            # Without values no core is the first one to find out.
            timed = wrong | {"x": TensorSpec((6, 4), "float32")}
            with pytest.raises(OpError, match="^" + re.escape(f"{says} [507015]") + "$"):
                run(OP, device=device, **timed)
            assert_accepted(OP, BASE | {"group_index": ends(*good, dtype=kind)}, "Atlas A2")


def test_a_group_index_beyond_int32_stops_the_kernel() -> None:
    with pytest.raises(
        OpError, match=r"must not decrease, not be \[4611686018427387904, 0, 6, 6\]"
    ):
        run(OP, device="ascend910b2", **(BASE | {"group_index": ends(2**62, 0, 6, 6, dtype="i8")}))


def test_a_long_group_index_is_quoted_in_part() -> None:
    many = np.arange(600, dtype=np.int32)
    call = {"x": ones(6, 4), "scale": ones(600, 4), "group_index": many[::-1].copy()}
    message = (
        "npu_group_quant: group_index must not decrease, not be [599, 598, 597, 596, ..., 0]; "
        "pass the end row of each group, in order (core 0) [507015]"
    )
    with pytest.raises(OpError, match="^" + re.escape(message) + "$"):
        run(OP, device="ascend910b2", **call)


@pytest.mark.parametrize("groups", [2, 255, 256, 257, 512, 600])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_every_neighbouring_pair_is_looked_at(kind: Any, groups: int) -> None:
    """Each entry in turn is one too large, also where one piece of group_index meets the next."""
    for place in {0, groups // 2, 254, 255, 256, 510, 511} & set(range(groups - 1)):
        index = np.full(groups, 3, kind)
        index[place] = 4
        call = {"x": ones(3, 4), "scale": ones(groups, 4), "group_index": index}
        with pytest.raises(OpError, match="group_index must not decrease"):
            run(OP, device="ascend910b2", timing=False, **call)
        index[place] = 3
        run(OP, device="ascend910b2", timing=False, **call)
