"""Values of a launch whose cores meet: who goes first, who waits, and what stops them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cube import nd2nz

from npusim import chip, isa
from npusim.check.hazards import DeadlockError
from npusim.chip import Binding, Block, Model
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.errors import TrapError
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Body, Call, Program

X = isa.Local("ub", 0, FLOAT32, 8)
ROW = isa.Local("ub", 0, UINT8, 32)
FORMS = pytest.mark.parametrize("byte_exact", [False, True], ids=["held", "byte_exact"])


def up(event: int = 0, mode: isa.CrossMode = "group", pipe: str = "scalar") -> isa.CrossCoreSetFlag:
    return isa.CrossCoreSetFlag(mode, pipe, event)  # type: ignore[arg-type]


def wait(
    event: int = 0, mode: isa.CrossMode = "group", pipe: str = "scalar"
) -> isa.CrossCoreWaitFlag:
    return isa.CrossCoreWaitFlag(mode, pipe, event)  # type: ignore[arg-type]


def one_by_one(*ops: isa.MicroOp) -> tuple[isa.MicroOp, ...]:
    """Each micro-op only once all before it are done."""
    return tuple(part for op in ops for part in (op, isa.Barrier()))


def on(core: int, kind: str, *ops: isa.MicroOp | Call, group: int = 0, **bases: int) -> Block:
    names = {"x": "x", "y": "y", "t": "t"}
    bindings = {name: Binding(tensor, bases.get(name, 0)) for name, tensor in names.items()}
    return Block(core, kind, Program("kernel", ops), bindings, group)


def load(start: int = 0, name: str = "x") -> isa.Load:
    return isa.Load(ROW, isa.Global(name, start, 32))


def store(start: int = 0, name: str = "y") -> isa.Store:
    return isa.Store(isa.Global(name, start, 32), ROW)


def compute(
    spec: DeviceSpec, blocks: tuple[Block, ...], byte_exact: bool = False, **tensors: np.ndarray
) -> None:
    # Every block binds all three names.
    named = {name: np.zeros(0, np.uint8) for name in "xyt"} | tensors
    placed = [GlobalTensor(n, x.nbytes, x.reshape(-1).view(np.uint8)) for n, x in named.items()]
    model = Model(byte_exact=byte_exact)
    chip.compute(blocks, placed, spec, chip.verify(blocks, spec), model)


# ---- atomic additions ----


def adding(core: int, value: float, *before: isa.MicroOp, group: int = 0) -> Block:
    half = isa.Local("ub", 0, FLOAT16, 16)
    add = isa.Store(isa.Global("y", 0, 32), half, atomic=FLOAT16)
    return on(core, "aiv", *one_by_one(*before, isa.Duplicate(half, value), add), group=group)


def test_cores_add_in_the_order_of_the_blocks(tiny: DeviceSpec) -> None:
    found = []
    for values in ((1, 2), (2, 1)):
        y = np.full(16, 2048, np.float16)
        compute(tiny, tuple(adding(core, x) for core, x in enumerate(values)), y=y)
        found.append(y[0])
    # 2048 + 1 is a tie and stays 2048; 2050 + 1 is one that becomes 2052.
    assert found == [2050, 2052]


def test_a_core_that_waits_adds_after_those_it_waits_for(tiny: DeviceSpec) -> None:
    cube = on(2, "aic", wait(), up(1))
    late = adding(0, 1, up(), wait(1))
    y = np.full(16, 2048, np.float16)
    idle = on(1, "aiv", up(), *one_by_one(isa.Duplicate(X, 0.0)), wait(1))
    compute(tiny, (late, idle, cube, adding(3, 2, group=1)), y=y)
    # Core 3 waits for nobody, but core 0 can go on by the time that its turn comes.
    assert y[0] == 2050
    y = np.full(16, 2048, np.float16)
    second = (*adding(1, 2).program.ops, up(), wait(1))
    compute(tiny, (late, on(1, "aiv", *second), cube), y=y)
    assert y[0] == 2052


# ---- who waits for whom ----


def test_cores_of_a_kind_read_what_all_have_written(tiny: DeviceSpec) -> None:
    x, t, y = np.arange(24, dtype=np.float32), np.zeros(24, np.float32), np.zeros(24, np.float32)

    def program(core: int) -> tuple[isa.MicroOp, ...]:
        meet = (up(3, "all"), wait(3, "all"))
        after = (core + 1) % 3 * 32
        mine = (load(32 * core), isa.BinaryScalar("add", X, X, 100.0), store(32 * core, "t"))
        return one_by_one(*mine, *meet, load(after, "t"), store(32 * core))

    compute(tiny, tuple(on(core, "aiv", *program(core)) for core in range(3)), x=x, t=t, y=y)
    np.testing.assert_array_equal(t, x + 100)
    np.testing.assert_array_equal(y, np.roll(x + 100, -8))


HALVES = isa.Local("ub", 0, FLOAT16, 256)
L1, LEFT, RIGHT = (isa.Local(buffer, 0, FLOAT16, 256) for buffer in ("l1", "l0a", "l0b"))
SUM = isa.Local("l0c", 0, FLOAT32, 256)


def multiply(name: str) -> tuple[isa.MicroOp, ...]:
    """The 16 x 16 halves of tensor *name* times two, into L0C."""
    return (
        nd2nz(L1, name, (16, 16), 16),
        isa.LoadData(LEFT, L1, 16, 0, 0, 16, 16),
        nd2nz(L1, "x", (16, 16), 16),
        isa.LoadData(RIGHT, L1, 16, 0, 0, 16, 16, True),
        isa.Mmad(SUM, LEFT, RIGHT, 16, 16, 16),
    )


def drain(name: str) -> isa.Fixpipe:
    return isa.Fixpipe(isa.Global(name, 0, 32, 16, 32), SUM, 16, 16, 16, FLOAT16, "cast")


TWICE = (np.eye(16) * 2).astype(np.float16)


@FORMS
def test_a_cube_core_and_its_vector_cores_take_turns(tiny: DeviceSpec, byte_exact: bool) -> None:
    def half(core: int) -> tuple[isa.MicroOp, ...]:
        mine = isa.Local("ub", 0, FLOAT16, 128), isa.Local("ub", 0, UINT8, 256)
        place = isa.Global("t", 256 * core, 256)
        add = (isa.Load(mine[1], place), isa.BinaryScalar("add", mine[0], mine[0], 1.0 + core))
        return one_by_one(*add, isa.Store(place, mine[1]), up(0), wait(1))

    cube = one_by_one(wait(0), *multiply("t"), drain("t"), up(1))
    t = np.zeros((16, 16), np.float16)
    vectors = (on(core, "aiv", *half(core) * 3) for core in range(2))
    compute(tiny, (*vectors, on(2, "aic", *cube * 3)), byte_exact, x=TWICE, t=t)
    # ((1 x 2 + 1) x 2 + 1) x 2, and the same with 2 added each time.
    np.testing.assert_array_equal(t, np.float16([14] * 8 + [28] * 8)[:, None].repeat(16, 1))


@FORMS
def test_a_product_is_that_of_what_was_loaded(tiny: DeviceSpec, byte_exact: bool) -> None:
    # The cube core looks at its sum only after another core has overwritten the operand.
    cube = one_by_one(*multiply("t"), up(0), wait(1), drain("y"))
    clear = one_by_one(
        wait(0),
        isa.Duplicate(HALVES, 9.0),
        isa.Store(isa.Global("t", 0, 512), HALVES.as_dtype(UINT8)),
        up(1),
    )
    t = np.arange(256, dtype=np.float16).reshape(16, 16)
    before, y = t.copy(), np.zeros((16, 16), np.float16)
    blocks = (on(0, "aic", *cube), on(1, "aiv", *clear))
    compute(tiny, blocks, byte_exact, x=TWICE, t=t, y=y)
    assert (t == 9).all()
    np.testing.assert_array_equal(y, before * 2)


def test_a_wait_that_nobody_ends_is_refused_before_anything_runs(tiny: DeviceSpec) -> None:
    blocks = (on(0, "aic", wait(0), up(1)), on(1, "aiv", *one_by_one(wait(1), up(0), store())))
    text = (
        "kernel: every awaited flag between cores must be set, but these wait for ever: "
        "core 0 scalar at #0: cross_core_wait_flag group 0; "
        "core 1 scalar at #0: cross_core_wait_flag group 1; "
        "set the flag on the cores that they wait for"
    )
    y = np.zeros(8, np.float32)
    with pytest.raises(DeadlockError, match=f"^{re.escape(text)}$"):
        compute(tiny, blocks, y=y)
    assert not y.any()


# ---- each core on its own ----


@pytest.mark.parametrize("meets", [False, True], ids=["alone", "meeting"])
def test_buffers_are_fresh(tiny: DeviceSpec, meets: bool) -> None:
    flags: tuple[isa.MicroOp, ...] = (up(0, "all"), wait(0, "all")) if meets else ()
    y = np.zeros(16, np.float32)
    writer = on(0, "aiv", *one_by_one(isa.Duplicate(X, 1.0), *flags, store()))
    reader = on(1, "aiv", *one_by_one(*flags, store(32)))
    compute(tiny, (writer, reader), y=y)
    assert y[:8].tolist() == [1] * 8
    assert (y[8:].view(np.uint8) == 0x7B).all()


@FORMS
def test_no_core_finds_the_matrices_of_another(tiny: DeviceSpec, byte_exact: bool) -> None:
    y = np.zeros((2, 16, 16), np.float16)
    first = on(0, "aic", *one_by_one(*multiply("t"), drain("y")))
    second = on(1, "aic", *one_by_one(drain("y")), y=512)
    t = np.ones((16, 16), np.float16)
    compute(tiny, (first, second), byte_exact, x=TWICE, t=t, y=y)
    assert (y[0] == 2).all()
    # What nobody has written is 1.3e36 in float32.
    assert (y[1] == np.inf).all()


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "after a wait"])
def test_a_trap_names_its_core(tiny: DeviceSpec, waits: bool) -> None:
    check = (
        load(),
        isa.ScalarLoad("bad", isa.Local("ub", 0, UINT8, 1)),
        isa.Trap("bad", "x must be zero"),
    )
    flags: tuple[isa.MicroOp, ...] = (wait(),) if waits else ()
    x = np.zeros(16, np.float32)
    x.view(np.uint8)[32] = 1
    blocks = (
        on(5, "aic", *(up() for _ in flags)),
        on(3, "aiv", *one_by_one(*flags, *check)),
        on(4, "aiv", *one_by_one(*flags, *check), x=32),
    )
    with pytest.raises(TrapError, match=r"^x must be zero \(core 4\)$"):
        compute(tiny, blocks, x=x)


# ---- orders that are not program order ----


LATE = (
    isa.WaitFlag("mte2", "vector", 0),
    isa.BinaryScalar("mul", X, X, 3.0),
    isa.SetFlag("vector", "mte3", 0),
    load(),
    isa.SetFlag("mte2", "vector", 0),
    isa.WaitFlag("vector", "mte3", 0),
    store(),
)


def test_a_wait_may_stand_before_its_set(tiny: DeviceSpec) -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    compute(tiny, (on(0, "aiv", *LATE),), x=x, y=y)
    np.testing.assert_array_equal(y, x * 3)


@pytest.mark.parametrize("again", ["load", "loop"])
def test_registers_are_those_at_hand_out(again: str, tiny: DeviceSpec) -> None:
    # The addition waits for mte3 while the scalar unit sets the register anew.
    first, second = (isa.Local("ub", 32 + 4 * index, FLOAT32, 1) for index in range(2))
    loads = {
        "load": isa.ScalarLoad("r", second),
        "loop": isa.ScalarLoop(
            2, (isa.ScalarLoad("r", first, 4), isa.ScalarAlu("add", "s", "r", 0))
        ),
    }
    ops = (
        load(),
        isa.Load(isa.Local("ub", 32, UINT8, 32), isa.Global("x", 32, 32)),
        isa.SetFlag("mte2", "scalar", 0),
        isa.WaitFlag("mte2", "scalar", 0),
        isa.ScalarLoad("r", first),
        isa.WaitFlag("mte3", "vector", 0),
        isa.BinaryScalar("add", X, X, "r"),
        isa.Barrier("vector"),
        loads[again],
        isa.BinaryScalar("mul", isa.Local("ub", 64, FLOAT32, 8), X, "r"),
        isa.SetFlag("mte3", "vector", 0),
        isa.SetFlag("vector", "mte3", 0),
        isa.WaitFlag("vector", "mte3", 0),
        store(),
        isa.Store(isa.Global("t", 0, 32), isa.Local("ub", 64, FLOAT32, 8)),
    )
    x, y, t = np.arange(16, dtype=np.float32), np.zeros(8, np.float32), np.zeros(8, np.float32)
    compute(tiny, (on(0, "aiv", *ops),), x=x, y=y, t=t)
    np.testing.assert_array_equal(y, x[:8] + x[8])
    np.testing.assert_array_equal(t, y * x[9])


def test_calls_keep_their_shifts_in_another_order(tiny: DeviceSpec) -> None:
    body = Body((*LATE, isa.Barrier()))
    x, y = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    calls = (Call(body, {"x": 32 * turn, "y": 64 - 32 * turn}) for turn in range(3))
    compute(tiny, (on(0, "aiv", *calls),), x=x, y=y)
    np.testing.assert_array_equal(y.reshape(3, 8), 3 * x.reshape(3, 8)[::-1])


def test_cores_meet_in_another_order_too(tiny: DeviceSpec) -> None:
    # The store waits for a flag that comes later in the program, the load for another core.
    reader = (
        isa.WaitFlag("mte2", "mte3", 0),
        store(),
        wait(0, pipe="mte2"),
        load(0, "t"),
        isa.SetFlag("mte2", "mte3", 0),
    )
    writer = (isa.Duplicate(X, 7.0), store(0, "t"), up(0, pipe="mte3"))
    cube = (wait(0, pipe="scalar"), up(0))
    y, t = np.zeros(8, np.float32), np.zeros(8, np.float32)
    blocks = (
        on(0, "aiv", *one_by_one(up()), *reader),
        on(1, "aiv", *one_by_one(*writer), wait(0)),
        on(2, "aic", *cube),
    )
    compute(tiny, blocks, y=y, t=t)
    assert y.tolist() == [7] * 8
