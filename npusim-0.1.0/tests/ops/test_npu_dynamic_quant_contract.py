"""npu_dynamic_quant: every constraint, with the call that breaks it and the nearest that does not.

Sources: torch_npu-npu_dynamic_quant.md, and for 310P the document of aclnn; rows without columns
are our own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from op_calls import NEW, OLD, Row, assert_all_same, constraints

from npusim import Code, run

OP = "npu_dynamic_quant"


BASE = {"x": ones(6, 4)}
HALF_ROW = ones(6, 32)
"""What every product line takes."""


def ends(*rows: int, dtype: Any = np.int32) -> Any:
    return np.array(rows, dtype)


LEAVE = "leave it out to get the vendor's choice"
GROUPED = {"smooth_scales": ones(2, 4), "group_index": ends(3, 6)}

ROWS = [
    # tensors
    # types
    # shapes
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
        Row({"x": ones(6, columns)},
            f"the last dimension of x must be a multiple of 32 on {{series}}, not {columns}; "
            f"pad it", {"x": ones(6, 64)}, OLD, Code.TILING_ERROR)
        for columns in (1, 31, 33, 48)
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


@pytest.mark.parametrize(("name", "value"), [("smooth_scales", ones(32)), ("group_index", ends(6))])
def test_a_310p_warns_of_what_it_does_not_read(name: str, value: Any) -> None:
    message = (
        f"npu_dynamic_quant: {name} should be None on Atlas inference, where no kernel reads it; "
        "leave it out"
    )
    with pytest.warns(UserWarning, match="^" + re.escape(message) + "$"):
        found = run(OP, HALF_ROW, device="ascend310p3", **{name: value})
    bare = run(OP, HALF_ROW, device="ascend310p3")
    assert_all_same(found.output, bare.output)
    assert found.cycles == bare.cycles
