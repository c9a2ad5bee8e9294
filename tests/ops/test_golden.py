"""Whole traces of tiny calls, a line a micro-op: a change of cost, order or tiling shows as a diff.

`pytest --update-golden` rewrites the files in tests/golden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim import TensorSpec, run

FOLDER = Path(__file__).parents[1] / "golden"


class Case(NamedTuple):
    """A call, and the chips whose traces of it are kept."""

    op: str
    what: str
    args: tuple[Any, ...]
    devices: tuple[str, ...]


ALL = ("ascend310p3", "ascend910b2", "ascend910_9391")
CHANNEL = TensorSpec((40,), "float16")
ONE = TensorSpec((1,), "float32")
FIVE = TensorSpec((5,), "float32")
SQUARE = TensorSpec((64, 64), "int8").T
SMALL_NZ = TensorSpec((18, 40), "int8", "FRACTAL_NZ").T
NARROW = TensorSpec((18,), "float16")
CASES = [
    Case(
        "npu_quantize", "by_channel",
        (TensorSpec((1, 40), "float16"), CHANNEL, CHANNEL, "qint8", -1, False), ALL,
    ),
    Case(
        "npu_quantize", "int32",
        (TensorSpec((2, 40), "float32"), ONE, TensorSpec((1,), "int32"), "int32", 1, True), ALL,
    ),
    Case(
        "npu_group_quant", "empty_group",
        (TensorSpec((1, 16), "float16"), TensorSpec((2, 16), "float32"),
         np.array([0, 1], np.int32)), ALL[1:],
    ),
    Case("npu_trans_quant_param", "five", (FIVE, FIVE), ALL),
    Case("npu_format_cast", "to_fractals", (TensorSpec((18, 40), "int8"), 29), ALL),
    Case("npu_format_cast", "to_rows", (TensorSpec((2, 40), "int8", "FRACTAL_NZ"), 2), ALL),
    Case(
        "npu_weight_quant_batchmatmul", "fixpipe",
        (TensorSpec((1, 64), "float16"), SQUARE, TensorSpec((64,), "int64")), ALL[1:2],
    ),
    Case(
        "npu_weight_quant_batchmatmul", "weight_nz",
        (TensorSpec((2, 40), "float16"), SMALL_NZ, NARROW, NARROW, None, None, NARROW), ALL[:1],
    ),
    Case(
        "npu_weight_quant_batchmatmul", "msd",
        (TensorSpec((1, 128), "float16"), TensorSpec((128, 32), "int8"),
         TensorSpec((32,), "float16")), ALL[1:2],
    ),
]  # fmt: skip
FILES = {
    f"{case.op}_{case.what}_{device}.txt": (case, device)
    for case in CASES
    for device in case.devices
}


@pytest.mark.parametrize("name", FILES)
def test_trace(name: str, pytestconfig: pytest.Config) -> None:
    case, device = FILES[name]
    trace = run(case.op, *case.args, device=device).trace
    assert trace is not None
    path = FOLDER / name
    if pytestconfig.getoption("--update-golden"):
        path.write_text(trace.to_text())
    assert trace.to_text() == path.read_text()


def test_every_file_has_its_case() -> None:
    ours = {path.name for path in FOLDER.glob("npu_*.txt")}
    assert ours == set(FILES)
