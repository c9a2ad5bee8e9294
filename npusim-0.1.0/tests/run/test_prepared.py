"""Calls that are made again: the same values and times as of a run each, found sooner."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import TensorSpec, devices, run
from npusim.run.prepared import prepared

CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
HALF, FULL = np.float16, np.float32


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    return (5 * np.random.default_rng(seed).normal(size=shape)).astype(dtype)


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a product": ("mul", {"x": (16, 16), "other": (16, 16)}),
    "a number": ("mul", {"x": (3, 50), "other": 0.1}),
    "a row and a column": ("add", {"x": (7, 1), "other": (70,)}),
    "a comparison": ("gt", {"x": (3, 50), "other": (3, 50)}),
    "bounds": ("clamp", {"x": (3, 50), "low": -1.0, "high": None}),
    "a function": ("sigmoid", {"x": (3, 50)}),
    "more cores than are small": ("exp", {"x": (40, 1024)}),
    "rows": ("softmax", {"x": (20, 70), "dim": -1}),
    "columns": ("sum", {"x": (20, 70), "dim": 0}),
    "places": ("argmax", {"x": (20, 70), "dim": 1}),
    "axes": ("permute", {"x": (16, 32), "dims": (1, 0)}),
    "a part": ("narrow", {"x": (4, 40), "dim": 1, "start": 8, "length": 32}),
    "a fill": ("fill", {"x": (4, 40), "value": 3.5}),
}


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("turned", [(), ("x1",), ("x2",), ("x1", "x2")], ids=str)
def test_matrices_go_in_as_they_lie(turned: tuple[str, ...], device: str) -> None:
    shapes = {"x1": (2, 20, 48), "x2": (2, 48, 40), "bias": (40,)}

    def call(seed: int) -> dict[str, Any]:
        made = {key: numbers(shape, HALF, seed) for key, shape in shapes.items()}
        for name in turned:
            made[name] = np.ascontiguousarray(made[name].swapaxes(1, 2)).swapaxes(1, 2)
        return made

    again = prepared("matmul", devices.load(device), call(0))
    assert again is not None
    for seed in (1, 2):
        plain = run("matmul", device=device, **call(seed))
        assert again.run.time_us == plain.time_us
        np.testing.assert_array_equal(again.outputs(call(seed))["output"], plain.output)


@pytest.mark.sample(39)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", [HALF, FULL, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_times_are_those_of_a_run(name: str, dtype: Any, device: str) -> None:
    if device == "ascend310p3" and dtype is ml_dtypes.bfloat16:
        return
    op, given = CALLS[name]
    shapes = {key: value for key, value in given.items() if key in ("x", "other")}

    def call(seed: int) -> dict[str, Any]:
        return given | {
            key: numbers(shape, dtype, seed)
            for key, shape in shapes.items()
            if isinstance(shape, tuple)
        }

    again = prepared(op, devices.load(device), call(0))
    assert again is not None
    for seed in (1, 2):
        arguments = call(seed)
        plain = run(op, device=device, **arguments)
        arrays = {key: x for key, x in arguments.items() if isinstance(x, np.ndarray)}
        found, expected = again.outputs(arrays)["output"], np.asarray(plain.output)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.tobytes() == expected.tobytes()
        assert again.run.time_us == plain.time_us
    assert again.run.outputs == {"output": TensorSpec(expected.shape, expected.dtype.name)}


def test_results_do_not_share_memory() -> None:
    x = numbers((16, 16), FULL, 0)
    again = prepared("mul", devices.load("ascend910b2"), {"x": x, "other": x})
    assert again is not None
    first = again.outputs({"x": x, "other": x})["output"]
    kept = first.copy()
    again.outputs({"x": x + 1, "other": x})
    np.testing.assert_array_equal(first, kept)


def test_arrays_with_gaps_are_taken_in_order() -> None:
    x = numbers((16, 32), FULL, 0)
    again = prepared("neg", devices.load("ascend910b2"), {"x": x[:, ::2]})
    assert again is not None
    np.testing.assert_array_equal(again.outputs({"x": x[:, 1::2]})["output"], -x[:, 1::2])


NOT_PREPARED = {
    "a kernel that sees values": (
        "npu_group_quant",
        {"x": np.ones((4, 64), HALF), "scale": np.ones((1, 64), FULL),
         "group_index": np.array([4], np.int32), "dst_dtype": "int8"},
    ),
    "nothing to do": ("neg", {"x": np.ones((0, 4), HALF)}),
    "in place": (
        "npu_scatter_nd_update",
        {"self": np.ones((4, 16), HALF), "indices": np.array([[1], [3]]),
         "updates": np.ones((2, 16), HALF)},
    ),
    "times alone": ("neg", {"x": TensorSpec((4, 4), "float16")}),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_PREPARED)
def test_what_cannot_be_prepared(name: str) -> None:
    op, arguments = NOT_PREPARED[name]
    assert prepared(op, devices.load("ascend910b2"), arguments) is None
