"""Programs as rows of a table, and the table of a launch."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from npusim.check.rules import RuleError
from npusim.check.rules.contents import check_program
from npusim.data.dtypes import UINT8
from npusim.isa import Barrier, Global, Load, Local, Store
from npusim.kernel.program import Binding, Block, Body, Call, Program
from npusim.kernel.table import Calls, LaunchTable, MicroOps, TabledProgram, in_pairs, spread

LOAD = Body((Load(Local("ub", 0, UINT8, 32), Global("x", 0, 32)),))
STORE = Body((Store(Global("y", 0, 32), Local("ub", 0, UINT8, 32)),))
WAIT = Body((Barrier(),))
BOTH = Body((Call(LOAD, {"x": 64}), Call(STORE, {"y": 96})))


def tabled(*rows: tuple[int, int, int]) -> TabledProgram:
    """Each row is the number of a body, and by how much it moves x and y."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    calls = Calls((LOAD, STORE, WAIT, BOTH), ("x", "y"), table[:, 0], table[:, 1:])
    return TabledProgram("kernel", calls, {"ub": 32})


def test_a_tabled_program_is_the_one_that_its_rows_call() -> None:
    program = tabled((3, 128, 0), (0, 32, 7), (2, 5, 5), (0, 0, 0))
    found = [(call.body, call.shifts) for call in program.calls]
    assert found == [(BOTH, {"x": 128, "y": 0}), (LOAD, {"x": 32}), (WAIT, {}), (LOAD, {"x": 0})]
    plain = Program("kernel", program.parts, {"ub": 32})
    assert (program.ops, len(program)) == (plain.ops, len(plain))
    same = "bodies", "leaves", "called", "first_calls", "first_leaves"
    for name in (*same, "claimed_bytes", "lines", "queues"):
        assert getattr(program, name) == getattr(plain, name), name
    assert program.ops[:2] == (
        Load(Local("ub", 0, UINT8, 32), Global("x", 192, 32)),
        Store(Global("y", 96, 32), Local("ub", 0, UINT8, 32)),
    )


def test_objects_become_the_same_rows() -> None:
    program = tabled((0, 32, 0), (3, 128, 64), (0, 0, 0))
    calls = Calls.of(Program("kernel", program.calls))
    assert (calls.bodies, calls.names) == ((LOAD, BOTH), ("x", "y"))
    assert calls.body.tolist() == [0, 1, 0]
    assert calls.shifts.tolist() == [[32, 0], [128, 64], [0, 0]]
    assert Calls.of(program) is program.table


def called(body: Body) -> list[Body]:
    """The bodies that make no calls to others of pairs, in the order of *body*."""
    return [x for call in body.calls for x in called(call.body)] if body.calls else [body]


def test_sequences_become_pairs_of_which_those_that_come_again_are_one() -> None:
    rows = [[0, 1] * 8, [2], [], [0, 1, 2, 0, 1], [0, 1] * 4]
    first = np.cumsum([0, *map(len, rows)])
    bodies = LOAD, STORE, WAIT
    found = in_pairs(bodies, np.array([x for row in rows for x in row]), first)
    for row, body in zip(rows, found, strict=True):
        assert len(body) == len(row)
        assert called(body) == ([bodies[x] for x in row] or [body])
    long, one, none, odd, short = found
    assert (one, none.parts) == (WAIT, ())
    assert long.calls[0].body is long.calls[1].body is short
    assert odd.calls[0].body.calls[0].body is short.calls[0].body.calls[0].body
    assert odd.calls[1].body is STORE


def test_equal_micro_ops_have_one_number() -> None:
    one, other = (Barrier("vector") for _ in range(2))
    micro_ops = MicroOps()
    assert micro_ops.of(Body((one, Barrier(), other))) == [0, 1, 0]
    assert micro_ops.of(Body((Barrier(), one))) == [1, 0]
    assert micro_ops.distinct == [one, Barrier()]


def test_a_program_without_calls_is_a_table_without_rows() -> None:
    assert Calls.of(Program("kernel", ())).shifts.shape == (0, 0)
    assert (len(tabled()), tabled().calls) == (0, ())


@pytest.mark.parametrize(
    ("body", "shifts", "says"),
    [
        (np.zeros(2, np.int32), np.zeros((2, 2), np.int64), "a table must hold int64 numbers: "),
        (np.zeros(2, np.int64), np.zeros((2, 3), np.int64), "a table must hold int64 numbers: "),
        (np.full(2, 4), np.zeros((2, 2), np.int64), "must name bodies 0 to 3, not 4 to 4; "),
        (np.full(2, -1), np.zeros((2, 2), np.int64), "must name bodies 0 to 3, not -1 to -1; "),
        (np.zeros(1, np.int64), np.array([[2**48, 0]]), "must be an integer of at most 48 bits, "),
    ],
)
def test_a_table_that_is_none_is_refused(
    body: np.ndarray[tuple[int], np.dtype[np.int64]],
    shifts: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    says: str,
) -> None:
    calls = Calls((LOAD, STORE, WAIT, BOTH), ("x", "y"), body, shifts)
    with pytest.raises(RuleError, match=says):
        check_program(TabledProgram("kernel", calls, {}))


def test_bodies_of_a_table_are_looked_into() -> None:
    calls = Calls((Body(("load",)),), (), np.zeros(1, np.int64), np.zeros((1, 0), np.int64))  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=r"#0: a program must consist of micro-ops"):
        check_program(TabledProgram("kernel", calls, {}))


def block(core: int, program: Program, **base: int) -> Block:
    return Block(core, "aiv", program, {name: Binding(name, at) for name, at in base.items()})


def test_a_launch_is_rows_of_programs_and_bindings() -> None:
    first = tabled((0, 32, 0), (1, 0, 64))
    second = Program("other", (Call(STORE, {"y": 8}), Call(LOAD, {"x": 16})))
    blocks = block(0, first, x=0, y=0), block(1, first, x=64, y=96), block(2, second, y=5)
    launch = LaunchTable.of(blocks)
    assert launch.programs == (first, second)
    assert (launch.cores, launch.program.tolist()) == (3, [0, 0, 1])
    assert (launch.names, launch.tensors) == (("x", "y"), ("x", "y"))
    assert launch.first.tolist() == [0, 2, 4]
    assert [launch.bodies[x] for x in launch.body] == [LOAD, STORE, STORE, LOAD]
    assert launch.shifts.tolist() == [[32, 0], [0, 64], [0, 8], [16, 0]]
    assert launch.program_of_row.tolist() == [0, 0, 1, 1]
    assert launch.tensor.tolist() == [[0, 1], [0, 1], [-1, 1]]
    assert launch.base.tolist() == [[0, 0], [64, 96], [0, 5]]


def test_sequences_are_bodies_in_order_and_names_that_move_at_all() -> None:
    programs = [
        tabled((0, 32, 0), (1, 0, 64)),
        tabled((0, 96, 0), (1, 0, 8)),
        tabled((0, 32, 0), (1, 0, 0)),
        tabled((1, 0, 64), (0, 32, 0)),
    ]
    blocks = tuple(block(core, program, x=0, y=0) for core, program in enumerate(programs))
    assert LaunchTable.of(blocks).sequences() == [0, 0, 1, 2]
    # Names of one tensor may race with each other, so where they lie counts.
    alias = {"x": Binding("x"), "y": Binding("x")}
    both = tuple(Block(core, "aiv", programs[0], alias) for core in range(2))
    assert LaunchTable.of(both).sequences() == [0, 1]


def test_a_table_is_made_once_and_dies_with_its_launch() -> None:
    blocks = block(0, tabled((0, 32, 0)), x=0), block(1, tabled((0, 32, 0)), x=0)
    assert LaunchTable.of(blocks) is LaunchTable.of(blocks)
    assert LaunchTable.of(blocks[:1]) is not LaunchTable.of(blocks)
    table = weakref.ref(LaunchTable.of(blocks))
    del blocks
    gc.collect()
    assert table() is None


def test_rows_are_spread_over_items() -> None:
    item, row = spread(np.array([2, 0, 3]), np.array([4, 9, 0]))
    assert (item.tolist(), row.tolist()) == ([0, 0, 2, 2, 2], [4, 5, 0, 1, 2])
