"""How long each micro-op holds its pipe, and what copies ask of the memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import put, tiny_spec

from npusim import cost as costs
from npusim.cost import Charge, Cost, charge
from npusim.dtypes import FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8, DType
from npusim.isa import (
    Barrier,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Duplicate,
    Global,
    Load,
    Local,
    MicroOp,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    SetFlag,
    Store,
    Trap,
    WaitFlag,
)
from npusim.spec import DeviceSpec


@pytest.fixture(scope="module")
def classy() -> DeviceSpec:
    """Every class of vector micro-ops has a head of its own, and 16-bit repeats take 2 cycles."""
    data = tiny_spec().model_dump()
    for head, name in enumerate(data["vector"]["classes"], 100):
        put(data, f"vector.classes.{name}.head_cycles", head)
        put(data, f"vector.classes.{name}.cycles_per_repeat_16bit", 2.0)
        put(data, f"vector.classes.{name}.cycles_per_repeat_32bit", 3.0)
    return DeviceSpec.model_validate(data)


def cost(op: MicroOp, spec: DeviceSpec, kind: str = "aiv") -> Cost:
    return costs.cost(op, spec, spec.cores[kind])


def ub(offset_bytes: int, dtype: DType, count: int) -> Local:
    return Local("ub", offset_bytes, dtype, count)


X, Y, Z = (ub(at, FLOAT32, 64) for at in (0, 256 + 8192, 512))
HALF = ub(512, FLOAT16, 64)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *((Binary(op, Z, X, Y), "add") for op in ("add", "sub")),
        (Binary("mul", Z, X, Y), "mul"),
        (Binary("div", Z, X, Y), "div"),
        *((Binary(op, Z, X, Y), "max") for op in ("min", "max")),
        *((BinaryScalar(op, X, X, 1.0), "adds") for op in ("add", "sub")),
        (BinaryScalar("mul", X, X, 1.0), "muls"),
        (BinaryScalar("div", X, X, 1.0), "div"),
        *((BinaryScalar(op, X, X, 1.0), "maxs") for op in ("min", "max")),
        (Cast(ub(512, INT32, 64), X, "rint"), "cast"),
        (Duplicate(X, 1.0), "duplicate"),
        (Broadcast(Z, ub(0, FLOAT32, 8)), "broadcast"),
        (Reduce("max", Z, X), "reduce"),
    ],
    ids=str,
)  # fmt: skip
def test_each_vector_micro_op_has_its_class(op: MicroOp, name: Any, classy: DeviceSpec) -> None:
    assert cost(op, classy) == Cost(3, classy.vector.classes[name].head_cycles, 3)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        # A repeat is 64 elements of 32 bits or 128 of 16; a begun one counts.
        (BinaryScalar("add", ub(0, FLOAT32, 65), ub(0, FLOAT32, 65), 1.0), 2 * 3),
        (BinaryScalar("add", ub(0, FLOAT16, 128), ub(0, FLOAT16, 128), 1.0), 2),
        (BinaryScalar("add", ub(0, FLOAT16, 129), ub(0, FLOAT16, 129), 1.0), 2 * 2),
        # The wider side of a cast counts, and narrow types run as 16 bits.
        (Cast(ub(4096, FLOAT16, 128), ub(0, FLOAT32, 128), "none"), 2 * 3),
        (Cast(ub(0, FLOAT32, 128), ub(4096, FLOAT16, 128), "none"), 2 * 3),
        (Cast(ub(4096, INT8, 256), ub(0, FLOAT16, 256), "rint"), 2 * 2),
        (Cast(ub(4096, INT4, 256), ub(0, FLOAT16, 256), "rint"), 2 * 2),
        # A broadcast fills its target, a reduction walks its source.
        (Broadcast(ub(0, FLOAT32, 128), ub(4096, FLOAT32, 16)), 2 * 3),
        (Reduce("min", ub(4096, FLOAT16, 1), ub(0, FLOAT16, 640)), 5 * 2),
    ],
    ids=str,
)
def test_the_body_is_the_repeats_of_the_widest_operand(
    op: MicroOp, body: int, classy: DeviceSpec
) -> None:
    assert cost(op, classy).body == body


def test_a_rate_below_one_is_rounded_up_over_all_repeats() -> None:
    spec = tiny_spec(vector__classes__duplicate__cycles_per_repeat_32bit=0.5)
    bodies = [cost(Duplicate(ub(0, FLOAT32, 64 * n), 0.0), spec).body for n in (1, 2, 3, 4)]
    # Half a cycle a repeat by the unit's own pace, but one by the buffer's.
    assert bodies == [1, 2, 3, 4]
    assert cost(Broadcast(ub(0, FLOAT32, 192), ub(4096, FLOAT32, 24)), spec).body == 3


def test_a_conflict_in_the_buffer_lengthens_the_body(tiny: DeviceSpec) -> None:
    # The tiny buffer has 16 groups of two banks of 512 bytes; 8192 bytes on is the other bank.
    far = ub(8192, FLOAT32, 64)
    assert cost(Binary("add", X, X, far), tiny).body == 2
    assert cost(Binary("add", X, X, ub(8192 + 256, FLOAT32, 64)), tiny).body == 1


BYTE = Local("ub", 0, UINT8, 1)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (ScalarLoad("r", BYTE), 4),
        (ScalarStore(BYTE, "r"), 3),
        (ScalarAlu("add", "r", "r", 1), 1),
        (Trap("r", "stop"), 1),
        (ScalarLoop(10, (ScalarLoad("r", BYTE, 1), Trap("r", "stop"))), 50),
        (SetFlag("mte2", "vector", 0), 5),
        (WaitFlag("mte2", "vector", 0), 6),
        (Barrier("vector"), 7),
        (Barrier(), 7),
    ],
    ids=str,
)
def test_scalar_and_ordering_micro_ops_take_what_the_device_says(op: MicroOp, body: int) -> None:
    spec = tiny_spec(sync__set_flag_cycles=5, sync__wait_flag_cycles=6, sync__barrier_cycles=7)
    assert cost(op, spec) == Cost(body)


def test_a_copy_has_no_cost_of_its_own(tiny: DeviceSpec) -> None:
    text = (
        "cost: load ub[0:1] uint8 <- x+0 32 B must be charged with the offset of its tensor; "
        "use charge"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        cost(Load(BYTE, Global("x", 0, 32)), tiny)


# ---- copies: sectors of 32 bytes, lines of 128 ----


@pytest.mark.parametrize(
    ("place", "base", "nbytes"),
    [
        (Global("x", 0, 32), 0, 32),
        (Global("x", 0, 33), 0, 64),
        (Global("x", 32, 1), 0, 32),
        (Global("x", 1, 1), 0, 128),
        (Global("x", 1, 127), 0, 128),
        (Global("x", 1, 128), 0, 256),
        (Global("x", 0, 32), 16, 128),
        (Global("x", 16, 32), 16, 32),
        (Global("x", 0, 100, 3, 128), 0, 3 * 128),
        (Global("x", 0, 100, 3, 160), 0, 3 * 128),
        (Global("x", 8, 100, 3, 128), 0, 3 * 128),
        # At 0: 4 sectors; at 104: lines 0 and 1; at 208: lines 1 and 2; at 312: lines 2 and 3.
        (Global("x", 0, 100, 4, 104), 0, 128 + 256 + 256 + 256),
    ],
    ids=str,
)
def test_bytes_as_moved(place: Global, base: int, nbytes: int, tiny: DeviceSpec) -> None:
    local = Local("ub", 0, UINT8, 32)
    for op in (Load(local, place, 128), Store(place, local, 128)):
        assert charge(op, base, tiny).nbytes == nbytes


def test_the_official_copy_example_loses_a_fifth_on_odd_rows() -> None:
    # asc-devkit, 05_best_practices, data_copy: rows of 12287 elements in place of 12288. On odd
    # addresses 2048 bytes lie in 5 lines of 512; 22 % were measured.
    spec = tiny_spec(l2__line_bytes=512, transfer__sector_bytes=128)
    local = Local("ub", 0, UINT8, 2048)
    moved = [charge(Load(local, Global("x", at, 2048)), 0, spec).nbytes for at in (0, 2)]
    assert moved == [2048, 2560]


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 9), st.integers(0, 400))
def test_the_bytes_of_bursts_are_those_of_each(
    offset: int, burst: int, bursts: int, stride: int
) -> None:
    spec = tiny_spec()
    local = Local("ub", 0, UINT8, 32)
    together = charge(Load(local, Global("x", offset, burst, bursts, stride), 320), 7, spec)
    apart = [
        charge(Load(local, Global("x", offset + index * stride, burst)), 7, spec).nbytes
        for index in range(bursts)
    ]
    assert together.nbytes == sum(apart)


def test_a_copy_holds_its_pipe_for_the_issue_or_for_its_bursts() -> None:
    spec = tiny_spec(transfer__issue_cycles=21, transfer__burst_cycles=3)
    local = Local("ub", 0, UINT8, 32)
    charges = [charge(Load(local, Global("x", 0, 32, n, 32), 32), 0, spec) for n in (1, 7, 8)]
    assert charges == [Charge(32, 21), Charge(224, 21), Charge(256, 24)]
