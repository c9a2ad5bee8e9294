"""Calls that were made before are found again, and no other is taken for one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_memory_cache import CALLS, assert_same_run

from npusim import DeviceSpec, TensorSpec, chip, devices, run
from npusim.ops import Operator
from npusim.run import call
from npusim.run.memory_cache import CACHE, forget
from npusim.run.options import Options
from npusim.run.repeats import MOST_ARRAY_BYTES, key_of_call
from npusim.run.task import Task

pytestmark = pytest.mark.usefixtures("nothing_kept")

A2 = devices.load("ascend910b2")
X, SCALES = TensorSpec((64, 512), "float16"), TensorSpec((512,), "float16")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that were asked how they are split, each time."""
    found: list[str] = []
    usual = Operator.plan

    def plan(self: Operator, *args: Any) -> Any:
        found.append(self.name)
        return usual(self, *args)

    monkeypatch.setattr(Operator, "plan", plan)
    return found


def a2_with(**numbers: int) -> DeviceSpec:
    """An A2 whose global memory has other *numbers*."""
    return A2.model_copy(update={"gm": A2.gm.model_copy(update=numbers)})


def key(*args: object, op: object = "mul", device: DeviceSpec = A2, **options: Any) -> object:
    return key_of_call(op, device, args, {}, Options(**options), "simpy")


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=[each[0] for each in CALLS])
def test_a_call_is_split_once(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], planned: list[str]
) -> None:
    first = run(op, *args, **kwargs, device=A2)
    count = len(planned)
    again = run(op, *args, **kwargs, device="ascend910b2")
    assert len(planned) == count > 0
    assert again.trace is first.trace
    assert again.call is not first.call
    forget()
    assert_same_run(again, run(op, *args, **kwargs, device=A2))


def test_a_call_is_found_again_only_by_all_of_it() -> None:
    other = a2_with(read_bytes_per_s=10**12)
    calls = [
        key(X, X),
        key(X, X, op="add"),
        key(X, X, device=other),
        key(X, X, l2="warm"),
        key(X, X, l2=("x",)),
        key(X, X, icache="warm"),
        key(X, X, every_core=True),
        key(X, X, timing=False),
        key(X, X, values=False),
        key(X, X, is_checked=False),
        key(X, SCALES),
        *(key(X, value) for value in (1, True, 1.0, 0.0, -0.0, "1", (1,), [1])),
        key_of_call("mul", A2, (X,), {"other": X}, Options(), "simpy"),
        key_of_call("mul", A2, (X, X), {}, Options(), "compiled"),
    ]
    assert None not in calls
    assert len(set(calls)) == len(calls)
    assert key(X, X) == calls[0]


def test_calls_that_may_depend_on_anything_are_none() -> None:
    values = np.ones((64, 512), np.float16)
    assert key(values, values) is None
    assert key(X, np.ones(MOST_ARRAY_BYTES + 1, np.int8)) is None
    assert key(X, op=len) is None
    assert key(X, op="kernels.py:double") is None
    assert key(X, object()) is None
    assert key(X, X, l2=object()) is None


def test_small_arrays_are_distinguished_by_what_they_hold_and_how_they_lie() -> None:
    square = np.arange(4, dtype=np.int32).reshape(2, 2)
    arrays = square, square + 1, square.T, np.ascontiguousarray(square.T), square.astype(np.int64)
    assert len({key(X, array) for array in arrays}) == len(arrays)


def test_an_array_that_changes_later_is_that_of_its_own_call() -> None:
    x, scale, index = (
        TensorSpec((8, 64), "float32"),
        TensorSpec((2, 64), "float32"),
        np.array([2, 8]),
    )

    def grouped(index: Any) -> Any:
        given = x, scale, index.astype(np.int32)
        return run("npu_group_quant", *given, dst_dtype="qint8", device=A2)

    ends = np.array([2, 8], np.int32)
    first = run("npu_group_quant", x, scale, ends, dst_dtype="qint8", device=A2)
    ends[0] = 7
    again = grouped(index)
    assert again.trace is first.trace
    assert again.call is not None
    assert again.call.arguments["group_index"].tolist() == [2, 8]
    assert grouped(ends).trace is not first.trace


def test_a_chip_that_changes_later_is_that_of_its_own_call() -> None:
    spec = A2.model_copy(deep=True)
    run("npu_quantize", X, SCALES, None, "qint8", -1, False, device=spec)
    spec.cores["aiv"] = spec.cores["aiv"].model_copy(update={"count": 2})
    again = run("npu_quantize", X, SCALES, None, "qint8", -1, False, device=A2)
    assert again.device is A2
    faster = a2_with(read_bytes_per_s=10**12)
    found_us = again.time_us_on(faster)
    forget()
    fresh = run("npu_quantize", X, SCALES, None, "qint8", -1, False, device=A2)
    assert found_us == fresh.time_us_on(faster)
    assert again.trials == fresh.trials


def test_a_call_goes_with_what_is_cached_of_it(planned: list[str]) -> None:
    played = call.play("mul", (X, X), {}, A2, Options())
    assert played.cached_as is not None
    assert CACHE.named(key_of_call("mul", A2, (X, X), {}, Options(), played.engine)) is not None
    forget()
    call.play("mul", (X, X), {}, A2, Options())
    assert planned == ["mul", "mul"]


def test_programs_of_times_without_a_check_are_checked_when_somebody_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[int] = []
    usual = chip.verify

    def verify(blocks: Any, *args: Any, **kwargs: Any) -> Any:
        checked.append(len(blocks))
        return usual(blocks, *args, **kwargs)

    monkeypatch.setattr(chip, "verify", verify)
    quick = call.play("mul", (X, X), {}, A2, Options(values=False, is_checked=False))
    assert not checked
    whole = call.play("mul", (X, X), {}, A2, Options(values=False))
    assert len(checked) == 1
    assert quick.cycles == whole.cycles


# ---- programs of several chips ----


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose programs were written, each time."""
    found: list[str] = []
    usual = Task._built

    def write(self: Task) -> Any:
        found.append(self.plan.template if self.plan else "")
        return usual(self)

    monkeypatch.setattr(Task, "_built", write)
    return found


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=[each[0] for each in CALLS])
def test_chips_that_differ_in_times_alone_share_programs(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], built: list[str]
) -> None:
    run(op, *args, **kwargs, device=A2)
    count = len(built)
    shared = run(op, *args, **kwargs, device="ascend910_9391")
    assert len(built) == count > 0
    forget()
    assert_same_run(shared, run(op, *args, **kwargs, device="ascend910_9391"))
    run(op, *args, **kwargs, device="ascend310p3")
    assert len(built) > 2 * count


def test_programs_that_are_tiled_otherwise_are_not_shared(built: list[str]) -> None:
    x, weight = TensorSpec((16, 4096), "int8"), TensorSpec((4096, 4096), "int8")
    given = x, weight, TensorSpec((1,), "float32")
    slow = A2.l2.model_copy(update={"capacity_bytes": A2.l2.capacity_bytes // 64})
    for device in (A2, A2.model_copy(update={"l2": slow})):
        run("npu_quant_matmul", *given, output_dtype="bfloat16", device=device)
    assert len(built) == 2


@pytest.mark.parametrize("read", ["series", "clock_hz", "aliases"])
def test_programs_are_written_without_a_look_at_what_times_rest_on(read: str) -> None:
    assert getattr(A2, read) is not None
    with pytest.raises(AttributeError):
        getattr(A2.for_programs, read)
    assert A2.for_programs.cores["aiv"].count == A2.cores["aiv"].count
