"""matmul: every rule of its code, with the call that breaks it and the nearest that does not."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from calls import half_ones as ones
from matrix_calls import fractals
from op_calls import BF16, NEW, OLD, Row, assert_accepted, constraints

from npusim.ops._vocabulary import listed
from npusim.ops.matmul.choice import Template

OP = "matmul"
F16, F32 = np.float16, np.float32


BASE = {"x1": ones(4, 16), "x2": ones(16, 8)}
BRAIN = {"x1": ones(4, 16, dtype=BF16), "x2": ones(16, 8, dtype=BF16)}
SINGLE = {"x1": ones(4, 16, dtype=F32), "x2": ones(16, 8, dtype=F32)}
COLUMN = "pass a number a column"

ROWS = [
    # shapes
    *(
        Row({name: ones(*shape)},
            f"{name} must not be empty, not of shape {shape}; leave the call out")
        for name, shape in (("x1", (0, 16)), ("x1", (4, 0)), ("x2", (16, 0)))
    ),
    Row({"x1": ones(16, 4)},
        "x2 must have as many rows as x1 has columns, 4, not 16; "
        "pass x1 as (m, k), x2 as (k, n)",
        {"x1": ones(16, 4).T}),
    Row({"x1": ones(3, 4, 16), "x2": ones(2, 16, 8)},
        "the batch dimensions of x1 and x2 must broadcast, not (3,) and (2,); "
        "make them equal, or 1", {"x1": ones(3, 1, 4, 16), "x2": ones(2, 16, 8)}),
    *(
        Row({"bias": ones(*shape)},
            f"bias must have shape (8,) or (1, 8), not {shape}; {COLUMN}", {"bias": ones(*right)})
        for shape, right in (((1,), (8,)), ((4,), (8,)), ((4, 8), (1, 8)), ((1, 1, 8), (1, 8)))
    ),
    # kernels
    *(
        Row({"template": template},
    f"template must be {listed(get_args(Template))} on Atlas A2 and Atlas A3, not "
        f"{template!r}; leave it out to get the vendor's choice", {"template": "v2"}, NEW)
        for template in ("v3", 3)
        ),
    Row({"template": "v2"},
        "template must be base on Atlas inference, not 'v2'; "
        "leave it out to get the vendor's choice", {"template": "base"}, OLD),
    # output
    *(
        Row({"output_dtype": kind},
            f"output_dtype must be float16 or float32, not {came}; choose one of these",
            {"output_dtype": "float32"}, NEW)
        for kind, came in (("bfloat16", "'bfloat16'"), (3, "3"))
    ),
    Row({"output_dtype": "float32"},
        "output_dtype must be float16, not 'float32'; pass 'float16'", {"output_dtype": "float16"},
        OLD),
    *(
        Row({"output_dtype": "float32", "template": template},
            f"template '{template}' can run only if output_dtype is that of x1; "
            "leave it out to get the vendor's choice",
            {"output_dtype": "float32", "template": "base"}, NEW)
        for template in ("v2", "single_core_split_k", "deterministic_split_k")
    ),
    Row(SINGLE | {"output_dtype": "float16"},
        "output_dtype must be float32, not 'float16'; pass 'float32'", SINGLE, NEW),
    *(
        Row(SINGLE | {"template": template},
            f"template '{template}' can run only if x1 is float16 or bfloat16; "
            "leave it out to get the vendor's choice", SINGLE | {"template": "base"}, NEW)
        for template in ("v2", "bl1_full_load", "al1_split_k")
    ),
    Row(SINGLE | {"template": "nd2nz"},
        "template 'nd2nz' can run only if rows of x1 or x2 have more than 65535 elements; "
        "leave it out to get the vendor's choice", SINGLE, NEW),
    # layouts
    Row({"x2": fractals(ones(8, 16))},
        "x2 must have as many rows as x1 has columns, 16, not 8; pass its transpose",
        {"x2": fractals(ones(8, 16)).T}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


@pytest.mark.parametrize("bias", [None, (8,), (1, 8)])
@pytest.mark.parametrize("series", NEW)
def test_both_types_with_and_without_bias(series: str, bias: tuple[int, ...] | None) -> None:
    for call in (BASE, BRAIN):
        start = None if bias is None else ones(*bias, dtype=F32)
        assert_accepted(OP, call | {"bias": start}, series)
