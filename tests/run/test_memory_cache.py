"""What earlier calls had written and timed: the same as fresh, found by all it depends on."""

from __future__ import annotations

import gc
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chips import THREE
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim import DeviceSpec, DocumentWarning, OpError, Run, TensorSpec, devices, ops, run
from npusim.data.dtypes import INT8, INT32
from npusim.data.tensor import Operand
from npusim.kernel import BinaryScalar, Block, Builder, Global, GmView, Kernel, bindings
from npusim.run import memory_cache
from npusim.run.memory_cache import (
    CACHE,
    ENTRY_BYTES,
    MEMORY_VARIABLE,
    MemoryCache,
    forget,
    free_bytes,
    key_of,
    room_bytes,
    unvalued,
)
from npusim.trace import CopyTimes

pytestmark = pytest.mark.usefixtures("nothing_kept")

S = TensorSpec
X, SCALES = S((64, 512), "float16"), S((512,), "float16")
QUANTIZE = ("npu_quantize", (X, SCALES, None, "qint8", -1, False), {})
CALLS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    QUANTIZE,
    ("npu_dynamic_quant", (X,), {}),
    ("npu_anti_quant", (S((64, 512), "int8"), S((512,), "float32")), {}),
    ("matmul", (S((96, 128), "float16"), S((128, 80), "float16")), {}),
    (
        *("npu_quant_matmul", (S((33, 256), "int8"), S((256, 160), "int8"), S((1,), "float32"))),
        {"output_dtype": "float16"},
    ),
    (
        *("npu_weight_quant_batchmatmul", (S((16, 256), "float16"), S((256, 128), "int8"))),
        {"antiquant_scale": S((128,), "float16")},
    ),
)
"""Operators that every chip has, one of them with two launches."""


def a2(**numbers: int) -> DeviceSpec:
    """An A2 whose global memory has other *numbers*."""
    spec = devices.load("ascend910b2")
    return spec.model_copy(update={"gm": spec.gm.model_copy(update=numbers)})


def quantized(**options: Any) -> Run:
    op, args, _ = QUANTIZE
    return run(op, *args, **{"device": "ascend910b2", **options})


def assert_same_run(a: Run, b: Run) -> None:
    """All that a run reports without its values is the same, every span and copy of it too."""
    assert json.dumps(a.to_json()) == json.dumps(b.to_json())
    assert repr(a) == repr(b)
    assert (a.plan, a.launches, a.counters) == (b.plan, b.launches, b.counters)
    assert a.trace is not None
    assert b.trace is not None
    assert a.trace.to_text() == b.trace.to_text()
    for one, other in zip(a.trace.lanes, b.trace.lanes, strict=True):
        assert (one.cores, one.groups, one.kind) == (other.cores, other.groups, other.kind)
        assert (one.gm_bytes, one.l2_hit_bytes) == (other.gm_bytes, other.l2_hit_bytes)
        assert [body.lines for body in one.program.bodies] == [
            body.lines for body in other.program.bodies
        ]
        for name in (field.name for field in fields(CopyTimes)):
            np.testing.assert_array_equal(getattr(one.copies, name), getattr(other.copies, name))


# ---- the same as fresh ----


@pytest.mark.sample(6)
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=[call[0] for call in CALLS])
def test_hits_are_exact(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str
) -> None:
    first = run(op, *args, **kwargs, device=device, l2="warm")
    again = run(op, *args, **kwargs, device=device, l2="warm")
    forget()
    fresh = run(op, *args, **kwargs, device=device, l2="warm")

    assert again.trace is first.trace
    assert fresh.trace is not first.trace
    assert_same_run(again, fresh)


DRAWN = st.tuples(
    st.sampled_from(("npu_dynamic_quant", "matmul")),
    *(st.integers(1, 40) for _ in range(3)),
    st.sampled_from(("float16", "bfloat16")),
    st.sampled_from(("cold", "warm", "repeat")),
    st.booleans(),
)


@draws(15)
@given(st.lists(DRAWN, min_size=2, max_size=4), st.data())
def test_drawn_calls_that_push_each_other_out_are_as_fresh(
    drawn: list[tuple[str, int, int, int, str, str, bool]], data: st.DataObject
) -> None:
    def text(call: tuple[str, int, int, int, str, str, bool]) -> str:
        op, m, k, n, dtype, l2, every_core = call
        tensors = (S((m, k), dtype), S((k, n), dtype))[: 1 if op == "npu_dynamic_quant" else 2]
        found = run(op, *tensors, device="ascend910b2", l2=l2, every_core=every_core)
        assert found.trace is not None
        return found.trace.to_text() + json.dumps(found.to_json())

    fresh = {}
    for call in drawn:
        forget()
        fresh[call] = text(call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CACHE, "most_bytes", data.draw(st.sampled_from((0, CACHE.nbytes, 1 << 26))))
        forget()
        for call in data.draw(st.lists(st.sampled_from(drawn), min_size=3, max_size=8)):
            assert text(call) == fresh[call]


def test_values_are_those_of_each_call(rng: np.random.Generator) -> None:
    scales = np.full(512, 20, np.float16)
    reference = ops.load("npu_quantize").reference
    traces = [quantized().trace]
    for _ in range(2):
        x = rng.standard_normal((64, 512)).astype(np.float16)
        args = x, scales, None, "qint8", -1, False
        found = run("npu_quantize", *args, device="ascend910b2")
        np.testing.assert_array_equal(found.output, reference(*args))
        traces.append(found.trace)
    assert traces[0] is traces[1] is traces[2]


def test_values_that_decide_how_a_kernel_is_written_are_distinguished() -> None:
    x, scale = np.ones((8, 64), np.float32), np.full((2, 64), 3, np.float32)
    scale[1] = 5

    def grouped(*ends: int) -> Run:
        index = np.array(ends, np.int32)
        return run("npu_group_quant", x, scale, index, dst_dtype="qint8", device="ascend910b2")

    early, late, again = grouped(2, 8), grouped(7, 8), grouped(2, 8)
    assert again.trace is early.trace
    assert late.trace is not early.trace
    assert isinstance(late.output, np.ndarray)
    assert late.output[:, 0].tolist() == [3] * 7 + [5]
    with pytest.raises(OpError, match="group_index must not decrease"):
        grouped(9, 8)


def test_a_refusal_is_reported_each_time() -> None:
    spec = devices.load("ascend910b2")
    small = spec.model_copy(update={"sync": spec.sync.model_copy(update={"event_ids": 2})})
    told = []
    for _ in range(2):
        with pytest.raises(OpError, match="must fit ascend910b2") as error:
            quantized(device=small)
        told.append(str(error.value))
    assert told[0] == told[1]


def test_a_warning_is_reported_each_time() -> None:
    told = "^npu_dynamic_quant: smooth_scales should be None on Atlas inference, where no kernel"
    for _ in range(2):
        with pytest.warns(DocumentWarning, match=told):
            run("npu_dynamic_quant", X, smooth_scales=SCALES, device="ascend310p3")


# ---- what it is found by ----


@pytest.mark.parametrize(
    "other",
    [
        {"device": a2(read_bytes_per_s=800_000_000_000)},
        {"device": "ascend910b4"},
        {"l2": "warm"},
        {"l2": "repeat"},
        {"l2": ("input",)},
        {"l2": ("scales", "input")},
        {"l2": {"input": 0.5}},
        {"l2": {"input": 1}},
        {"every_core": True},
    ],
    ids=str,
)
def test_another_chip_or_state_is_timed_anew(other: dict[str, Any]) -> None:
    first, changed = quantized(), quantized(**other)
    assert changed.trace is not first.trace
    forget()
    assert_same_run(changed, quantized(**other))


@pytest.mark.parametrize(
    "args",
    [
        (S((64, 512), "float32"), SCALES, None, "qint8", -1, False),
        (S((65, 512), "float16"), SCALES, None, "qint8", -1, False),
        (S((64, 1, 512), "float16"), SCALES, None, "qint8", -1, False),
        (X, S((1,), "float16"), None, "qint8", -1, False),
        (X, SCALES, SCALES, "qint8", -1, False),
        (X, SCALES, None, "quint4x2", -1, False),
        (X, S((512,), "float32"), None, "qint8", -1, True),
    ],
    ids=str,
)
def test_other_arguments_are_timed_anew(args: tuple[Any, ...]) -> None:
    first, other = quantized(), run("npu_quantize", *args, device="ascend910b2")
    assert other.trace is not first.trace
    forget()
    assert_same_run(other, run("npu_quantize", *args, device="ascend910b2"))


def test_a_transposed_matrix_is_timed_anew() -> None:
    x, y = S((96, 128), "float16"), S((128, 80), "float16")
    plain = run("matmul", x, y, device="ascend910b2")
    turned = run("matmul", x, S((80, 128), "float16").T, device="ascend910b2")
    asked = run("matmul", x, y, template="base", device="ascend910b2")
    assert len({id(found.trace) for found in (plain, turned, asked)}) == 3


def test_a_chip_is_found_by_its_numbers_not_by_its_object() -> None:
    assert quantized(device=a2()).trace is quantized().trace
    spec = a2().model_copy(deep=True)
    first = quantized(device=spec)
    spec.cores["aiv"] = spec.cores["aiv"].model_copy(update={"count": 2})
    assert len(quantized(device=spec).counters) < len(first.counters)


def test_caches_of_instructions_change_the_launch_alone() -> None:
    cold, warm = quantized(icache="cold"), quantized(icache="warm")
    assert warm.trace is cold.trace
    assert warm.launch_us < cold.launch_us


def test_a_custom_kernel_is_written_each_time() -> None:
    factors = iter((2.0, 3.0))

    def scaled(spec: DeviceSpec, x: TensorSpec) -> Kernel:
        builder = Builder("scaled", spec.cores["aiv"], spec.sync)
        buffer = builder.claim("ub", 256).of(x.element, 64)
        builder.data_copy(buffer, Global("x", 0, 256))
        builder.set_flag("mte2", "vector", 0)
        builder.wait_flag("mte2", "vector", 0)
        builder.emit(BinaryScalar("mul", buffer, buffer, next(factors)))
        builder.set_flag("vector", "mte3", 0)
        builder.wait_flag("vector", "mte3", 0)
        builder.data_copy(Global("y", 0, 256), buffer)
        views = (GmView.of(name, x.element, 1, 64) for name in "xy")
        block = Block(0, "aiv", builder.build(), bindings(*views))
        return Kernel("scaled", (block,), {"x": x}, {"y": x})

    x = np.ones((1, 64), np.float32)
    outputs = [run(scaled, x, device="ascend910b2").output for _ in range(2)]
    assert [found[0, 0] for found in outputs if isinstance(found, np.ndarray)] == [2.0, 3.0]
    assert len(CACHE) == 0


# ---- returned twice ----


def test_times_cannot_be_written_to() -> None:
    trace = quantized().trace
    assert trace is not None
    lane = trace.lanes[0]
    for times in (lane.start, lane.free, lane.end, lane.copies.asked, lane.copies.gm_bytes):
        with pytest.raises(ValueError, match="read-only"):
            times[0] = 0


def test_what_a_caller_may_write_is_its_own() -> None:
    call = S((16, 4096), "float16"), S((4096, 1024), "int8"), S((1024,), "float16")
    first = run("npu_weight_quant_batchmatmul", *call, device="ascend910b2")
    assert first.plan is not None
    assert first.plan.workspaces
    first.plan.workspaces.clear()
    first.arguments.clear()
    first.outputs.clear()
    again = run("npu_weight_quant_batchmatmul", *call, device="ascend910b2")
    forget()
    assert_same_run(again, run("npu_weight_quant_batchmatmul", *call, device="ascend910b2"))


def test_threads_share_entries() -> None:
    shapes = [S((rows, 64), "float16") for rows in (3, 40, 300)]

    def timed(shape: TensorSpec) -> float | None:
        return run("npu_dynamic_quant", shape, device="ascend910b2").time_us

    alone = [timed(shape) for shape in shapes]
    forget()
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(timed, shapes * 8))
    assert together == alone * 8
    assert len(CACHE) == 2 * len(shapes)


# ---- the store itself ----


class Asked:
    """A cache with room for ten, and what had to be made."""

    def __init__(self) -> None:
        self.cache, self.made = MemoryCache(10 * UNIT), ""

    def get(self, names: str, units: int, part: str = "") -> None:
        for name in names:

            def make(name: str = name) -> str:
                self.made += name
                return name

            assert self.cache.get(name, make, lambda _: units * UNIT - ENTRY_BYTES, part) == name


UNIT = 10_000


def test_what_was_not_used_since_the_new_was_asked_for_goes_first() -> None:
    asked = Asked()
    asked.get("abc", 3)
    asked.get("ad", 3)  # all three were used since d was asked for, which was never
    assert asked.made == "abcd"
    assert asked.cache.nbytes == 9 * UNIT
    asked.get("cd", 3)  # b goes for d: of those not used since, the least recently used
    asked.get("acd", 3)
    assert asked.made == "abcdd"
    asked.get("b", 3)  # never since they were
    asked.get("xx", 11)
    assert (asked.made, len(asked.cache)) == ("abcddbxx", 3)
    asked.cache.forget()
    assert (asked.cache.nbytes, len(asked.cache)) == (0, 0)


def test_layers_that_are_too_much_for_the_room_do_not_evict_each_other() -> None:
    asked = Asked()
    for _ in range(4):
        asked.get("abcdefghijklmnop", 1)
    assert asked.made == "abcdefghijklmnop" + 3 * "klmnop"
    asked.made = ""
    for _ in range(3):
        asked.get("ABCDEFGHIJ", 1)  # another model takes their place
    assert asked.made == 2 * "ABCDEFGHIJ"


def test_what_is_asked_for_once_replaces_nothing() -> None:
    asked = Asked()
    asked.get("abcdefghij", 1)
    asked.get("".join(map(chr, range(1000, 1200))), 1)
    asked.made = ""
    asked.get("abcdefghij", 1)
    assert asked.made == ""


def test_parts_of_a_key_go_together() -> None:
    asked = Asked()
    asked.get("a", 4, "programs")
    asked.get("a", 4, "times")
    asked.get("bb", 3)
    assert len(asked.cache) == 1
    assert asked.cache.nbytes == 3 * UNIT


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS[:4], ids=[call[0] for call in CALLS[:4]])
def test_an_entry_is_charged_what_it_takes(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    found = run(op, *args, **kwargs, device="ascend910b2")  # loads what is loaded once
    del found
    forget()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run(op, *args, **kwargs, device="ascend910b2")
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / 2 < CACHE.nbytes < 2 * taken


# ---- room ----


def test_the_room_is_a_part_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    for free, room in ((4 << 30, 512 << 20), (1 << 20, 64 << 20), (1 << 40, 1 << 30)):
        monkeypatch.setattr(memory_cache, "free_bytes", lambda free=free: free)
        assert MemoryCache().most_bytes == room
    monkeypatch.setenv(MEMORY_VARIABLE, "3")
    assert MemoryCache().most_bytes == 3 << 20
    for wrong in ("-1", "1.5", "4 GiB"):
        monkeypatch.setenv(MEMORY_VARIABLE, wrong)
        with pytest.raises(
            ValueError,
            match=r"^memory cache: NPUSIM_MEMORY_MIB must be a whole number of MiB, not "
            rf"'{wrong}'; write for example NPUSIM_MEMORY_MIB=512$",
        ):
            room_bytes()


def test_a_container_has_less_than_the_machine(tmp_path: Path) -> None:
    proc = tmp_path / "meminfo"
    assert free_bytes(proc, tmp_path) == 4 << 30
    proc.write_text("MemTotal: 32 kB\nMemAvailable:      16 kB\n")
    assert free_bytes(proc, tmp_path) == 16 << 10
    for limit, free in (("max", 16 << 10), ("9000", 8000), ("99999999", 16 << 10)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("1000\n")
        assert free_bytes(proc, tmp_path) == free


def test_entries_stay_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized()
    one = CACHE.nbytes
    monkeypatch.setattr(CACHE, "most_bytes", 3 * one)
    for rows in range(64, 76):
        run("npu_quantize", S((rows, 512), "float16"), *QUANTIZE[1][1:], device="ascend910b2")
        assert CACHE.nbytes <= 3 * one
    assert 2 <= len(CACHE) < 24


class Kind(IntEnum):
    ONE = 1


def test_keys_distinguish_types_and_contents() -> None:
    ones = (1, True, 1.0, Kind.ONE, "1", np.int8(1), np.uint8(1), np.ones(1, np.int8), (1,), INT8)
    assert len({key_of(one) for one in ones}) == len(ones)
    assert len({key_of(x) for x in (0.0, -0.0, float("nan"), float("nan"))}) == 3
    bits = np.zeros(4, np.int16)
    assert len({key_of(x) for x in (bits, bits.view(np.float16), bits.reshape(2, 2))}) == 3
    assert key_of(range(3)) != key_of(range(0, 3, 4))
    assert len({key_of(x) for x in (range(0, 3, 2), range(0, 4, 2))}) == 2
    assert key_of(Operand("x", S((2,), "int8"))) != key_of(Operand("y", S((2,), "int8")))
    assert key_of(INT8) != key_of(INT32)
    with pytest.raises(
        TypeError,
        match=r"^memory cache: a key must be made of numbers, texts, arrays and records, not list; "
        r"compute it anew$",
    ):
        key_of([1])


def test_keys_distinguish_zeros_and_not_two_nans() -> None:
    assert key_of(0.0) != key_of(-0.0)
    assert key_of(float("nan")) == key_of(float("nan"))


def test_values_are_left_out_but_for_those_asked_for() -> None:
    x, ends = (Operand(name, S((2,), "int8"), np.ones(2, np.int8)) for name in ("x", "ends"))
    bare = unvalued((x, (ends, 3), None), ("ends",))
    assert bare[0].array is None
    assert bare[1][0] is ends
    assert unvalued(bare, ("ends",)) is bare
