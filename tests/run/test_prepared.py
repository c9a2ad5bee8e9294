"""Calls that are made again: the same values and times as of a run each, found sooner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import CALLS as EVERY

from npusim import OpError, Tensor, TensorSpec, devices, ops, run
from npusim.run.prepared import prepared
from npusim.run.views import by_operand

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


ENDS = np.array([2, 2, 7, 9])
LATER = (np.arange(40) - 31 > np.arange(9)[:, None]).view(np.uint8)
SEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "rows of a table": ("embedding", {"weight": (20, 16), "indices": np.array([[3, 0], [3, 19]])}),
    "rows of an axis": ("index_select", {"x": (2, 5, 8), "dim": 1, "index": np.array([4, 1])}),
    "groups of rows": (
        "npu_grouped_matmul",
        {"x": [(9, 48)], "weight": [(4, 48, 32)], "bias": [(4, 32)], "group_list": ENDS,
         "group_type": 0, "split_item": 3},
    ),
    "groups along k": (
        "npu_grouped_matmul",
        {"x": [(16, 9)], "weight": [(9, 32)], "group_list": ENDS, "group_type": 2,
         "split_item": 3},
    ),
    "quantised groups": (
        "npu_group_quant",
        {"x": (4, 64), "scale": np.ones((2, 64), FULL), "group_index": np.array([1, 4], np.int32),
         "dst_dtype": "int8"},
    ),
    "matrices of a batch": ("matmul", {"x1": (3, 20, 37), "x2": (3, 37, 24), "bias": (24,)}),
    "one matrix for all": ("matmul", {"x1": (3, 5, 37), "x2": (1, 37, 24)}),
    "attention": (
        "npu_fused_infer_attention_score",
        {"query": (2, 4, 9, 32), "key": (2, 2, 40, 32), "value": (2, 2, 40, 32), "num_heads": 4,
         "num_key_value_heads": 2, "scale": 0.18, "input_layout": "BNSD"},
    ),
    "attention to what is seen": (
        "npu_fused_infer_attention_score",
        {"query": (2, 4, 9, 32), "key": (2, 2, 40, 32), "value": (2, 2, 40, 32), "num_heads": 4,
         "num_key_value_heads": 2, "scale": 0.18, "input_layout": "BNSD",
         "atten_mask": LATER, "softmax_lse_flag": True},
    ),
}  # fmt: skip
"""Calls whose kernels depend on values, have workspaces, or several operands in one."""


@pytest.mark.parametrize("is_odd", [False, True], ids=["plain numbers", "infinities and NaN"])
@pytest.mark.parametrize("name", SEEN)
def test_values_that_decide_are_those_of_the_first_call(name: str, is_odd: bool) -> None:
    op, given = SEEN[name]

    def made(shape: Any, seed: int) -> Any:
        if isinstance(shape, list):
            return [made(each, seed) for each in shape]
        array = numbers(shape, HALF, seed)
        if name == "groups along k":
            # The kernel takes the left matrix turned.
            array = np.asfortranarray(array) if shape == (16, 9) else array
        if is_odd:
            array.flat[3 + seed :: 41] = (np.inf, -np.inf, np.nan)[seed]
        return array

    def call(seed: int) -> dict[str, Any]:
        return {
            key: made(x, seed) if key in SHAPED and not isinstance(x, np.ndarray) else x
            for key, x in given.items()
        }

    again = prepared(op, devices.load("ascend910b2"), call(0))
    assert again is not None
    for seed in (1, 2):
        plain = run(op, device="ascend910b2", **call(seed))
        arrays = {x: y for x, y in by_operand(call(seed)).items() if isinstance(y, np.ndarray)}
        found = again.outputs(arrays)
        assert [*found] == [*plain.outputs]
        for output, expected in plain.outputs.items():
            assert_same_bits(found[output], np.asarray(expected))
        assert again.run.time_us == plain.time_us


SHAPED = ("x", "x1", "x2", "bias", "weight", "query", "key", "value")


def assert_same_bits(found: Any, expected: Any) -> None:
    """The same type, shape and bits; a NaN is just NaN."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.dtype.kind == "f":
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), nan)
        found, expected = found[~nan], expected[~nan]
    assert found.tobytes() == expected.tobytes()


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


NOT_PREPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "matrices behind each other": (
        "npu_grouped_matmul",
        {"x": [np.ones((4, 32), HALF)] * 2, "weight": [np.ones((32, 16), HALF)] * 2,
         "group_type": -1},
    ),
    "a kernel that warns": (
        "npu_transpose_batchmatmul",
        {"input": np.ones((3, 2, 24), HALF), "weight": np.ones((2, 24, 40), HALF),
         "perm_x1": (1, 0, 2)},
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
@pytest.mark.filterwarnings("ignore::npusim.data.errors.DocumentWarning")
def test_what_cannot_be_prepared(name: str) -> None:
    op, arguments = NOT_PREPARED[name]
    assert prepared(op, devices.load("ascend910b2"), arguments) is None


UNPREPARED = (
    *("latent keys", "turned heads", "tokens", "tokens of blocks", "rows replaced"),
    *("tokens by expert", "cast", "packed"),
)
"""Calls that write in place, whose kernel has operands of other names, or that have no kernel. On
Atlas inference there are more, which warn or put the weight into fractals first."""


@pytest.mark.sample(128)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore::npusim.data.errors.DocumentWarning")
def test_calls_of_every_operator_give_what_a_run_gives(name: str, device: str) -> None:
    op, given = EVERY[name]
    if not is_taken(op, given, device):
        return
    again = prepared(op, devices.load(device), other(given, 0))
    assert name in UNPREPARED or device == "ascend310p3" or again is not None
    for seed in (1, 2) if again is not None else ():
        call = other(given, seed)
        plain = run(op, device=device, **call)
        found = again.outputs(tensors_of(call))
        assert [*found] == [*plain.outputs]
        for output, expected in plain.outputs.items():
            assert_same_bits(found[output], np.asarray(expected))
        assert (again.run.time_us, again.run.cycles) == (plain.time_us, plain.cycles)
        assert again.run.launches == plain.launches


def is_taken(op: str, given: dict[str, Any], device: str) -> bool:
    try:
        ops.load(op).check(devices.load(device), **given)
    except OpError:
        return False
    return True


def tensors_of(given: dict[str, Any]) -> dict[str, Any]:
    found = by_operand(given).items()
    return {name: x for name, x in found if isinstance(x, np.ndarray | Tensor)}


def other(given: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same call with other values: one array for each shape, so that latent keys are values."""
    return given | {
        name: (3 * np.random.default_rng((seed, *x.shape)).normal(size=x.shape)).astype(x.dtype)
        for name, x in given.items()
        if isinstance(x, np.ndarray) and (x.dtype.kind == "f" or x.dtype == np.int8)
        if name != "atten_mask"
    }


READING = [name for name, (op, _) in EVERY.items() if ops.load(op).contract_reads]


@pytest.mark.parametrize("name", READING)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_values_that_a_contract_reads_are_checked_in_each_call(name: str) -> None:
    op, given = EVERY[name]
    device = next(chip for chip in reversed(CHIPS) if is_taken(op, given, chip))
    again = prepared(op, devices.load(device), given)
    assert again is not None
    read = [x for each in ops.load(op).contract_reads for x in each.operands]
    for byte in (0, 1, 0x40, 0xFF):
        bad = given | {
            x: np.full(given[x].nbytes, byte, np.uint8).view(given[x].dtype).reshape(given[x].shape)
            for x in read
            if given.get(x) is not None
        }
        expected = outcome(lambda bad=bad: run(op, device=device, **bad).outputs)
        assert outcome(lambda bad=bad: again.outputs(tensors_of(bad))) == expected


def outcome(call: Callable[[], dict[str, Any]]) -> object:
    """The bytes of all outputs, with every NaN the same, or the error."""
    try:
        found = {name: np.array(output) for name, output in call().items()}
    except OpError as error:
        return str(error)
    for output in found.values():
        if output.dtype.kind in "fV":
            output[np.isnan(output)] = np.nan
    return {name: output.tobytes() for name, output in found.items()}
