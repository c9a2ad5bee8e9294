"""How the vector cores of a group share what a cube core made: which core stores how many rows.

Rows that are odd in number show who takes the one left over. Values cannot show it: they come
out right on either core, and only the times of the two cores differ.
"""

from __future__ import annotations

from typing import Any

import pytest
from tiny import fewer_cores

from npusim import TensorSpec, run
from npusim.isa import Store, global_operand

A2 = fewer_cores("ascend910b2", aic=1, aiv=2)
PRODUCT, WEIGHT = "npu_quant_matmul", "npu_weight_quant_batchmatmul"
ONE = TensorSpec((1,), "float32")
EIGHT_BITS, FOUR_BITS = TensorSpec((128, 64), "int8"), TensorSpec((128, 8), "int32")
IN_GROUPS = {"antiquant_group_size": 64}


def x(dtype: str) -> TensorSpec:
    return TensorSpec((5, 128), dtype)


def in_groups(dtype: str) -> TensorSpec:
    return TensorSpec((2, 64), dtype)


CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str, tuple[int, int]]] = {
    "a scale": (
        PRODUCT, (x("int8"), EIGHT_BITS, ONE), {"output_dtype": "bfloat16"},
        "output", (2 * 64 * 2, 3 * 64 * 2),
    ),
    "a scale a row": (
        PRODUCT, (x("int8"), EIGHT_BITS, ONE),
        {"output_dtype": "bfloat16", "pertoken_scale": TensorSpec((5,), "float32"),
        "template": "tbe"},
        "output", (2 * 64 * 2, 3 * 64 * 2),
    ),
    # Here the first core makes everything.
    "a scale a row, opt": (
        PRODUCT, (x("int8"), EIGHT_BITS, ONE),
        {"output_dtype": "bfloat16", "pertoken_scale": TensorSpec((5,), "float32"),
        "template": "tbe_opt"},
        "output", (5 * 64 * 2, 0),
    ),
    # Two digits of a row, each of one byte.
    "digits of msd": (
        WEIGHT, (x("float16"), EIGHT_BITS, TensorSpec((64,), "float16")), {"template": "msd"},
        "digits", (3 * 2 * 128, 2 * 2 * 128),
    ),
    # Three digits of a row, packed two to a byte, and the output by rows.
    "digits of msd_group": (
        WEIGHT, (x("float16"), FOUR_BITS, in_groups("float16")),
        IN_GROUPS | {"template": "msd_group"}, "digits", (3 * 3 * 64, 2 * 3 * 64),
    ),
    "output of msd, in groups": (
        WEIGHT, (x("float16"), FOUR_BITS, in_groups("float16")), IN_GROUPS | {"template": "msd"},
        "output", (3 * 64 * 2, 2 * 64 * 2),
    ),
    "sums of split_k": (
        WEIGHT, (x("bfloat16"), EIGHT_BITS, in_groups("bfloat16"), in_groups("bfloat16")),
        IN_GROUPS | {"template": "split_k"}, "sums", (3 * 64 * 4, 2 * 64 * 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_who_takes_the_row_left_over(name: str) -> None:
    op, arguments, keywords, tensor, stored_bytes = CALLS[name]
    trace = run(op, *arguments, device=A2, **keywords).trace
    assert trace is not None
    stored = {1: 0, 2: 0}
    for span in trace.spans():
        place = global_operand(span.op)
        if isinstance(span.op, Store) and place is not None and place.name == tensor:
            assert trace.kind(span.core) == "aiv"
            stored[span.core] += place.nbytes
    assert (stored[1], stored[2]) == stored_bytes
