"""Each row of the rules broken once, with its whole message, beside a neighbour that passes."""

from __future__ import annotations

import re
from itertools import product
from typing import get_args

import pytest

from npusim.check.rules import CASTS, Place, RuleError, check
from npusim.data.dtypes import (
    BFLOAT16,
    DTYPES,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    UINT8,
    DType,
    RoundMode,
)
from npusim.devices.schema import DeviceSpec
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
from npusim.kernel.program import Program

X = Local("ub", 0, FLOAT32, 64)
Y = Local("ub", 256, FLOAT32, 64)
BYTE = Local("ub", 3, UINT8, 1)


def ub(offset_bytes: int, dtype: DType, count: int, *strides: int) -> Local:
    return Local("ub", offset_bytes, dtype, count, *strides)


def load(burst: int = 32, pitch: int = 32, bursts: int = 2, stride: int = 32) -> Load:
    return Load(ub(0, UINT8, burst), Global("x", 0, burst, bursts, stride), pitch)


def store(burst: int = 32, pitch: int = 32, bursts: int = 2, stride: int = 32) -> Store:
    return Store(Global("y", 0, burst, bursts, stride), ub(0, UINT8, burst), pitch)


def loop(*body: ScalarLoad | ScalarStore | ScalarAlu | Trap, count: int = 4) -> ScalarLoop:
    return ScalarLoop(count, body)


def refused(at: Place, op: MicroOp, message: str) -> None:
    text = f"kernel #1: {op}: {message}"
    with pytest.raises(RuleError, match=f"^{re.escape(text)}$"):
        check(Program("kernel", (Barrier("mte2"), op)), at)


def accepted(at: Place, op: MicroOp) -> None:
    check(Program("kernel", (op,)), at)


# (kind of core, refused, its message, a neighbour that is accepted)
ROWS: list[tuple[str, MicroOp, str, MicroOp]] = [
    (
        "aiv",
        Barrier("cube"),
        "its pipe must be one of aiv's, which are scalar, vector, mte2, mte3, not cube; "
        "run it on another kind of core",
        Barrier("vector"),
    ),
    (
        "aic",
        Duplicate(X, 0.0),
        "its pipe must be one of aic's, which are scalar, mte1, mte2, mte3, cube, fixpipe, "
        "not vector; run it on another kind of core",
        Barrier("mte1"),
    ),
    (
        "aiv",
        Duplicate(ub(16384 - 224, FLOAT32, 64), 0.0),
        "each operand must be a range within the 16384 bytes of ub, "
        "not ub[16160:16416] float32; claim it with the builder",
        Duplicate(ub(16384 - 256, FLOAT32, 64), 0.0),
    ),
    (
        "aiv",
        Duplicate(ub(0, FLOAT32, 0), 0.0),
        "each operand must be a range within the 16384 bytes of ub, "
        "not ub[0:0] float32; claim it with the builder",
        Duplicate(ub(0, FLOAT32, 8), 0.0),
    ),
    (
        "aiv",
        ScalarLoad("r", Local("l1", 0, UINT8, 1)),
        "each operand must be a range within a buffer that aiv has, "
        "not l1[0:1] uint8; claim it with the builder",
        ScalarLoad("r", BYTE),
    ),
    (
        "aiv",
        loop(ScalarLoad("r", ub(16380, UINT8, 1), 1), count=5),
        "each operand must be a range within the 16384 bytes of ub, "
        "not ub[16380:16385] uint8; claim it with the builder",
        loop(ScalarLoad("r", ub(16380, UINT8, 1), 1), count=4),
    ),
    (
        "aic",
        Load(Local("l0a", 0, UINT8, 32), Global("x", 0, 32)),
        "a copy must go a way that aic has, one of gm_to_l1, l2_to_l1, l1_to_l0a, l1_to_l0b, "
        "l1_to_bt, l1_to_fb, l0c_to_l1, l0c_to_gm, l0c_to_l2, l1_to_gm, "
        "not gm_to_l0a or l2_to_l0a; take another buffer",
        Load(Local("l1", 0, UINT8, 32), Global("x", 0, 32)),
    ),
    (
        "aiv",
        Binary("add", X, X, ub(304, FLOAT32, 64)),
        "each operand must start at a multiple of 32 bytes, not at 0, 304, 0; align it",
        Binary("add", X, X, ub(320, FLOAT32, 64)),
    ),
    (
        "aiv",
        Load(ub(16, UINT8, 32), Global("x", 0, 32)),
        "each operand must start at a multiple of 32 bytes, not at 16; align it",
        Load(ub(32, UINT8, 32), Global("x", 0, 32)),
    ),
    (
        "aiv",
        load(pitch=48),
        "rows must be filled and lie whole blocks of 32 bytes apart, not 32 bytes every 48; "
        "pad the rows",
        load(pitch=64),
    ),
    (
        "aiv",
        load(burst=33, pitch=32),
        "rows must lie at least the 64 bytes apart that each fills, not 32; raise the pitch",
        load(burst=33, pitch=64),
    ),
    (
        "ai_core",
        load(burst=48, pitch=64, stride=64),
        "bursts and strides must be multiples of 32 bytes on arch 2002, not 48 and 64; "
        "copy row by row, and let the tail overlap",
        load(burst=64, pitch=64, stride=64),
    ),
    (
        "ai_core",
        store(burst=32, stride=40),
        "bursts and strides must be multiples of 32 bytes on arch 2002, not 32 and 40; "
        "copy row by row, and let the tail overlap",
        store(burst=32, stride=64),
    ),
    (
        "ai_core",
        Cast(ub(256, INT8, 64), ub(0, FLOAT16, 64), "rint"),
        "mode must be one of floor, ceil, round, trunc, none for float16 to int8 on arch 2002, "
        "not 'rint'; use one of these, or cast in two steps",
        Cast(ub(256, INT8, 64), ub(0, FLOAT16, 64), "round"),
    ),
    (
        "aiv",
        Cast(ub(256, INT8, 64), X, "rint"),
        "mode must be one of none known for float32 to int8 on arch 2201, "
        "not 'rint'; use one of these, or cast in two steps",
        Cast(ub(256, INT32, 64), X, "rint"),
    ),
    (
        "aiv",
        Binary("add", X, X, ub(512, FLOAT16, 64)),
        "operands must share one of float32, float16, int32, not float32, float16, float32; "
        "cast first",
        Binary("add", X, X, Y),
    ),
    (
        "aiv",
        BinaryScalar("mul", ub(0, BFLOAT16, 64), ub(0, BFLOAT16, 64), 1.0),
        "operands must share one of float32, float16, int32, not bfloat16, bfloat16; cast first",
        BinaryScalar("mul", ub(0, INT32, 64), ub(0, INT32, 64), 1),
    ),
    (
        "aiv",
        BinaryScalar("div", ub(0, INT32, 64), ub(0, INT32, 64), 2),
        "operands must share one of float32, float16, not int32, int32; cast first",
        BinaryScalar("div", ub(0, FLOAT16, 64), ub(0, FLOAT16, 64), 2.0),
    ),
    (
        "aiv",
        Binary("add", X, X, ub(256, FLOAT32, 63)),
        "operands must have the same number of elements, and at least one, not 64, 63, 64; "
        "cut them alike",
        Binary("add", ub(0, FLOAT32, 63), ub(0, FLOAT32, 63), ub(256, FLOAT32, 63)),
    ),
    (
        "aiv",
        Duplicate(ub(0, INT8, 64), 0),
        "operands must share one type of 16 or 32 bits, not int8; cast first",
        Duplicate(ub(0, BFLOAT16, 64), 0),
    ),
    (
        "aiv",
        Broadcast(ub(256, FLOAT16, 128), ub(0, FLOAT32, 8)),
        "operands must share one type of 16 or 32 bits, not float32, float16; cast first",
        Broadcast(ub(256, FLOAT16, 128), ub(0, FLOAT16, 8)),
    ),
    (
        "aiv",
        Reduce("max", ub(256, FLOAT16, 1), X),
        "operands must share one type of 16 or 32 bits, not float32, float16; cast first",
        Reduce("max", ub(256, FLOAT32, 1), X),
    ),
    (
        "aiv",
        Broadcast(ub(256, FLOAT32, 56), ub(0, FLOAT32, 8)),
        "dst must be 32 bytes for each of the 8 elements, not 224 in all; change its count",
        Broadcast(ub(256, FLOAT32, 64), ub(0, FLOAT32, 8)),
    ),
    (
        "aiv",
        Duplicate(ub(0, FLOAT32, 12, 2, 16), 0.0),
        "strided operands must be blocks of 32 bytes, up to 8 or a multiple of 8, "
        "not 48 bytes; pad them",
        Duplicate(ub(0, FLOAT32, 16, 2, 16), 0.0),
    ),
    (
        "aiv",
        Duplicate(ub(0, FLOAT32, 96, 2, 16), 0.0),
        "strided operands must be blocks of 32 bytes, up to 8 or a multiple of 8, "
        "not 384 bytes; pad them",
        Duplicate(ub(0, FLOAT32, 128, 2, 16), 0.0),
    ),
    (
        "aiv",
        loop(ScalarLoad("r", BYTE, 1), count=0),
        "each operand must be a range within the 16384 bytes of ub, "
        "not ub[3:3] uint8; claim it with the builder",
        loop(ScalarLoad("r", BYTE, 1), count=1),
    ),
    (
        "aiv",
        loop(ScalarAlu("add", "r", 1, 2), count=0),
        "a loop must run at least once and write each register before it reads it, "
        "not 0 x with a register from outside; load it inside the loop",
        loop(ScalarAlu("add", "r", 1, 2), count=1),
    ),
    (
        "aiv",
        loop(ScalarAlu("add", "s", "r", 2)),
        "a loop must run at least once and write each register before it reads it, "
        "not 4 x with a register from outside; load it inside the loop",
        loop(ScalarLoad("r", BYTE, 1), ScalarAlu("add", "s", "r", 2)),
    ),
    (
        "aiv",
        loop(ScalarStore(BYTE, "r", 1)),
        "a loop must run at least once and write each register before it reads it, "
        "not 4 x with a register from outside; load it inside the loop",
        loop(ScalarAlu("add", "r", 1, 2), ScalarStore(BYTE, "r", 1)),
    ),
    (
        "aiv",
        loop(Trap("r", "stop")),
        "a loop must run at least once and write each register before it reads it, "
        "not 4 x with a register from outside; load it inside the loop",
        loop(ScalarLoad("r", BYTE, 1), Trap("r", "stop")),
    ),
    (
        "aiv",
        loop(ScalarLoad("r", ub(0, UINT8, 1), 1), ScalarStore(ub(1, UINT8, 1), "r", 1)),
        "a round must not touch what another round stores, not even in part; "
        "store elsewhere, or write the rounds one by one",
        loop(ScalarLoad("r", ub(0, UINT8, 1), 1), ScalarStore(ub(0, UINT8, 1), "r", 1)),
    ),
    (
        "aiv",
        loop(ScalarLoad("r", ub(0, UINT8, 1)), ScalarStore(ub(0, UINT8, 1), "r")),
        "a round must not touch what another round stores, not even in part; "
        "store elsewhere, or write the rounds one by one",
        loop(ScalarLoad("r", ub(0, UINT8, 1)), ScalarStore(ub(0, UINT8, 1), "r"), count=1),
    ),
    (
        "aiv",
        loop(ScalarLoad("r", ub(0, UINT8, 1), 1), ScalarStore(ub(3, UINT8, 1), "r", 1)),
        "a round must not touch what another round stores, not even in part; "
        "store elsewhere, or write the rounds one by one",
        loop(ScalarLoad("r", ub(0, UINT8, 1), 1), ScalarStore(ub(4, UINT8, 1), "r", 1)),
    ),
    (
        "aiv",
        SetFlag("mte2", "vector", 8),
        "a flag must go between two pipes with an event in [0, 8), not mte2->vector 8; "
        "use another event",
        SetFlag("mte2", "vector", 7),
    ),
    (
        "aiv",
        WaitFlag("vector", "vector", 0),
        "a flag must go between two pipes with an event in [0, 8), not vector->vector 0; "
        "use another event",
        WaitFlag("vector", "mte3", 0),
    ),
    (
        "aiv",
        SetFlag("vector", "cube", 0),
        "a flag must go between pipes of aiv, which are scalar, vector, mte2, mte3, "
        "not vector->cube; drop it",
        SetFlag("vector", "mte3", 0),
    ),
]  # fmt: skip


def test_each_rule_refuses_one_and_accepts_its_neighbour(
    tiny: DeviceSpec, tiny_2002: DeviceSpec, subtests: pytest.Subtests
) -> None:
    for kind, bad, message, good in ROWS:
        with subtests.test(message):
            at = Place(tiny_2002 if kind in tiny_2002.cores else tiny, kind)
            refused(at, bad, message)
            accepted(at, good)


def test_the_other_arch_moves_any_number_of_bytes(tiny: DeviceSpec) -> None:
    accepted(Place(tiny, "aiv"), load(burst=5, pitch=32, stride=7))
    accepted(Place(tiny, "aiv"), store(burst=5, pitch=32, stride=7))


@pytest.mark.parametrize("arch", ["2201", "2002"])
def test_every_cast_of_the_table_is_accepted_and_no_other(
    arch: str, tiny: DeviceSpec, tiny_2002: DeviceSpec
) -> None:
    at = Place(tiny, "aiv") if arch == "2201" else Place(tiny_2002, "ai_core")
    taken = []
    for src, dst, mode in product(DTYPES, DTYPES, get_args(RoundMode)):
        op = Cast(ub(1024, dst, 64), ub(0, src, 64), mode)
        try:
            accepted(at, op)
        except RuleError:
            continue
        taken.append((src, dst, mode))
    table = [(src, dst, mode) for (src, dst), modes in CASTS[arch].items() for mode in modes]
    assert sorted(taken, key=str) == sorted(table, key=str)


# asc-devkit, Cast.md: what one arch has and the other has not.
@pytest.mark.parametrize(
    ("src", "dst", "mode", "on_2201", "on_2002"),
    [
        (FLOAT16, INT8, "rint", True, False),
        (FLOAT16, INT8, "round", True, True),
        (FLOAT16, INT4, "rint", True, False),
        (FLOAT16, INT4, "none", True, True),
        (FLOAT32, FLOAT16, "rint", True, False),
        (FLOAT32, FLOAT16, "odd", True, True),
        (FLOAT32, BFLOAT16, "rint", True, False),
        (FLOAT32, FLOAT32, "rint", True, False),
        (FLOAT32, INT32, "rint", True, True),
        (INT4, FLOAT16, "none", True, False),
        (INT32, FLOAT16, "none", True, True),
        (INT32, FLOAT16, "rint", False, False),
        (FLOAT32, INT8, "rint", False, False),
        (INT8, FLOAT32, "none", False, False),
    ],
)
def test_casts_that_the_two_architectures_have(
    src: DType, dst: DType, mode: RoundMode, on_2201: bool, on_2002: bool
) -> None:
    found = [mode in CASTS[arch].get((src, dst), ()) for arch in ("2201", "2002")]
    assert found == [on_2201, on_2002]


def test_the_first_bad_micro_op_is_named(tiny: DeviceSpec) -> None:
    bad = SetFlag("mte2", "vector", 9)
    with pytest.raises(RuleError, match=r"^kernel #2: set_flag mte2->vector 9: "):
        check(Program("kernel", (load(), load(), bad, bad)), Place(tiny, "aiv"))
