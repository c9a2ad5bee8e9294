"""What the scalar unit computes of values that a kernel reads takes its time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sources import probe

from npusim.ascendc.arithmetic import Readings
from npusim.isa import ScalarAlu, ScalarLoad

X = np.arange(1024, dtype=np.float32)
STATEMENTS = {
    "float v = a.GetValue(0);": 0,
    "float v = 2 * a.GetValue(0) + 1;": 2,
    "float v = static_cast<float>(a.template GetValue<half>(i - 1));": 1,
    "if (a.GetValue(0) > 3 && b.GetValue(1) <= 4) { c = d * e; }": 3,
    "float v = a.GetValue(0); float w = v * v; float u = d + e; float t = w - 1;": 2,
    "float v = a.GetValue(0); { float w = -v; } v += 1;": 2,
    "{ float v = a.GetValue(0); } float w = v + 1;": 0,
    "float v = a.GetValue(0); v = 0; float w = v + 1;": 0,
    "sum += a.GetValue(0) < b->x ? 1 : c[d * 2]; // and 1 + 1": 4,
    "z.SetValue(i, a.GetValue(i) + b.GetValue(i));": 0,
    "z.SetValue(i, a.GetValue(i) + b.GetValue(i) / c);": 1,
    'log("1 + 1", a.GetValue(0) << 1);': 1,
}
"""Statements -> operators that belong to the one that reads a value."""


@pytest.mark.parametrize(("text", "operations"), STATEMENTS.items())
def test_operators(tmp_path: Path, text: str, operations: int) -> None:
    file = tmp_path / "kernel.cpp"
    file.write_text(f"#define TWICE(X) ((X) + (X))\nvoid f()\n{{\n    {text}\n}}\n")
    ((name, line, found),) = Readings().at((str(file), 4))
    assert (name, line, found) == (str(file), 4, operations)


def test_operators_belong_to_the_last_reading_that_they_use(tmp_path: Path) -> None:
    file = tmp_path / "kernel.cpp"
    file.write_text("v = a.GetValue(0);\nw = a.GetValue(1);\nu = v * w;\nt = v + v - v;\n")
    readings = Readings()
    assert [readings.at((str(file), line)) for line in (1, 2, 3)] == [
        ((str(file), 1, 2),),
        ((str(file), 2, 1),),
        (),
    ]


@pytest.mark.parametrize("device", ["Atlas A2", "ascend310p3"])
def test_each_time_that_values_are_read(tmp_path: Path, device: str) -> None:
    kernel = probe(
        tmp_path,
        """
    Exp(b, a, N);
    float sum = 0;
    for (uint32_t i = 0; i < 5; ++i) {
        sum += a.GetValue(i) * 2 + b.GetValue(i);
    }
    Adds(b, b, sum, N);""",
    )
    run = kernel[1](X, X.copy(), device=device)
    assert run.trace is not None
    ops = run.trace.lanes[0].program.ops
    loads = [op for op in ops if isinstance(op, ScalarLoad)]
    operations = [op for op in ops if isinstance(op, ScalarAlu)]
    assert (len(loads), len(operations)) == (10, 15)
