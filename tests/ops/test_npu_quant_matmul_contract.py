"""npu_quant_matmul: every rule of its code, a call that breaks it and the nearest that does not.

Sources: torch_npu-npu_quant_matmul.md; where it is silent, the checks of op-plugin and of aclnn
that the operator's module docstring names.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from calls import ones
from matrix_calls import fractals
from op_calls import BF16, NEW, OLD, Row, assert_accepted, constraints

from npusim import Code, TensorSpec
from npusim.ops import npu_trans_quant_param

OP = "npu_quant_matmul"
F32, F16, I8, I32, I64 = np.float32, np.float16, np.int8, np.int32, np.int64


WORDS = npu_trans_quant_param.reference(ones(8))
"""Numbers only, without the bit that npu_trans_quant_param sets for int8."""
BASE = {"x1": ones(4, 16, dtype=I8), "x2": ones(16, 8, dtype=I8), "scale": ones(8)}
HALF = {"output_dtype": "float16"}
BRAIN = {"output_dtype": "bfloat16"}
TOKENS = {"pertoken_scale": ones(4)}
PACKED = {
    "x1": ones(4, 2, dtype=I32), "x2": ones(16, 1, dtype=I32), "output_dtype": "float16",
}  # fmt: skip

ROWS: list[Row] = []

# ---- the kernel that is named ----

LEAVE = "leave it out to get the vendor's choice"
ROWS += [
    *(
        Row({"template": name},
            "template must be basic, tbe or tbe_opt on Atlas A2 and Atlas A3, not "
            f"{shown}; {LEAVE}", lines=NEW)
        for name, shown in (("pp", "'pp'"), ("", "''"), (1, "1"))
    ),
    Row({"template": "tbe"},
        f"template must be pp or coupled on Atlas inference, not 'tbe'; {LEAVE}", lines=OLD),
    Row({"template": "tbe_opt"},
        "template 'tbe_opt' can run only if vector cores make the output; pass a pertoken_scale "
        f"or output_dtype='bfloat16', or {LEAVE}", lines=NEW),
]  # fmt: skip

# ---- shapes ----

SAYS = "for a product of 4 rows and 8 columns"
EACH = "pass one number, or one a column"
ROWS += [
    *(
        Row({name: ones(*shape, dtype=I8)},
            f"{name} must not be empty, not of shape {shape}; leave the call out")
        for name, shape in (("x1", (0, 16)), ("x1", (4, 0)), ("x2", (16, 0)), ("x2", (0, 16, 8)))
    ),
    Row({"x1": ones(4, 15, dtype=I8)},
        "x2 must have as many rows as x1 has columns, 15, not 16; "
        "pass x1 as (m, k), x2 as (k, n)"),
    Row({"x1": ones(16, 4, dtype=I8)},
        "x2 must have as many rows as x1 has columns, 4, not 16; "
        "pass x1 as (m, k), x2 as (k, n)",
        {"x1": ones(16, 4, dtype=I8).T}),
    Row({"x1": ones(3, 4, 16, dtype=I8), "x2": ones(2, 16, 8, dtype=I8)},
        "the batch dimensions of x1 and x2 must broadcast, not (3,) and (2,); "
        "make them equal, or 1",
        {"x1": ones(3, 1, 4, 16, dtype=I8), "x2": ones(2, 16, 8, dtype=I8)}),
    *(
        Row({"scale": ones(*shape)},
            f"scale must have shape (1,) or (8,) {SAYS}, not {shape}; {EACH}", {"scale": ones(1)})
        for shape in ((), (2,), (16,), (1, 8), (8, 1))
    ),
    *(
        Row({"scale": ones(*shape, dtype=I64)} | HALF,
            f"scale must have shape (1,), (8,) or (1, 8) {SAYS}, not {shape}; {EACH}",
            {"scale": WORDS.reshape(1, 8)} | HALF)
        for shape in ((7,), (8, 1))
    ),
    *(
        Row({"offset": ones(*shape)},
            f"offset must have shape (1,) or (8,) {SAYS}, not {shape}; {EACH}",
            {"scale": ones(1), "offset": ones(8)})
        for shape in ((), (4,), (1, 8))
    ),
    *(
        Row({"bias": ones(*shape, dtype=I32)},
            f"bias must have shape (8,) {SAYS}, not {shape}; pass a number a column",
            {"bias": ones(8, dtype=I32)})
        for shape in ((1,), (4,), (1, 8), (1, 1, 8))
    ),
    *(
        Row({"x1": ones(3, 4, 16, dtype=I8), "bias": ones(*shape, dtype=I32)},
            f"bias must have shape (8,) or (3, 1, 8) {SAYS}, not {shape}; pass a number a column",
            {"x1": ones(3, 4, 16, dtype=I8), "bias": ones(3, 1, 8, dtype=I32)})
        for shape in ((1, 1, 8), (3, 8), (3, 4, 8))
    ),
    Row({"x1": ones(3, 1, 4, 16, dtype=I8), "bias": ones(3, 1, 8, dtype=I32)},
        f"bias must have shape (8,) {SAYS}, not (3, 1, 8); pass a number a column",
        {"x1": ones(3, 1, 4, 16, dtype=I8), "bias": ones(8, dtype=I32)}),
    *(
        Row({"pertoken_scale": ones(*shape)} | BRAIN,
            f"pertoken_scale must have shape (4,) {SAYS}, not {shape}; pass a number a row of x1",
            TOKENS | BRAIN, NEW)
        for shape in ((1,), (8,), (4, 1))
    ),
]  # fmt: skip


def specs(x1: tuple[int, ...], x2: tuple[int, ...]) -> dict[str, Any]:
    return {"x1": TensorSpec(x1, "int8"), "x2": TensorSpec(x2, "int8"), "scale": ones(1)}


def turned(rows: int, columns: int) -> TensorSpec:
    return TensorSpec((columns, rows), "int8").T


ROWS += [
    Row(specs((1, 65536), (65536, 8)), "k must be at most 65535, not 65536; split the call",
        specs((1, 65535), (65535, 8))),
    Row(specs((1, 16), (16, 65536)),
        "the dimension of x2 that lies inside must be at most 65535, not 65536; split the call",
        specs((1, 16), (16, 65536)) | {"x2": turned(16, 65536)}),
    Row(specs((65536, 16), (16, 8)) | {"x1": turned(65536, 16)},
        "the dimension of x1 that lies inside must be at most 65535, not 65536; split the call",
        specs((65536, 16), (16, 8))),
]  # fmt: skip

# ---- layouts ----

ND = "must have layout ND, not FRACTAL_NZ; pass it through npu_format_cast(..., 2)"
ROWS += [
    Row({"x2": fractals(ones(16, 8, dtype=I8))},
        "x2 in FRACTAL_NZ must be the transposed view of an (n, k) matrix on {series}, "
        "not of (k, n); cast the contiguous (n, k) matrix with npu_format_cast(..., 29), and pass "
        "that one's .T",
        {"x2": fractals(ones(8, 16, dtype=I8)).T}, OLD),
    Row({"x2": fractals(ones(8, 16, dtype=I8))},
        "x2 must have as many rows as x1 has columns, 16, not 8; pass its transpose",
        {"x2": fractals(ones(16, 8, dtype=I8))}, NEW),
]  # fmt: skip

# ---- int4 ----

ROWS += [
    Row(PACKED | {"x1": ones(2, 4, dtype=I32).T},
        "x1 must not be transposed if it holds packed int4; make it contiguous", PACKED, NEW),
    Row(PACKED | {"x2": ones(2, 1, dtype=I32)},
        "x2 must have as many rows as x1 has columns, 16, not 2; an int32 of x1 "
        "holds eight int4: pack those that hold one with npu_convert_weight_to_int4pack",
        PACKED | {"x2": ones(8, 2, dtype=I32).T}, NEW),
    Row(PACKED | {"x2": ones(7, 2, dtype=I32).T, "scale": ones(7)},
        "n must be even with packed int4 matrices, not 7; pad x2 by a column, and "
        "what has a number for each",
        PACKED | {"x2": ones(6, 2, dtype=I32).T, "scale": ones(6)}, NEW),
    Row(PACKED | {"scale": ones(1), "x1": TensorSpec((4, 8192), "int32"),
                  "x2": TensorSpec((65536, 1), "int32")},
        "k must be at most 65535, not 65536; split the call",
        PACKED | {"scale": ones(1), "x1": TensorSpec((4, 8191), "int32"),
                  "x2": TensorSpec((65528, 1), "int32")}, NEW),
]  # fmt: skip

# Numbers for each group of k need its size: see test_npu_quant_matmul_int4.
RANK = (
    "scale must have one dimension with packed int4 matrices and without group_sizes, not shape "
    "(1, 8); pass one number, or one a column, or group_sizes=[0, 0, 256]"
)
NO_OFFSET = (
    "offset must be None with x1 of int32 and group_sizes=(0, 0, 0) on {series}, not given; "
    "leave it out"
)
ROWS += [
    Row(PACKED | TOKENS | wrong, message, PACKED | TOKENS, NEW)
    for wrong, message in (
        ({"scale": ones(1, 8)}, RANK),
        ({"offset": ones(1, 8, dtype=np.float16)}, NO_OFFSET),
        ({"scale": ones(1, 8), "offset": ones(1, 8, dtype=np.float16)}, RANK),
        ({"offset": ones(8)}, NO_OFFSET),
    )
]

# ---- words, groups ----

ROWS += [
    *(
        Row({"group_sizes": sizes},
            f"group_sizes must be three integers (m, n, k), not {sizes!r}; pass [0, 0, 0]",
            {"group_sizes": (0, 0, 0)})
        for sizes in ([0, 0], [1, 2, 3, 4])
    ),
    *(
        Row({"group_sizes": [0, size, 0]},
            f"group_sizes[1] must lie in [0, 65535], not {size}; pass 0 for no groups",
            {"group_sizes": [np.int64(0), 0, 0]})
        for size in (-1, 65536)
    ),
    Row({"group_sizes": [0, 0, 256]},
        "group_sizes must be None or all 0 with int8 matrices, not [0, 0, 256], since their kernel "
        "with blocks (quant_batch_matmul_v4) is not simulated; leave it out",
        code=Code.UNSUPPORTED),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)

# ---- the tables of the document: everything that is accepted ----

SCALES_OF = {
    ("int8", False): ("float32", "int64"),
    ("float16", False): ("float32", "int64"),
    ("bfloat16", False): ("float32", "bfloat16"),
    ("int32", False): ("float32", "bfloat16"),
    ("float16", True): ("float32",),
    ("bfloat16", True): ("float32", "bfloat16"),
}
BIASES_OF = {
    ("int8", False): ("int32",),
    ("float16", False): ("int32",),
    ("bfloat16", False): ("int32", "bfloat16", "float32"),
    ("int32", False): ("int32",),
    ("float16", True): ("int32", "float16", "float32"),
    ("bfloat16", True): ("int32", "bfloat16", "float32"),
}


KINDS_OF = {"float32": F32, "bfloat16": BF16, "float16": F16, "int32": I32, "int64": I64}


def of_kind(name: str, kind: str) -> dict[str, Any]:
    return {name: ones(8, dtype=KINDS_OF[kind])}


@pytest.mark.parametrize("series", [*NEW, *OLD])
def test_the_types_of_the_document_go_together(series: str, subtests: pytest.Subtests) -> None:
    for (output, with_tokens), scales in SCALES_OF.items():
        if series in OLD and (with_tokens or output not in ("int8", "float16")):
            continue
        for scale, bias in product(scales, (*BIASES_OF[output, with_tokens], None)):
            call = BASE | {"output_dtype": output} | (TOKENS if with_tokens else {})
            call |= {"scale": WORDS} if scale == "int64" else of_kind("scale", scale)
            call |= of_kind("bias", bias) if bias else {}
            with subtests.test(output=output, tokens=with_tokens, scale=scale, bias=bias):
                assert_accepted(OP, call, series)
                if series in NEW and output in ("float16", "bfloat16"):
                    assert_accepted(OP, call | PACKED | {"output_dtype": output}, series)
