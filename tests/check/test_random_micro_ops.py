"""Whatever stands in a micro-op: it is refused in npusim's own words, or does what it says only.

Micro-ops that a chip accepts are changed in a few places, at random and often to nonsense. What the
checks let through is computed and timed; nothing but what it says that it writes may change, in
the buffers, in the tensors, and in the bytes around these.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from draws import draws
from hypothesis import event, given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import chip, isa
from npusim.check.bounds import BoundsError, check_inside
from npusim.check.hazards import DeadlockError, FlagError, RaceError
from npusim.check.rules import Place, RuleError, check
from npusim.data.dtypes import (
    DTYPES,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT16,
    INT32,
    UINT8,
    UINT32,
    UINT64,
)
from npusim.data.errors import TrapError
from npusim.data.tensor import GlobalTensor
from npusim.kernel.program import Binding, Block, Program
from npusim.values.buffers import Buffers, OutOfBufferError
from npusim.values.semantics import Memory, State, run

REFUSALS = (
    RuleError,
    BoundsError,
    RaceError,
    DeadlockError,
    FlagError,
    OutOfBufferError,
    TrapError,
)
CHIPS = {"aiv": tiny_spec(), "aic": tiny_spec(), "ai_core": tiny_spec("2002")}
TENSOR_BYTES = 8192
GUARD_BYTES = 4096


def ub(offset_bytes: int, dtype: Any = FLOAT32, count: int = 64, *strides: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, dtype, count, *strides)


def masked(offset_bytes: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, FLOAT32, 12, 1, 9, mask=0b1011 << 40)


def at(buffer: str, dtype: Any, count: int, offset_bytes: int = 0) -> isa.Local:
    return isa.Local(buffer, offset_bytes, dtype, count)


BYTE = ub(4096, UINT8, 1)
LOADED = isa.ScalarLoad("r", BYTE)
FIRST: dict[str, isa.MicroOp] = {"aiv": LOADED, "ai_core": LOADED, "aic": isa.Barrier()}
"""What sets the register r, where there is something to load it from."""
ROWS = isa.Global("x", 64, 48, 3, 100)
STRIDED = ub(1024, FLOAT32, 128, 2, 16)
TURNED = [tuple(ub(at + 32 * row, FLOAT16, 32, 1, 16, 1) for row in range(16)) for at in (0, 2048)]
HALVES = isa.Local("ub", 2048, INT8, 64, mask=0xFFFF0000FFFF0000FFFF0000FFFF0000)
L0C = at("l0c", FLOAT32, 1536)
PRODUCT = isa.Mmad(at("l0c", INT32, 1536), at("l0a", INT8, 2048), at("l0b", INT8, 3072), 20, 40, 50)
ROUND = (isa.ScalarLoad("s", ub(0, INT32, 1), 4), isa.ScalarStore(ub(512, INT32, 1), "s", 4))
# (kind of core, a micro-op that it accepts)
SEEDS: list[tuple[str, isa.MicroOp]] = [
    ("aiv", isa.Load(ub(0, UINT8, 192), ROWS, 64)),
    ("aiv", isa.Store(isa.Global("y", 32, 48, 3, 64), ub(0, UINT8, 192), 64)),
    ("aiv", isa.Load(ub(0, FLOAT16, 96), ROWS, 64, isa.Padding(2, 3, -1.5))),
    ("aiv", isa.Store(isa.Global("y", 32, 64), ub(0), 0, FLOAT32)),
    ("aiv", isa.Store(isa.Global("y", 32, 64), ub(0, FLOAT16), 0, FLOAT16, "min")),
    ("ai_core", isa.Store(isa.Global("y", 32, 64, 2, 96), ub(0, UINT8, 128), 64)),
    ("aic", isa.LoadNd2Nz(at("l1", FLOAT16, 1024), isa.Global("x", 0, 64, 20, 300), 32)),
    ("aic", isa.LoadNd2Nz(at("l1", INT4, 4096), isa.Global("x", 0, 64, 20, 300), 32)),
    ("aic", isa.LoadData(at("l0a", INT8, 2048), at("l1", INT8, 8192), 64, 16, 32, 20, 40)),
    ("aic", isa.LoadData(at("l0b", INT8, 2048), at("l1", INT8, 8192), 64, 32, 32, 32, 40, True)),
    ("aic", isa.LoadFractals(at("l0b", INT8, 3072), at("l1", INT8, 3072), 2, 2, 3, True, 2)),
    ("aic", isa.LoadImage(at("l0a", FLOAT16, 1024), at("l1", FLOAT16, 640), 4, 5, 32, 20, 32)),
    ("aic", isa.LoadNd2Nz(at("l1", FLOAT16, 1024), isa.Global("x", 0, 64, 5, 300), 20, 3)),
    ("aic", isa.LoadTable(at("bt", FLOAT32, 64), at("l1", FLOAT16, 64))),
    ("aic", isa.LoadTable(at("fb", UINT64, 64), at("l1", UINT64, 64))),
    ("aic", PRODUCT),
    ("aic", replace(PRODUCT, init="bias", bias=at("bt", INT32, 48))),
    ("aic", isa.Fixpipe(isa.Global("y", 0, 80, 20, 400), L0C, 20, 40, 32, FLOAT16, "cast")),
    (
        "aic",
        isa.Fixpipe(
            isa.Global("y", 0, 640, 2, 700), L0C, 20, 32, 32, FLOAT16, "cast", layout="nz"
        ),
    ),
    ("aic", isa.Fixpipe(at("l1", FLOAT16, 2048), L0C, 20, 40, 32, FLOAT16, "cast", None, 32)),
    (
        "aic",
        isa.Fixpipe(
            isa.Global("y", 0, 40, 20, 64), at("l0c", INT32, 1536), 20, 40, 32, INT8, "req8",
            at("fb", UINT64, 40),
        ),
    ),
    ("ai_core", isa.CopyL0c(ub(0, FLOAT16, 1024), at("l0c", INT32, 1024), "deqf16", 1, 32)),
    ("ai_core", isa.CopyL0c(ub(0, INT8, 1024), at("l0c", INT32, 512), "req8", 1, 32)),
    ("ai_core", isa.BroadcastToL0c(at("l0c", FLOAT32, 512), ub(0, FLOAT32, 16), 32)),
    ("ai_core", isa.CopyToL1(at("l1", UINT8, 192), ub(0, UINT8, 128), 64, 2, 64, 128)),
    ("aiv", isa.Cast(ub(1024, INT4), ub(0, FLOAT16), "rint")),
    ("aiv", isa.Cast(ub(1024, INT32), ub(0, FLOAT16), "floor")),
    ("aiv", isa.CastDequant(ub(1024, FLOAT16), ub(0, INT32), 0.5)),
    ("aiv", isa.CastDequant(HALVES, ub(0, INT16, 64), ub(1024, UINT64, 16))),
    ("aiv", isa.BinaryScalar("shift_right_round", ub(1024, INT16), ub(0, INT16), 3)),
    ("aiv", isa.MulAddDst(ub(1024), ub(0), ub(512), "mul_add_relu")),
    ("aiv", isa.Binary("add", STRIDED, ub(0, FLOAT32, 128), ub(0, FLOAT32, 128, 0, 1))),
    ("aiv", isa.Binary("div", ub(1024, FLOAT16), ub(0, FLOAT16), ub(512, FLOAT16))),
    ("aiv", isa.BinaryScalar("mul", ub(1024, INT32), ub(0, INT32), 3)),
    ("aiv", isa.BinaryScalar("max", ub(1024), ub(0), "r")),
    ("aiv", isa.Duplicate(ub(0, FLOAT32, 128, 1, 9), 0.5)),
    ("aiv", isa.Duplicate(ub(0, FLOAT32, 100, 2, 17), 0.5)),
    ("aiv", isa.Unary("abs", masked(1024), masked(0))),
    ("aiv", isa.Copy(ub(4096, FLOAT32, 288, 1, 18, 18), ub(0, FLOAT32, 288, 1, 20, 18))),
    ("aiv", isa.Broadcast(ub(1024, FLOAT32, 64), ub(0, FLOAT32, 8))),
    ("aiv", isa.Reduce("max", ub(1024, FLOAT32, 1), ub(0))),
    ("aiv", isa.Unary("abs", ub(1024), ub(0))),
    ("aiv", isa.Axpy(ub(1024, FLOAT16), ub(0, FLOAT16), 0.5)),
    ("aiv", isa.MulAddDst(ub(1024), ub(0), ub(512))),
    ("aiv", isa.BlockReduce("sum", ub(1024, FLOAT32, 16), ub(0, FLOAT32, 128, 1, 16))),
    ("aiv", isa.WholeReduce("max", ub(1024, FLOAT32, 2), ub(0, FLOAT32, 128, 1, 16))),
    ("aiv", isa.WholeReduce("sum", ub(1024, FLOAT32, 4), ub(0, FLOAT32, 64, 1, 3, 2), 13)),
    (
        "aiv",
        isa.WholeReduce("min", ub(1024, FLOAT16, 14), ub(0, FLOAT16, 256), None, "index_value", 6),
    ),
    ("aiv", isa.BlockReduce("max", ub(1024, FLOAT32, 54), masked(0), 2)),
    ("aiv", isa.BlockReduce("sum", ub(1024, FLOAT32, 32), ub(0, FLOAT32, 64), pairs=True)),
    ("aiv", isa.Fold("max", ub(0, FLOAT32, 64), ub(256, FLOAT32, 128))),
    ("aiv", isa.Fold("add", ub(0, FLOAT32, 64), ub(256, FLOAT32, 128))),
    ("aiv", isa.Unary("exp", ub(1024), ub(0))),
    ("aiv", isa.Compare("lt", ub(1024, UINT8, 16), ub(0, FLOAT32, 128), ub(512, FLOAT32, 128))),
    ("aiv", isa.CompareScalar("eq", ub(1024, UINT8, 16), ub(0, INT32, 128), "r")),
    ("aiv", isa.Select(ub(1024), ub(512, UINT8, 8), ub(0), ub(256))),
    ("aiv", isa.Select(ub(1024, FLOAT16), ub(512, UINT8, 8), ub(0, FLOAT16), 0.5)),
    ("aiv", isa.Transpose(ub(2048, FLOAT16, 512), ub(0, FLOAT16, 512))),
    ("aiv", isa.Gather(ub(1024, FLOAT16), ub(0, FLOAT16), ub(2048, INT32))),
    ("aiv", isa.Gather(masked(4096), ub(0), replace(masked(2048), dtype=UINT32))),
    ("aiv", isa.GatherBlocks(ub(1024), ub(0), ub(2048, UINT32, 8))),
    ("ai_core", isa.Scatter(ub(1024), ub(0), ub(2048, INT32))),
    ("aiv", isa.TransDataTo5HD(TURNED[1], TURNED[0])),
    ("aiv", isa.Compare("ne", "cmp_mask", ub(0), ub(512))),
    ("aiv", isa.Select(masked(4096), ub(512, UINT8, 8), masked(8192), 2.5)),
    ("aiv", isa.SetCmpMask(ub(0, UINT8, 16))),
    ("aiv", isa.Sort32(ub(1024, UINT64, 64), ub(0, FLOAT32, 64), ub(512, INT32, 64))),
    ("aiv", isa.MrgSort(ub(2048, UINT64, 96), ub(0, UINT64, 99), (64, 32), FLOAT16, "r", 64)),
    ("aiv", isa.GatherMask(ub(2048, UINT32, 2), ub(1024), ub(0), "s")),
    ("aiv", isa.GatherMask("odd", ub(1024, FLOAT32, 32), ub(0, FLOAT32, 64))),
    ("ai_core", isa.ProposalConcat(4, ub(1024, FLOAT16, 256), ub(0, FLOAT16, 32))),
    ("ai_core", isa.ProposalExtract(0, ub(0, FLOAT32, 16), ub(1024, FLOAT32, 128))),
    ("ai_core", isa.RpSort16(ub(1024, FLOAT16, 256), ub(0, FLOAT16, 256))),
    ("ai_core", isa.MrgSort4(ub(1024, FLOAT16, 384), ub(0, FLOAT16, 384), (16, 32))),
    ("aiv", isa.Unary("not", ub(1024, INT16), ub(0, INT16))),
    ("aiv", isa.Binary("or", ub(1024, INT16), ub(0, INT16), ub(512, INT16))),
    ("aiv", isa.Copy(ub(1024, FLOAT32, 128), ub(0, FLOAT32, 128, 2, 1))),
    ("aiv", isa.ScalarLoad("s", BYTE)),
    ("aiv", isa.ScalarLoadGlobal("s", isa.Global("x", 8, 4), INT32)),
    ("aiv", isa.ScalarStoreGlobal(isa.Global("y", 8, 4), "r", INT32)),
    ("aiv", isa.ScalarStore(BYTE, "r")),
    ("aiv", isa.ScalarAlu("select", "s", "r", 2, 3)),
    ("aiv", isa.ScalarAlu("f32_div", "s", "r", "r")),
    ("aiv", isa.ScalarLoop(5, ROUND)),
    ("aiv", isa.Trap(0, "never")),
    ("aiv", isa.Barrier("vector")),
    ("aiv", isa.SetFlag("mte2", "vector", 1)),
    ("aiv", isa.WaitFlag("mte2", "vector", 1)),
    ("aiv", isa.CrossCoreSetFlag("all", "mte3", 1)),
    ("aiv", isa.CrossCoreWaitFlag("all", "mte2", 1)),
]  # fmt: skip

SIZES = (-(10**7), -64, -1, 0, 1, 2, 3, 7, 8, 9, 15, 16, 31, 32, 33, 64, 100, 128, 255, 256)
HUGE = (4095, 4096, 16384, 65536, 2**31, 2**32, 2**47, 2**63, 10**12, 10**30)
WORDS = ("r", "s", "nobody", "x", "y", "ub", "l1", "l0c", "gm", "add", "min", "max", "div", "cast",
         "rint", "none", "bias", "zero", "accumulate", "mte2", "vector", "all")  # fmt: skip
JUNK = (None, 0.5, -0.0, float("nan"), float("inf"), 1e30, True, False, (), [], {}, b"x", object(),
        np.int32(4), np.int64(32), np.float32(2), np.zeros(3), 1 + 2j, ub(0), ROWS,
        ROUND[0])  # fmt: skip


def like(value: object) -> st.SearchStrategy[Any]:
    """Values of the same type as *value*, near it and far from it."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        near = (value - 32, value - 1, value + 1, value + 32, 2 * value, value // 2)
        return st.sampled_from((*near, *SIZES, *HUGE))
    if isinstance(value, str):
        return st.sampled_from(WORDS)
    return st.sampled_from(DTYPES if isinstance(value, type(FLOAT32)) else JUNK)


Path = tuple[str | int, ...]


def places(record: object, path: Path = ()) -> list[tuple[Path, object]]:
    """Where values stand in *record*, and which: itself, and what it is made of."""
    found = [(path, record)]
    if isinstance(record, tuple):
        for index, part in enumerate(record):
            found += places(part, (*path, index))
    elif is_dataclass(record) and not isinstance(record, type(FLOAT32)):
        for field in fields(record):
            found += places(getattr(record, field.name), (*path, field.name))
    return found


def changed(record: Any, path: Path, value: object) -> Any:
    """*record* with *value* at *path*."""
    if not path:
        return value
    first, *rest = path
    if isinstance(first, int):
        parts = list(record)
        parts[first] = changed(parts[first], tuple(rest), value)
        return tuple(parts)
    return replace(record, **{first: changed(getattr(record, first), tuple(rest), value)})


@st.composite
def micro_ops(draw: st.DrawFn) -> tuple[str, Any]:
    kind, op = draw(st.sampled_from(SEEDS))
    if draw(st.integers(0, 9)) == 0:
        kind = draw(st.sampled_from(list(CHIPS)))
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        path, value = draw(st.sampled_from(places(op)[1:]))
        junk = st.sampled_from(JUNK) if draw(st.integers(0, 5)) == 0 else like(value)
        op = changed(op, path, draw(junk))
    return kind, op


class Guarded:
    """Bytes with others before and behind them, which nobody may touch."""

    def __init__(self, nbytes: int) -> None:
        rng = np.random.default_rng(nbytes)
        self._all = rng.integers(0, 256, nbytes + 2 * GUARD_BYTES, np.uint8)
        self.data = self._all[GUARD_BYTES:-GUARD_BYTES]
        self.keep()

    def keep(self) -> None:
        """Take what is there now as untouched."""
        self._before = self._all.copy()

    def untouched_but(self, start: int, end: int) -> bool:
        """Whether nothing changed outside of [start, end)."""
        same = self._all == self._before
        same[GUARD_BYTES + start : GUARD_BYTES + end] = True
        return bool(same.all())


def play(op: isa.MicroOp, kind: str) -> None:
    """Compute *op* on guarded bytes, and see that it touched what it says."""
    core = CHIPS[kind].cores[kind]
    buffers = Buffers(core, byte_exact=True)
    guards = {name: Guarded(size) for name, size in buffers._sizes.items()}
    buffers._bytes = {name: guard.data for name, guard in guards.items()}
    if isinstance(op, isa.Gather | isa.GatherBlocks | isa.Scatter):
        # Offsets at random are hardly ever those of elements.
        guards["ub"].data[op.offsets.offset_bytes : op.offsets.end_bytes] = 0
        guards["ub"].keep()
    tensors = {name: Guarded(TENSOR_BYTES) for name in "xy"}
    memories = {name: Memory(guard.data) for name, guard in tensors.items()}
    state = State(buffers, memories, registers={"r": np.array([3], np.int64)})
    ordering = (isa.SetFlag, isa.WaitFlag, isa.Barrier, isa.CrossCoreSetFlag, isa.CrossCoreWaitFlag)
    if not isinstance(op, ordering):
        run([op], state)
    for name, guard in guards.items():
        told = [local for local in isa.writes(op) if local.buffer == name]
        start = min((local.offset_bytes for local in told), default=0)
        end = max((local.end_bytes for local in told), default=0)
        assert guard.untouched_but(start, end), name
    place = isa.global_operand(op) if isa.writes_global(op) else None
    for name, guard in tensors.items():
        is_it = place is not None and place.name == name
        start, end = (place.offset_bytes, place.end_bytes) if place and is_it else (0, 0)
        assert guard.untouched_but(start, end), name


@draws(600)
@given(drawn=micro_ops())
def test_a_changed_micro_op_is_refused_or_does_what_it_says(drawn: tuple[str, Any]) -> None:
    kind, op = drawn
    spec = CHIPS[kind]
    program = Program("any", (FIRST[kind], op))
    tensors = [GlobalTensor(name, TENSOR_BYTES) for name in "xy"]
    blocks = (Block(0, kind, program, {name: Binding(name) for name in "xy"}),)
    try:
        chip.verify(blocks, spec)
        check_inside(blocks, tensors)
        play(op, kind)
        chip.time(blocks, tensors, spec)
    except REFUSALS as refusal:
        event(type(refusal).__name__)
    else:
        event("does what it says")


def test_a_guard_sees_a_byte_before_behind_and_between() -> None:
    for index in (GUARD_BYTES - 1, GUARD_BYTES + 64, GUARD_BYTES + 31):
        guard = Guarded(64)
        guard._all[index] += 1
        assert not guard.untouched_but(32, 64)
    guard.data[32:64] += 1
    assert not guard.untouched_but(32, 64)
    guard.data[31] -= 1
    assert guard.untouched_but(32, 64)


def test_a_seed_of_each_micro_op_is_accepted() -> None:
    # GetCmpMask needs one before it that sets the register.
    assert {type(op) for _, op in SEEDS} == set(isa.MICRO_OPS) - {isa.GetCmpMask}
    for kind, op in SEEDS:
        # By the rules alone: flags are set by nobody, or for nobody.
        check(Program("any", (FIRST[kind], op)), Place(CHIPS[kind], kind))
        play(op, kind)
