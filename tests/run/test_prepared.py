"""Calls that are made again: the same values and times as of a run each, found sooner."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import CALLS as EVERY
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim import DocumentWarning, OpError, Tensor, TensorSpec, devices, ops, run
from npusim.run.prepared import prepared, time_key
from npusim.run.result import Result
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
    "attention with sums": (
        "npu_fusion_attention",
        {"query": (2, 4, 9, 32), "key": (2, 2, 40, 32), "value": (2, 2, 40, 32), "head_num": 4,
         "scale": 0.18, "input_layout": "BNSD", "atten_mask": LATER, "inner_precise": 2},
    ),
    "causal attention": (
        "npu_fusion_attention",
        {"query": (2, 9, 128), "key": (2, 11, 64), "value": (2, 11, 64), "head_num": 4,
         "scale": 0.18, "input_layout": "BSH", "sparse_mode": 3,
         "atten_mask": np.triu(np.ones((2048, 2048), np.uint8), 1)},
    ),
}  # fmt: skip
"""Calls whose kernels depend on values, have workspaces, or several operands in one."""


@pytest.mark.parametrize("is_odd", [False, True], ids=["plain numbers", "infinities and NaN"])
@pytest.mark.parametrize("name", SEEN)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
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


TABLES = [(512, 128), (600, 100), (6000, 5), (4096, 17), (900, 63), (6, 50001), (300, 1000)]
LINE_ROWS = 512
"""So many rows begin and end where lines of the L2 do, whatever the row and the chip."""


@draws(60)
@given(
    device=st.sampled_from(CHIPS),
    table=st.sampled_from(TABLES),
    tables=st.sampled_from([0, 1, 2]),
    indices=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_equal_keys_take_equal_times(
    device: str, table: tuple[int, int], tables: int, indices: list[int], seed: int
) -> None:
    """Rows trade places at random, alone or by so many that lines do, then are some others."""
    chip, rng = devices.load(device), np.random.default_rng(seed)
    op, (x, index) = ("index_select", ("x", "index")) if tables else (
        "embedding", ("weight", "indices")
    )  # fmt: skip
    shape = (tables, *table) if tables else table
    first = np.array(indices) % table[0]
    swapped = rng.permutation(table[0])[first]
    lines = rng.permutation(max(1, table[0] // LINE_ROWS))[first // LINE_ROWS]
    moved = lines * LINE_ROWS + first % LINE_ROWS
    key, again = object(), None
    for chosen in (first, moved % table[0], swapped, rng.integers(0, table[0], first.size)):
        arguments: dict[str, Any] = {x: numbers(shape, HALF, seed), index: chosen}
        arguments |= {"dim": 1} if tables else {}
        if (found := time_key(op, chip, arguments)) != key:
            key, again = found, prepared(op, chip, arguments)
        assert again is not None
        plain = run(op, device=chip, **arguments)
        assert facts(again.run) == facts(plain)
        arrays = {name: y for name, y in arguments.items() if isinstance(y, np.ndarray)}
        assert_same_bits(again.outputs(arrays)["output"], np.asarray(plain.output))


@draws(30)
@given(
    device=st.sampled_from(CHIPS[1:]),
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 17, 130]), min_size=4, max_size=4),
    columns=st.sampled_from([32, 300]),
    seed=st.integers(0, 99),
)
def test_other_groups_take_the_time_and_give_the_bits_of_their_own(
    device: str, sizes: list[int], columns: int, seed: int
) -> None:
    chip, total = devices.load(device), sum(sizes)
    if total == 0:
        return

    def call(ends: Any) -> dict[str, Any]:
        x, weight = numbers((total, 48), HALF, seed), numbers((4, 48, columns), HALF, seed)
        named = {"x": [x], "weight": [weight], "group_list": np.array(ends)}
        return named | {"group_type": 0, "split_item": 3}

    first = prepared("npu_grouped_matmul", chip, call([0, 0, total, total]))
    assert first is not None
    for chosen in (sizes, sizes[::-1]):
        arguments = call(np.cumsum(chosen))
        again, plain = first.of_values(arguments), run(
            "npu_grouped_matmul", device=chip, **arguments
        )  # fmt: skip
        assert again is not None
        assert facts(again.run) == facts(plain)
        arrays = {x: y for x, y in by_operand(arguments).items() if isinstance(y, np.ndarray)}
        assert_same_bits(again.outputs(arrays)["output"], np.asarray(plain.output))


def facts(done: Result) -> tuple[Any, ...]:
    """Times and traffic of *done*."""
    trace = done.trace
    assert trace is not None
    return done.time_us, trace.cycles, trace.gm_bytes, trace.l2_bytes, done.counters


@pytest.mark.parametrize("index", [(7, 90), (300, 4), (400, 399)], ids=str)
def test_rows_on_lines_of_their_own_share_a_time(index: tuple[int, int]) -> None:
    """Rows of a line of 512 bytes each, in a table that no core holds."""
    chip, weight = devices.load("ascend910b2"), TensorSpec((512, 256), "float16")

    def key(*indices: int) -> object:
        return time_key("embedding", chip, {"weight": weight, "indices": np.array(indices)})

    assert key(*index) == key(0, 1)
    assert key(*index) != key(7, 7)
    assert key(*index) != key(*index, 8)


def test_a_table_that_a_core_holds_is_timed_for_its_indices() -> None:
    chip, weight = devices.load("ascend910b2"), TensorSpec((20, 16), "float16")
    given = {"weight": weight, "indices": np.array([3, 4])}
    assert time_key("embedding", chip, given) == (3, 4)


def test_an_operator_without_a_key_has_none() -> None:
    x = numbers((3, 4), HALF, 0)
    assert time_key("mul", devices.load("ascend910b2"), {"x": x, "other": x}) is None


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
    """The bytes of all outputs, with every NaN the same, or the error; and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DocumentWarning)
        try:
            found = {name: np.array(output) for name, output in call().items()}
        except OpError as error:
            return str(error)
    for output in found.values():
        if output.dtype.kind in "fV":
            output[np.isnan(output)] = np.nan
    warned = [str(each.message) for each in caught if each.category is DocumentWarning]
    return warned, {name: output.tobytes() for name, output in found.items()}
