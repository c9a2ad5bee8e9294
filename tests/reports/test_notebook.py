"""What a call returns shows itself in a notebook: as a picture, or as little text."""

from __future__ import annotations

import pytest

import npusim
from npusim import TensorSpec, devices

MOST_BYTES = 3000
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run() -> npusim.Run:
    spec = TensorSpec((16, 5120), "int8"), TensorSpec((5120, 25600), "int8")
    scale = TensorSpec((25600,), "float32")
    return npusim.run("npu_quant_matmul", *spec, scale, output_dtype="float16", device="A2")


def test_a_picture_is_shown(run: npusim.Run) -> None:
    assert run.timeline()._repr_png_().startswith(PNG)
    assert "<svg" in run._repr_html_()


def test_text_is_short(run: npusim.Run, subtests: pytest.Subtests) -> None:
    rows = {"x": TensorSpec((64, 4096), "float16")}
    shown = {
        "run": run,
        "critical path": run.critical_path(),
        "advice": run.advice(),
        "accuracy": run.accuracy,
        "trace": run.trace,
        "device": devices.load("A2"),
        "sweep": npusim.sweep("npu_dynamic_quant", rows, device=["A2", "310P"], jobs=1),
    }
    for name, each in shown.items():
        with subtests.test(name):
            assert 0 < len(repr(each).encode()) <= MOST_BYTES


def test_a_critical_path_begins_with_what_takes_longest(run: npusim.Run) -> None:
    first, longest, *_ = repr(run.critical_path()).splitlines()
    path = run.critical_path()
    part = path.parts[0]
    assert first == f"critical path of {path.us:.2f} us, {len(path.steps)} steps"
    assert longest == (
        f"  {part.us:9.2f} us {part.share:6.1%}  nd2nz on mte2 of aic, {part.micro_ops} micro-ops, "
        "mostly turning rows into fractals"
    )
