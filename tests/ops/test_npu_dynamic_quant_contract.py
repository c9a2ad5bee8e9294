"""npu_dynamic_quant: every constraint, with the call that breaks it and the nearest that does not.

Sources: torch_npu-npu_dynamic_quant.md, and for 310P the document of aclnn; rows without columns
are our own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import (
    BF16,
    NEW,
    OLD,
    Row,
    assert_accepted,
    assert_all_same,
    assert_refused,
    on_each_line,
)

from npusim import Code, run

OP = "npu_dynamic_quant"


def ones(*shape: int, dtype: Any = np.float16) -> Any:
    return np.ones(shape, dtype)


BASE = {"x": ones(6, 4)}
NOT_A_TENSOR = "must be a numpy array or a TensorSpec, not"
HALF_ROW = ones(6, 32)
"""What every product line takes."""


def ends(*rows: int, dtype: Any = np.int32) -> Any:
    return np.array(rows, dtype)


LEAVE = "leave it out to get the vendor's choice"
GROUPED = {"smooth_scales": ones(2, 4), "group_index": ends(3, 6)}

ROWS = [
    # tensors
    Row({"x": None}, "x must be given, not None; pass a tensor", {}, NEW, Code.NULL_POINTER),
    Row({"x": [[1.0]]}, f"x {NOT_A_TENSOR} list; make it one of them", {}, NEW),
    Row({"x": np.ma.masked_array(ones(6, 4))},
        "x must be an array without a mask, not a MaskedArray; fill it first", {}, NEW),
    Row({"smooth_scales": 1.0}, f"smooth_scales {NOT_A_TENSOR} float; make it one of them",
        {"smooth_scales": None}, NEW),
    # types
    *(
        Row({"x": ones(6, 4).astype(kind)},
            f"x must be float16 or bfloat16 on {{series}}, not {kind}; convert it",
            {"x": ones(6, 4, dtype=BF16)}, NEW)
        for kind in ("float32", "float64", "int8", "object", ">f2")
    ),
    Row({"smooth_scales": ones(4, dtype=np.float32)},
        "smooth_scales must be float16 with x of float16 on {series}, not float32; convert it",
        {"smooth_scales": ones(4)}, NEW),
    Row({"x": ones(6, 4, dtype=BF16), "smooth_scales": ones(4)},
        "smooth_scales must be bfloat16 with x of bfloat16 on {series}, not float16; convert it",
        {"x": ones(6, 4, dtype=BF16), "smooth_scales": ones(4, dtype=BF16)}, NEW),
    # shapes
    *(
        Row({"x": ones(*shape)},
            f"x must have at least two dimensions, not shape {shape}; reshape it",
            {"x": ones(1, 4)}, NEW)
        for shape in ((), (4,))
    ),
    Row({"x": ones(*[1] * 9)}, "x must have at most 8 dimensions, not 9; reshape it",
        {"x": ones(*[1] * 8)}, NEW),
    *(
        Row({"x": ones(*shape)},
            f"the last dimension of x must not be empty where x has rows, not shape {shape}; "
            f"drop the rows", {"x": ones(*right)}, NEW)
        for shape, right in (((6, 0), (0, 0)), ((2, 3, 0), (2, 0, 0)))
    ),
    *(
        Row({"smooth_scales": ones(*shape)},
            f"smooth_scales must have shape (4,) like the last dimension of x, not {shape}; "
            f"pass a scale for each column", {"smooth_scales": ones(4)}, NEW)
        for shape in ((), (1,), (3,), (6,), (1, 4), (6, 4))
    ),
    # groups
    *(
        Row({"group_index": index},
            f"group_index must be a numpy array or a TensorSpec, not {kind}; make it one of them",
            {}, NEW)
        for index, kind in (([6], "list"), (6, "int"))
    ),
    Row(GROUPED | {"group_index": ends(3, 6, dtype=np.int64)},
        "group_index must be int32 on {series}, not int64; convert it", GROUPED, NEW),
    Row(GROUPED | {"smooth_scales": None},
        "smooth_scales must be given with a group_index, not None; pass a row for each group",
        GROUPED, NEW),
    *(
        Row({"smooth_scales": ones(2, 4), "group_index": ones(*shape, dtype=np.int32)},
            f"group_index must have shape (groups,) with 1 to 1024 of them, not {shape}; "
            f"pass an entry for each group", GROUPED, NEW, Code.TILING_ERROR)
        for shape in ((), (0,), (1, 2), (1025,))
    ),
    *(
        Row(GROUPED | {"smooth_scales": ones(*shape)},
            f"smooth_scales must have shape (2, 4), a row for each group, not {shape}; "
            f"pass a scale for each group and column", GROUPED, NEW, Code.TILING_ERROR)
        for shape in ((4,), (1, 4), (3, 4), (2, 3), (4, 2))
    ),
    *(
        Row(GROUPED | {"group_index": ends(*rows)},
            f"group_index must end with the number of rows of x, 6, not with {max(rows)}; "
            f"pass the end row of each group", GROUPED | {"group_index": ends(0, 6)}, NEW)
        for rows in ((3, 5), (0, 0), (-1, 4))
    ),
    # dst_type
    *(
        Row({"dst_type": dtype},
            f"dst_type must be int8 or quint4x2 on {{series}}, not {dtype!r}; choose one of these",
            {"dst_type": right}, NEW)
        for dtype, right in (("int4", "int8"), ("quint8", None), (1, "int8"), (int, "int8"))
    ),
    Row({"x": ones(6, 12), "dst_type": "quint4x2"},
        "the last dimension of x must be a multiple of 8 with dst_type='quint4x2', not 12; pad it",
        {"x": ones(6, 16), "dst_type": "quint4x2"}, NEW),
    # newer parameters
    *(
        Row({"x": HALF_ROW, "quant_mode": mode},
            f"quant_mode must be pertoken, not {mode!r}, which only Ascend950 has; leave it out",
            {"x": HALF_ROW, "quant_mode": "pertoken"}, code=Code.INNER_ERROR)
        for mode in ("pertensor", "perchannel")
    ),
    *(
        Row({"x": HALF_ROW, "quant_mode": mode},
            f"quant_mode must be pertoken, pertensor or perchannel, not {mode!r}; "
            f"choose one of these", {"x": HALF_ROW, "quant_mode": None})
        for mode in ("pergroup", 0)
    ),
    Row({"x": HALF_ROW, "dst_type_max": 448.0},
        "dst_type_max must be 0.0, not 448.0: only Ascend950 takes another largest number; "
        "leave it out", {"x": HALF_ROW, "dst_type_max": 0.0}, code=Code.INNER_ERROR),
    *(
        Row({"x": HALF_ROW, "dst_type_max": number},
            f"dst_type_max must be a number, not {number!r}; pass one without quotes",
            {"x": HALF_ROW, "dst_type_max": 0})
        for number in ("0", True, [0.0])
    ),
    # the kernel that is named
    *(
        Row({"template": name},
            "template must be single_row, multi_row, db, base, large, moe or moe_large on Atlas A2 "
            f"and Atlas A3, not {name!r}; {LEAVE}", {"template": "db"}, NEW)
        for name in ("aligned", "", 3)
    ),
    *(
        Row({"x": ones(2, columns), "template": name},
            f"template {name!r} can run only if rows have {needed} elements; {LEAVE}",
            {"x": ones(2, right), "template": name}, NEW)
        for name, columns, right, needed in (
            ("db", 15025, 15024, "at most 15024"),
            ("base", 17745, 17744, "at most 17744"),
            ("single_row", 8192, 5120, "4096, 5120 or 10240"),
        )
    ),
    *(
        Row({"x": ones(2, columns), "template": "multi_row"},
            "template 'multi_row' can run only if rows have 128 to 16320 elements, a multiple of "
            f"8; {LEAVE}", {"x": ones(2, right), "template": "multi_row"}, NEW)
        for columns, right in ((120, 128), (132, 136), (16328, 16320))
    ),
    Row({"x": ones(2, 11489), "smooth_scales": ones(11489), "template": "base"},
        f"template 'base' can run only if rows have at most 11488 elements; {LEAVE}",
        {"x": ones(2, 11488), "smooth_scales": ones(11488), "template": "base"}, NEW),
    Row({"x": ones(2, 4096), "dst_type": "quint4x2", "template": "single_row"},
        f"template 'single_row' can run only if the output is int8; {LEAVE}",
        {"x": ones(2, 4096), "template": "single_row"}, NEW),
    Row(GROUPED | {"template": "base"},
        f"template 'base' can run only if group_index is None; {LEAVE}",
        GROUPED | {"template": "moe_large"}, NEW),
    Row({"template": "moe"},
        f"template 'moe' can run only if group_index is given; {LEAVE}",
        GROUPED | {"template": "moe"}, NEW),
    Row({"x": HALF_ROW, "template": "base"},
        "template must be None on Atlas inference, where the rows decide, not 'base'; leave it out",
        {"x": HALF_ROW, "template": None}, OLD),
    # 310P
    *(
        Row({"x": ones(6, 32).astype(kind)},
            f"x must be float16 on {{series}}, not {kind}; convert it", {"x": HALF_ROW}, OLD)
        for kind in ("bfloat16", "float32", "int8")
    ),
    *(
        Row({"x": ones(6, columns)},
            f"the last dimension of x must be a multiple of 32 on {{series}}, not {columns}; "
            f"pad it", {"x": ones(6, 64)}, OLD, Code.TILING_ERROR)
        for columns in (1, 31, 33, 48)
    ),
    Row({"x": HALF_ROW, "dst_type": "quint4x2"},
        "dst_type must be int8 on {series}, not 'quint4x2'; pass 'int8'",
        {"x": HALF_ROW, "dst_type": "int8"}, OLD),
]  # fmt: skip


@on_each_line(ROWS)
def test_every_constraint(series: str, rows: list[Row], subtests: pytest.Subtests) -> None:
    for row in rows:
        with subtests.test(row.message):
            assert_refused(OP, BASE | row.wrong, row, series)
            assert_accepted(OP, BASE | row.right, series)


@pytest.mark.parametrize(("name", "value"), [("smooth_scales", ones(32)), ("group_index", ends(6))])
def test_a_310p_takes_what_it_does_not_read_and_says_so(name: str, value: Any) -> None:
    message = (
        f"npu_dynamic_quant: {name} should be None on Atlas inference, where no kernel reads it; "
        "leave it out"
    )
    with pytest.warns(UserWarning, match="^" + re.escape(message) + "$"):
        found = run(OP, HALF_ROW, device="ascend310p3", **{name: value})
    bare = run(OP, HALF_ROW, device="ascend310p3")
    assert_all_same(found.output, bare.output)
    assert found.cycles == bare.cycles
