"""What a micro-op declares: refused when it is left out, and asked by everybody who needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from npusim import devices
from npusim.check.hazards import RaceError, order
from npusim.check.rules import ROWS, Place, RuleError, check
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT8, UINT64
from npusim.devices.schema import Pipe
from npusim.exports.facts import traffic, vector_kind, vector_ops
from npusim.isa import (
    MICRO_OPS,
    ORDERING,
    Arithmetic,
    Barrier,
    BroadcastToL0c,
    Cast,
    CopyL0c,
    CopyToL1,
    Fixpipe,
    Global,
    Load,
    LoadData,
    LoadNd2Nz,
    Local,
    MicroOp,
    Mmad,
    MulAddDst,
    Role,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarStore,
    SetFlag,
    Store,
    Table,
    Transfer,
    Work,
    added_dtype,
    copied_place,
    ends,
    global_operand,
    moved,
    reads,
    registers_set,
    writes,
    writes_global,
)
from npusim.kernel.program import Program
from npusim.reports import traffic as picture
from npusim.timing.cost import COST, cost
from npusim.trace import LaneTrace, Trace
from npusim.values.buffers import Buffers
from npusim.values.semantics import EXECUTE, State, run

A2 = devices.load("ascend910b2")


@dataclass(frozen=True, slots=True)
class AddRelu(MicroOp):
    """`dst = max(a + b, 0)`, in no table."""

    dst: Local
    a: Local
    b: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read"),
        Role("b", "read"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.dst.count, self.dst.dtype, per_element=2)

    def __str__(self) -> str:
        return f"add_relu {self.dst} <- {self.a}, {self.b}"


@dataclass(frozen=True, slots=True)
class Spill(MicroOp):
    """A copy to global memory, in no table."""

    src: Local
    dst: Global
    pipe: ClassVar[Pipe] = "mte3"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written", "global"))

    @property
    def work(self) -> Work:
        return Transfer(self.dst.nbytes)

    def __str__(self) -> str:
        return f"spill {self.dst} <- {self.src}"


def ub(at: int = 0, count: int = 64) -> Local:
    return Local("ub", at, FLOAT32, count)


FRESH = AddRelu(ub(512), ub(0), ub(256))


# ---- declarations that are refused ----


def test_a_micro_op_without_roles_is_refused_when_its_class_is_made() -> None:
    message = (
        "isa.Halve: a micro-op must declare its pipe, the roles of its operands and its work, "
        "but lacks roles, work; add it as the classes of npusim.isa do"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Halve(MicroOp):
            dst: Local
            pipe: ClassVar[Pipe] = "vector"


def test_an_operand_without_a_role_is_refused() -> None:
    message = (
        "isa.Halve: each operand must have a role, but there is none for scale; "
        "add Role('scale', ...) to its roles"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Halve(MicroOp):
            dst: Local
            scale: Local | int | None
            pipe: ClassVar[Pipe] = "vector"
            roles: ClassVar[tuple[Role, ...]] = (Role("dst", "written"),)
            work: ClassVar[Work] = Transfer()


def test_a_role_of_no_field_is_refused() -> None:
    message = (
        "isa.Halve: each role must be that of a field, but there is no src; name one of dst, count"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Halve(MicroOp):
            dst: Local
            count: int
            pipe: ClassVar[Pipe] = "vector"
            roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
            work: ClassVar[Work] = Transfer()


def test_two_operands_in_global_memory_are_refused() -> None:
    message = (
        "isa.Halve: one operand at most may be in global memory, not src, dst; make it two "
        "micro-ops"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Halve(MicroOp):
            dst: Global
            src: Global
            pipe: ClassVar[Pipe] = "mte2"
            roles: ClassVar[tuple[Role, ...]] = (
                Role("src", "read", "global"),
                Role("dst", "written", "global"),
            )
            work: ClassVar[Work] = Transfer()


def test_a_micro_op_of_another_one_is_refused() -> None:
    message = (
        "isa.Halve: a micro-op must inherit from MicroOp alone, not from Cast; "
        "write a separate class"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Halve(Cast):
            pass


# ---- tables with an entry for each micro-op ----


@pytest.mark.parametrize("table", [EXECUTE, COST, ROWS], ids=["EXECUTE", "COST", "ROWS"])
def test_every_micro_op_has_a_meaning_a_cost_and_rules(table: Table[object]) -> None:
    assert set(MICRO_OPS) == set(table)
    assert AddRelu not in MICRO_OPS


def test_a_table_that_leaves_micro_ops_out_is_refused() -> None:
    entries = dict.fromkeys(MICRO_OPS, 0)
    del entries[Cast], entries[Mmad]
    message = (
        "rooms.SIZE: every micro-op must have a size, but there is none for Mmad, Cast; "
        "add it next to the others"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Table("rooms.SIZE", "a size", MICRO_OPS, entries)


def lacks(who: str, what: str) -> str:
    said = (
        f"{who}: every micro-op must have {what}, but there is none for AddRelu; "
        f"add it next to the others"
    )
    return f"^{re.escape(said)}$"


def test_a_micro_op_without_meaning_cost_or_rules_is_named() -> None:
    state = State(Buffers(A2.cores["aiv"]), {})
    with pytest.raises(TypeError, match=lacks("semantics.EXECUTE", "a function that computes it")):
        run([FRESH], state)
    with pytest.raises(TypeError, match=lacks("cost.COST", "a function that gives its cycles")):
        cost(FRESH, A2, A2.cores["aiv"])
    with pytest.raises(TypeError, match=lacks("rules.ROWS", "rules, or stand in UNRESTRICTED")):
        check(Program("kernel", (FRESH,)), Place(A2, "aiv"))


def test_operands_without_rules_must_lie_in_their_buffers() -> None:
    place = Place(devices.load("ascend310p3"), "ai_core")
    beyond = BroadcastToL0c(Local("l0c", 262144 - 512, FLOAT32, 256), ub(0, 16), 16)
    message = (
        f"kernel #0: {beyond}: each operand must be a range within the 262144 bytes of l0c, not "
        f"l0c[261632:262656] float32; claim it with the builder"
    )
    with pytest.raises(RuleError, match=f"^{re.escape(message)}$"):
        check(Program("kernel", (beyond,)), place)


# ---- a declaration is all that a fresh micro-op needs to be seen ----


def test_a_race_of_a_fresh_micro_op_is_found() -> None:
    load = Load(ub(0), Global("x", 0, 256))
    message = (
        "kernel: micro-ops that touch the same bytes must be ordered by a flag, not #0 mte2: "
        "load ub[0:256] float32 <- x+0 256 B and #1 vector: add_relu ub[512:768] float32 <- "
        "ub[0:256] float32, ub[256:512] float32 at ub[0:256]; set a flag from mte2 to vector "
        "after the first and await it before the second"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(message)}$"):
        order(Program("kernel", (load, FRESH)))


def test_a_race_of_a_fresh_micro_op_in_global_memory_is_found() -> None:
    spill = Spill(ub(0), Global("x", 128, 256))
    load = Load(ub(1024), Global("x", 0, 256))
    with pytest.raises(RaceError, match=r"at gm x \[128:256\]"):
        order(Program("kernel", (spill, load)))
    order(Program("kernel", (spill, Load(ub(1024), Global("y", 0, 256)))))


def test_profilers_and_pictures_count_a_fresh_micro_op() -> None:
    assert (vector_kind(FRESH), vector_ops(FRESH)) == ("fp32", 128)
    assert traffic(FRESH) == {"read ub": 512, "write ub": 256}
    spill = Spill(ub(0), Global("x", 128, 256))
    assert traffic(spill) == {"read ub": 256, "write gm": 256, "ub to gm": 256}
    times = np.zeros(2, np.int64)
    lane = LaneTrace((0, 1), "aiv", Program("k", (FRESH, spill)), times, times, times, 0, 0)
    found = picture.work(Trace((lane,), 10**9))
    assert (found.vector_ops, found.vector_bits) == (2 * 128, 32)
    assert (found.vector_read_bytes, found.vector_written_bytes) == (2 * 512, 2 * 256)
    assert found.path_bytes == {"ub_to_gm": 2 * 256}


# ---- what the micro-ops declare ----

L0A, L0B = Local("l0a", 0, FLOAT16, 256), Local("l0b", 0, FLOAT16, 256)
L0C, BT = Local("l0c", 0, FLOAT32, 256), Local("bt", 0, FLOAT32, 16)
FB, L1 = Local("fb", 0, UINT64, 16), Local("l1", 64, INT8, 512)
ROWS_OF_X = Global("x", 64, 48, 3, 100)
THERE = Global("y", 0, 64, 16, 64)
LOADED = Load(ub(0), ROWS_OF_X, 96)
STORED = Store(ROWS_OF_X, ub(0), 96, FLOAT16)
OUT = Fixpipe(THERE, L0C, 16, 16, 16, FLOAT32, scale=FB, atomic=True)
INTO_L1 = Fixpipe(L1, L0C, 16, 16, 16, INT8, "req8", 7, 32)
PIECES = CopyToL1(L1, ub(0), 32, 3, 64, 96)
LOOP = ScalarLoop(
    4,
    (
        ScalarLoad("r", Local("ub", 0, INT32, 1), 8),
        ScalarAlu("add", "r", "r", 1),
        ScalarStore(Local("ub", 128, INT32, 1), "r", 4),
    ),
)


@pytest.mark.parametrize(
    ("op", "read", "written"),
    [
        # Rows of 48 bytes are filled up to 64, and start 96 bytes apart.
        (LOADED, (), (Local("ub", 0, UINT8, 96 + 96 + 64),)),
        (STORED, (Local("ub", 0, UINT8, 96 + 96 + 48),), ()),
        (LoadNd2Nz(L1, ROWS_OF_X, 16), (), (Local("l1", 64, UINT8, (16 + 3) * 32),)),
        (LoadData(L0A, L1, 32, 16, 32, 16, 32), (Local("l1", 64 + 48 * 32, UINT8, 512),), (L0A,)),
        (Mmad(L0C, L0A, L0B, 16, 16, 16), (L0A, L0B), (L0C,)),
        (Mmad(L0C, L0A, L0B, 16, 16, 16, "bias", BT), (L0A, L0B, BT), (L0C,)),
        (Mmad(L0C, L0A, L0B, 16, 16, 16, "accumulate"), (L0A, L0B, L0C), (L0C,)),
        (OUT, (L0C, FB), ()),
        (INTO_L1, (L0C,), (Local("l1", 64, UINT8, 16 * 32),)),
        (CopyL0c(ub(0), L0C, "deqf16", FB), (L0C, FB), (ub(0),)),
        (CopyL0c(ub(0), L0C), (L0C,), (ub(0),)),
        (PIECES, (Local("ub", 0, UINT8, 160),), (Local("l1", 64, UINT8, 224),)),
        (MulAddDst(ub(0), ub(256), ub(512)), (ub(256), ub(512), ub(0)), (ub(0),)),
        (LOOP, (Local("ub", 0, INT32, 7),), (Local("ub", 128, INT32, 4),)),
        (Barrier(), (), ()),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, MicroOp) else "",
)
def test_a_micro_op_says_which_bytes_it_reads_and_writes(
    op: MicroOp, read: tuple[Local, ...], written: tuple[Local, ...]
) -> None:
    assert (reads(op), writes(op)) == (read, written)


def test_only_copies_touch_global_memory_and_only_some_add_to_it() -> None:
    assert [global_operand(op) for op in (LOADED, STORED, OUT, INTO_L1, LOOP)] == [
        ROWS_OF_X, ROWS_OF_X, THERE, None, None
    ]  # fmt: skip
    assert [writes_global(op) for op in (LOADED, STORED, OUT, INTO_L1)] == [
        False, True, True, False
    ]  # fmt: skip
    assert [added_dtype(op) for op in (LOADED, STORED, OUT, INTO_L1)] == [
        None, FLOAT16, FLOAT32, None
    ]  # fmt: skip
    assert added_dtype(Store(THERE, ub(0))) is None


def test_the_scalar_unit_reads_global_memory_and_copies_none_of_it() -> None:
    element = ScalarLoadGlobal("r", Global("x", 4, 4), INT32)
    assert (global_operand(element), copied_place(element)) == (Global("x", 4, 4), None)
    assert (global_operand(LOADED), copied_place(LOADED)) == (ROWS_OF_X, ROWS_OF_X)
    assert registers_set(element) == ("r",)
    assert traffic(element) == {}


def test_a_micro_op_says_between_which_memories_it_copies() -> None:
    assert [ends(op) for op in (LOADED, STORED, OUT, INTO_L1, PIECES)] == [
        ("gm", "ub"), ("ub", "gm"), ("l0c", "gm"), ("l0c", "l1"), ("ub", "l1")
    ]  # fmt: skip


def test_moving_a_micro_op_moves_its_global_memory_alone() -> None:
    assert moved(LOADED, 36) == Load(ub(0), Global("x", 100, 48, 3, 100), 96)
    assert moved(STORED, 36) == Store(Global("x", 100, 48, 3, 100), ub(0), 96, FLOAT16)
    assert moved(INTO_L1, 36) == INTO_L1
    assert moved(LOADED, 0) is LOADED


def test_flags_and_barriers_are_what_orders_others() -> None:
    names = {kind.__name__ for kind in ORDERING}
    assert names == {"SetFlag", "WaitFlag", "CrossCoreSetFlag", "CrossCoreWaitFlag", "Barrier"}
    assert SetFlag in MICRO_OPS
