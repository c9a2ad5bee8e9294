"""Small sweeps that tests of several files make."""

from __future__ import annotations

from typing import Any

from npusim import TensorSpec
from npusim.sweeps import Outcome, Row, Sweep
from npusim.sweeps.cells import Cell

OP = "npu_quantize"
CHIPS = ("ascend910b2", "ascend310p3")
SIZES = (1, 2, 4, 16, 64)


def call(m: int) -> dict[str, Any]:
    """The arguments of npu_quantize for *m* rows."""
    return {
        "input": TensorSpec((m, 256), "float16"),
        "scales": TensorSpec((1,), "float32"),
        "zero_points": None,
        "dtype": "qint8",
    }


def made(times: dict[tuple[str, str | None], dict[Any, float | None]], axis: str = "m") -> Sweep:
    """A sweep with these times: (chip, template) -> value of the axis -> microseconds or None."""
    rows = [
        Row(
            Cell(chip, asked, {}, {axis: value}, {}, False, None, None),
            Outcome(error="no") if time is None else Outcome(time_us=time, template=asked),
        )
        for (chip, asked), line in times.items()
        for value, time in line.items()
    ]
    return Sweep(OP, (), (axis,), tuple(rows))
