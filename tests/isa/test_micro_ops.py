"""What a micro-op declares: refused when it is left out, and asked by everybody who needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from npusim import devices, isa
from npusim.check.hazards import RaceError, order
from npusim.check.rules import ROWS, Place, RuleError, check
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT8, UINT64
from npusim.devices.schema import Pipe
from npusim.exports.facts import traffic, vector_kind, vector_ops
from npusim.kernel.program import Program
from npusim.reports import traffic as picture
from npusim.timing.cost import COST, cost
from npusim.trace import LaneTrace, Trace
from npusim.values.buffers import Buffers
from npusim.values.semantics import EXECUTE, State, run

A2 = devices.load("ascend910b2")


@dataclass(frozen=True, slots=True)
class AddRelu(isa.MicroOp):
    """`dst = max(a + b, 0)`, in no table."""

    dst: isa.Local
    a: isa.Local
    b: isa.Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[isa.Role, ...]] = (
        isa.Role("a", "read"),
        isa.Role("b", "read"),
        isa.Role("dst", "written"),
    )

    @property
    def work(self) -> isa.Work:
        return isa.Arithmetic(self.dst.count, self.dst.dtype, per_element=2)

    def __str__(self) -> str:
        return f"add_relu {self.dst} <- {self.a}, {self.b}"


@dataclass(frozen=True, slots=True)
class Spill(isa.MicroOp):
    """A copy to global memory, in no table."""

    src: isa.Local
    dst: isa.Global
    pipe: ClassVar[Pipe] = "mte3"
    roles: ClassVar[tuple[isa.Role, ...]] = (
        isa.Role("src", "read"),
        isa.Role("dst", "written", "global"),
    )

    @property
    def work(self) -> isa.Work:
        return isa.Transfer(self.dst.nbytes)

    def __str__(self) -> str:
        return f"spill {self.dst} <- {self.src}"


def ub(at: int = 0, count: int = 64) -> isa.Local:
    return isa.Local("ub", at, FLOAT32, count)


FRESH = AddRelu(ub(512), ub(0), ub(256))


# ---- declarations that are refused ----


READ, WRITTEN = isa.Role("src", "read"), isa.Role("dst", "written")
BOTH_GLOBAL = isa.Role("src", "read", "global"), isa.Role("dst", "written", "global")


@pytest.mark.parametrize(
    ("fields", "declared", "message"),
    [
        (
            {"dst": "isa.Local"},
            {},
            "a micro-op must declare its pipe, the roles of its operands and its work, "
            "but lacks roles, work; add it as the classes of npusim.isa do",
        ),
        (
            {"dst": "isa.Local", "scale": "isa.Local | int | None"},
            {"roles": (WRITTEN,), "work": isa.Transfer()},
            "each operand must have a role, but there is none for scale; "
            "add Role('scale', ...) to its roles",
        ),
        (
            {"dst": "isa.Local", "count": "int"},
            {"roles": (READ, WRITTEN), "work": isa.Transfer()},
            "each role must be that of a field, but there is no src; name one of dst, count",
        ),
        (
            {"dst": "isa.Global", "src": "isa.Global"},
            {"roles": BOTH_GLOBAL, "work": isa.Transfer()},
            "one operand at most may be in global memory, not src, dst; make it two micro-ops",
        ),
    ],
)
def test_a_micro_op_that_declares_too_little_is_refused(
    fields: dict[str, str], declared: dict[str, object], message: str
) -> None:
    body = {"__annotations__": fields, "__module__": __name__, "pipe": "mte2", **declared}
    with pytest.raises(TypeError, match=f"^{re.escape(f'isa.Halve: {message}')}$"):
        type("Halve", (isa.MicroOp,), body)


def test_a_micro_op_of_another_one_is_refused() -> None:
    message = (
        "isa.Halve: a micro-op must inherit from MicroOp alone, not from Cast; "
        "write a separate class"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Halve(isa.Cast):
            pass


# ---- tables with an entry for each micro-op ----


@pytest.mark.parametrize("table", [EXECUTE, COST, ROWS], ids=["EXECUTE", "COST", "ROWS"])
def test_every_micro_op_has_a_meaning_a_cost_and_rules(table: isa.Table[object]) -> None:
    assert set(isa.MICRO_OPS) == set(table)
    assert AddRelu not in isa.MICRO_OPS


def test_a_table_that_leaves_micro_ops_out_is_refused() -> None:
    entries = dict.fromkeys(isa.MICRO_OPS, 0)
    del entries[isa.Cast], entries[isa.Mmad]
    message = (
        "rooms.SIZE: every micro-op must have a size, but there is none for Mmad, Cast; "
        "add it next to the others"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        isa.Table("rooms.SIZE", "a size", isa.MICRO_OPS, entries)


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
    beyond = isa.BroadcastToL0c(isa.Local("l0c", 262144 - 512, FLOAT32, 256), ub(0, 16), 16)
    message = (
        f"kernel #0: {beyond}: each operand must be a range within the 262144 bytes of l0c, not "
        f"l0c[261632:262656] float32; claim it with the builder"
    )
    with pytest.raises(RuleError, match=f"^{re.escape(message)}$"):
        check(Program("kernel", (beyond,)), place)


# ---- a declaration is all that a fresh micro-op needs to be seen ----


def test_a_race_of_a_fresh_micro_op_is_found() -> None:
    load = isa.Load(ub(0), isa.Global("x", 0, 256))
    message = (
        "kernel: micro-ops that touch the same bytes must be ordered by a flag, not #0 mte2: "
        "load ub[0:256] float32 <- x+0 256 B and #1 vector: add_relu ub[512:768] float32 <- "
        "ub[0:256] float32, ub[256:512] float32 at ub[0:256]; set a flag from mte2 to vector "
        "after the first and await it before the second"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(message)}$"):
        order(Program("kernel", (load, FRESH)))


def test_a_race_of_a_fresh_micro_op_in_global_memory_is_found() -> None:
    spill = Spill(ub(0), isa.Global("x", 128, 256))
    load = isa.Load(ub(1024), isa.Global("x", 0, 256))
    with pytest.raises(RaceError, match=r"at gm x \[128:256\]"):
        order(Program("kernel", (spill, load)))
    order(Program("kernel", (spill, isa.Load(ub(1024), isa.Global("y", 0, 256)))))


def test_profilers_and_pictures_count_a_fresh_micro_op() -> None:
    assert (vector_kind(FRESH), vector_ops(FRESH)) == ("fp32", 128)
    assert traffic(FRESH) == {"read ub": 512, "write ub": 256}
    spill = Spill(ub(0), isa.Global("x", 128, 256))
    assert traffic(spill) == {"read ub": 256, "write gm": 256, "ub to gm": 256}
    times = np.zeros(2, np.int64)
    lane = LaneTrace((0, 1), "aiv", Program("k", (FRESH, spill)), times, times, times, 0, 0)
    found = picture.work(Trace((lane,), 10**9))
    assert (found.vector_ops, found.vector_bits) == (2 * 128, 32)
    assert (found.vector_read_bytes, found.vector_written_bytes) == (2 * 512, 2 * 256)
    assert found.path_bytes == {"ub_to_gm": 2 * 256}


# ---- what the micro-ops declare ----

L0A, L0B = isa.Local("l0a", 0, FLOAT16, 256), isa.Local("l0b", 0, FLOAT16, 256)
L0C, BT = isa.Local("l0c", 0, FLOAT32, 256), isa.Local("bt", 0, FLOAT32, 16)
FB, L1 = isa.Local("fb", 0, UINT64, 16), isa.Local("l1", 64, INT8, 512)
ROWS_OF_X = isa.Global("x", 64, 48, 3, 100)
THERE = isa.Global("y", 0, 64, 16, 64)
LOADED = isa.Load(ub(0), ROWS_OF_X, 96)
STORED = isa.Store(ROWS_OF_X, ub(0), 96, FLOAT16)
OUT = isa.Fixpipe(THERE, L0C, 16, 16, 16, FLOAT32, scale=FB, atomic=True)
INTO_L1 = isa.Fixpipe(L1, L0C, 16, 16, 16, INT8, "req8", 7, 32)
PIECES = isa.CopyToL1(L1, ub(0), 32, 3, 64, 96)
LOOP = isa.ScalarLoop(
    4,
    (
        isa.ScalarLoad("r", isa.Local("ub", 0, INT32, 1), 8),
        isa.ScalarAlu("add", "r", "r", 1),
        isa.ScalarStore(isa.Local("ub", 128, INT32, 1), "r", 4),
    ),
)


@pytest.mark.parametrize(
    ("op", "read", "written"),
    [
        # Rows of 48 bytes are filled up to 64, and start 96 bytes apart.
        (LOADED, (), (isa.Local("ub", 0, UINT8, 96 + 96 + 64),)),
        (STORED, (isa.Local("ub", 0, UINT8, 96 + 96 + 48),), ()),
        (isa.LoadNd2Nz(L1, ROWS_OF_X, 16), (), (isa.Local("l1", 64, UINT8, (16 + 3) * 32),)),
        (
            isa.LoadData(L0A, L1, 32, 16, 32, 16, 32),
            (isa.Local("l1", 64 + 48 * 32, UINT8, 512),),
            (L0A,),
        ),
        (isa.Mmad(L0C, L0A, L0B, 16, 16, 16), (L0A, L0B), (L0C,)),
        (isa.Mmad(L0C, L0A, L0B, 16, 16, 16, "bias", BT), (L0A, L0B, BT), (L0C,)),
        (isa.Mmad(L0C, L0A, L0B, 16, 16, 16, "accumulate"), (L0A, L0B, L0C), (L0C,)),
        (OUT, (L0C, FB), ()),
        (INTO_L1, (L0C,), (isa.Local("l1", 64, UINT8, 16 * 32),)),
        (isa.CopyL0c(ub(0), L0C, "deqf16", FB), (L0C, FB), (ub(0),)),
        (isa.CopyL0c(ub(0), L0C), (L0C,), (ub(0),)),
        (PIECES, (isa.Local("ub", 0, UINT8, 160),), (isa.Local("l1", 64, UINT8, 224),)),
        (isa.MulAddDst(ub(0), ub(256), ub(512)), (ub(256), ub(512), ub(0)), (ub(0),)),
        (LOOP, (isa.Local("ub", 0, INT32, 7),), (isa.Local("ub", 128, INT32, 4),)),
        (isa.Barrier(), (), ()),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, isa.MicroOp) else "",
)
def test_a_micro_op_says_which_bytes_it_reads_and_writes(
    op: isa.MicroOp, read: tuple[isa.Local, ...], written: tuple[isa.Local, ...]
) -> None:
    assert (isa.reads(op), isa.writes(op)) == (read, written)


def test_only_copies_touch_global_memory_and_only_some_combine_with_it() -> None:
    assert [isa.global_operand(op) for op in (LOADED, STORED, OUT, INTO_L1, LOOP)] == [
        ROWS_OF_X, ROWS_OF_X, THERE, None, None
    ]  # fmt: skip
    assert [isa.writes_global(op) for op in (LOADED, STORED, OUT, INTO_L1)] == [
        False, True, True, False
    ]  # fmt: skip
    assert [isa.combined_as(op) for op in (LOADED, STORED, OUT, INTO_L1)] == [
        None, "float16", "float32", None
    ]  # fmt: skip
    assert isa.combined_as(isa.Store(THERE, ub(0))) is None
    assert isa.combined_as(isa.Store(THERE, ub(0), 0, FLOAT16, "max")) == "max float16"


def test_the_scalar_unit_reads_global_memory_and_copies_none_of_it() -> None:
    element = isa.ScalarLoadGlobal("r", isa.Global("x", 4, 4), INT32)
    assert (isa.global_operand(element), isa.copied_place(element)) == (isa.Global("x", 4, 4), None)
    assert (isa.global_operand(LOADED), isa.copied_place(LOADED)) == (ROWS_OF_X, ROWS_OF_X)
    assert isa.registers_set(element) == ("r",)
    assert traffic(element) == {}


def test_a_micro_op_says_between_which_memories_it_copies() -> None:
    assert [isa.ends(op) for op in (LOADED, STORED, OUT, INTO_L1, PIECES)] == [
        ("gm", "ub"), ("ub", "gm"), ("l0c", "gm"), ("l0c", "l1"), ("ub", "l1")
    ]  # fmt: skip


def test_moving_a_micro_op_moves_its_global_memory_alone() -> None:
    assert isa.moved(LOADED, 36) == isa.Load(ub(0), isa.Global("x", 100, 48, 3, 100), 96)
    assert isa.moved(STORED, 36) == isa.Store(isa.Global("x", 100, 48, 3, 100), ub(0), 96, FLOAT16)
    assert isa.moved(INTO_L1, 36) == INTO_L1
    assert isa.moved(LOADED, 0) is LOADED


def test_flags_and_barriers_are_what_orders_others() -> None:
    names = {kind.__name__ for kind in isa.ORDERING}
    assert names == {"SetFlag", "WaitFlag", "CrossCoreSetFlag", "CrossCoreWaitFlag", "Barrier"}
    assert isa.SetFlag in isa.MICRO_OPS
