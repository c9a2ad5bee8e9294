"""Programs of calls get the verdict of the same micro-ops written out, in less work."""

from __future__ import annotations

import re

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim import isa
from npusim.check.hazards import FlagError, HazardError, Orders, RaceError, order, rounds, states
from npusim.check.hazards.aliases import NO_ALIASES, Aliases
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.kernel.program import Body, Call, Program

LOAD = isa.Load(isa.Local("ub", 0, UINT8, 256), isa.Global("x", 0, 256))
NEXT = isa.Load(isa.Local("ub", 256, UINT8, 256), isa.Global("x", 256, 256))
CAST = isa.Cast(isa.Local("ub", 1024, FLOAT16, 64), isa.Local("ub", 0, FLOAT32, 64), "none")
FILL = isa.Duplicate(isa.Local("ub", 1024, FLOAT16, 64), 0.0)
STORE = isa.Store(isa.Global("y", 0, 128), isa.Local("ub", 1024, UINT8, 128))
BACK = isa.Load(isa.Local("ub", 512, UINT8, 128), isa.Global("y", 0, 128))
GO, READY = (isa.SetFlag("vector", "mte2", 0), isa.WaitFlag("vector", "mte2", 0))
FILLED, USE = (isa.SetFlag("mte2", "vector", 0), isa.WaitFlag("mte2", "vector", 0))
DONE, OUT = (isa.SetFlag("vector", "mte3", 0), isa.WaitFlag("vector", "mte3", 0))
STORED, AGAIN = (isa.SetFlag("mte3", "vector", 0), isa.WaitFlag("mte3", "vector", 0))
TILE = (READY, LOAD, FILLED, USE, AGAIN, CAST, GO, DONE, OUT, STORE, STORED)


def loop(tile: tuple[isa.MicroOp, ...], count: int) -> tuple[Call, ...]:
    body = Body(tile)
    return tuple(Call(body, {"x": 512 * turn, "y": 128 * turn}) for turn in range(count))


def verdict(program: Program) -> object:
    try:
        return list(order(program))
    except HazardError as error:
        return str(error)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many micro-ops each walk saw: of a body from a new state, or of a whole program."""
    seen: list[int] = []
    walk, passes = rounds.walk, states.BodyWalk.passes

    def counted(program: Program, aliases: Aliases = NO_ALIASES) -> list[int]:
        seen.append(len(program))
        return walk(program, aliases)

    def counted_body(self: states.BodyWalk, body: Body) -> bool:
        seen.append(len(body))
        return passes(self, body)

    monkeypatch.setattr(rounds, "walk", counted)
    monkeypatch.setattr(states.BodyWalk, "passes", counted_body)
    return seen


def test_a_loop_is_walked_until_a_round_leaves_what_it_found(walked: list[int]) -> None:
    program = Program("kernel", (GO, STORED, *loop(TILE, 50), READY, AGAIN))
    assert order(program) == range(4 + 50 * len(TILE))
    # Two micro-ops, then rounds that find: nothing done yet, and what a round leaves.
    assert walked == [2, 11, 11, 2]


def test_a_loop_in_a_loop_is_walked_until_a_round_leaves_what_it_found(walked: list[int]) -> None:
    clear = (isa.Barrier("vector"), FILL, isa.Barrier("vector"))
    parts = tuple(
        x for _ in range(9) for x in (*loop(TILE, 7), Call(Body((AGAIN, *clear, STORED))))
    )
    program = Program("kernel", (GO, STORED, *parts, READY, AGAIN))
    assert order(program) == range(4 + 9 * (7 * len(TILE) + 5))
    # The clear comes after seven rounds, and what it leaves takes a round to fade.
    assert walked == [2, 11, 11, 5, 11, 2]


def test_programs_alike_are_walked_once(walked: list[int]) -> None:
    orders = Orders()
    for count in (4, 9, 9):
        tile = (*TILE[:5], *TILE[5:])
        program = Program("kernel", (GO, STORED, *loop(tile, count), READY, AGAIN))
        assert len(orders.of(program)) == 4 + 11 * count
    assert walked == [2, 11, 11, 2]


def test_a_loop_that_keeps_flags_up_is_walked_in_full(walked: list[int]) -> None:
    tile = (*TILE, isa.SetFlag("vector", "mte3", 5))
    program = Program("kernel", (GO, STORED, *loop(tile, 5), READY, AGAIN))
    with pytest.raises(FlagError, match=r"but #25 vector: set_flag vector->mte3 5 comes before a "):
        order(program)
    # The second round finds the flag up; then in full, with its own numbers.
    assert walked == [2, 12, 12, 4 + 5 * 12]


def test_a_loop_over_memory_that_it_also_reads_is_walked_in_full(walked: list[int]) -> None:
    # Round 3 reads what round 2 stores, and no two rounds before do the like.
    tile = (LOAD, isa.Store(isa.Global("y", 0, 128), isa.Local("ub", 512, UINT8, 128)))
    apart = loop(tile, 4)
    back = isa.Load(isa.Local("ub", 1024, UINT8, 128), isa.Global("y", 256, 128))
    with pytest.raises(RaceError, match=r"not #5 mte3: .* and #8 mte2: .* at gm y \[256:384\]; "):
        order(Program("kernel", (*apart, back)))
    assert walked == [9]


def test_memory_read_again_after_a_barrier_is_walked_in_part(walked: list[int]) -> None:
    loops = (*loop(TILE, 20), Call(Body((isa.Barrier(),))), *loop((READY, BACK, GO), 9))
    program = Program("kernel", (GO, STORED, *loops, READY, AGAIN))
    assert order(program) == range(2 + 20 * len(TILE) + 1 + 9 * 3 + 2)
    assert walked == [2, 11, 11, 1, 3, 3, 2]


BACK_IN, BACK_OUT = isa.SetFlag("mte3", "mte2", 0), isa.WaitFlag("mte3", "mte2", 0)


def kept(tile: tuple[isa.MicroOp, ...], count: int) -> tuple[Call, ...]:
    """The same as `loop`, with y in one place."""
    body = Body(tile)
    return tuple(Call(body, {"x": 512 * turn}) for turn in range(count))


def test_a_loop_that_reads_its_one_output_is_walked_in_part(walked: list[int]) -> None:
    tile = (BACK_OUT, BACK, *TILE, BACK_IN)
    program = Program("kernel", (GO, STORED, BACK_IN, *kept(tile, 50), READY, AGAIN, BACK_OUT))
    assert order(program) == range(6 + 50 * len(tile))
    assert walked == [3, *2 * [len(tile)], 3]


def test_a_loop_that_reads_what_may_not_be_written_yet_races() -> None:
    program = Program("kernel", (GO, STORED, *kept((*TILE, BACK), 50), READY, AGAIN))
    message = (
        "kernel: micro-ops that touch the same bytes must be ordered by a flag, not #11 mte3: "
        "store y+0 128 B <- ub[1024:1152] uint8 and #13 mte2: load ub[512:640] uint8 <- y+0 128 B "
        "at gm y [0:128]; set a flag from mte3 to mte2 after the first and await it before the "
        "second"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(message)}$"):
        order(program)


def test_what_the_scalar_unit_only_reads_of_constants_leaves_no_state(walked: list[int]) -> None:
    entry = isa.ScalarLoadGlobal("block", isa.Global("table", 0, 4), INT32)
    tile = (entry, *TILE)
    program = Program("kernel", (GO, STORED, *loop(tile, 50), READY, AGAIN, isa.Barrier()))
    assert order(program) == range(5 + 50 * len(tile))
    assert walked == [2, *2 * [len(tile)], 3]


def test_a_race_between_rounds_is_named_by_its_own_numbers() -> None:
    tile = tuple(op for op in TILE if op is not READY and op is not GO)
    program = Program("kernel", (STORED, *loop(tile, 30)))
    text = (
        f"kernel: micro-ops that touch the same bytes must be ordered by a flag, not "
        f"#5 vector: {CAST} and #10 mte2: load ub[0:256] uint8 <- x+512 256 B at ub[0:256]; "
        f"set a flag from vector to mte2 after the first and await it before the second"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(text)}$"):
        order(program)


def test_a_barrier_of_the_vector_pipe_is_none_for_other_pipes() -> None:
    filled, stored = Body((FILL, isa.Barrier("vector"))), Body((STORE,))
    program = Program("kernel", (Call(filled), Call(stored)))
    text = (
        f"kernel: micro-ops that touch the same bytes must be ordered by a flag, not #0 vector: "
        f"{FILL} and #2 mte3: {STORE} at ub[1024:1152]; set a flag from vector to mte3 after the "
        f"first and await it before the second"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(text)}$"):
        order(program)


def test_a_loop_out_of_program_order_is_ordered_in_full() -> None:
    tile = (USE, isa.Barrier("vector"), FILL, NEXT, FILLED)
    copies, fills = [3, 4, 8, 9, 13, 14], [0, 1, 2, 5, 6, 7, 10, 11, 12]
    assert list(order(Program("kernel", loop(tile, 3)))) == copies + fills


chunks = st.sampled_from(
    [
        (LOAD,),
        (NEXT,),
        (CAST,),
        (FILL,),
        (STORE,),
        (FILLED, USE),
        (DONE, OUT),
        (READY,),
        (GO,),
        (READY, LOAD, FILLED, USE),
        (AGAIN, CAST, DONE, GO),
        (OUT, STORE, STORED),
        (OUT,),
        (AGAIN, FILL, DONE, OUT),
        (isa.Barrier("vector"),),
        (isa.Barrier(),),
        (BACK,),
    ]
)


def bodies(least: int, most: int) -> st.SearchStrategy[tuple[isa.MicroOp, ...]]:
    some = st.lists(chunks, min_size=least, max_size=most)
    return some.map(lambda parts: tuple(op for part in parts for op in part))


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[isa.MicroOp, ...]:
    """A tile of three stages with flags, now and then one micro-op left out or two swapped."""
    ops = list(
        draw(st.sampled_from([TILE, (READY, NEXT, LOAD, FILLED, USE, AGAIN, CAST, *TILE[6:])]))
    )
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(ops) - 2))
        if draw(st.booleans()):
            ops[at], ops[at + 1] = ops[at + 1], ops[at]
        else:
            del ops[at]
    return tuple(ops)


tiles = st.one_of(bodies(1, 5), pipelines(), st.just(TILE))


@given(
    bodies(0, 3),
    st.lists(tiles, min_size=1, max_size=2),
    st.integers(3, 5),
    bodies(0, 3),
    st.integers(0, 1),
)
@draws(600)
def test_calls_get_the_verdict_of_what_they_do(
    before: tuple[isa.MicroOp, ...],
    loops: list[tuple[isa.MicroOp, ...]],
    count: int,
    after: tuple[isa.MicroOp, ...],
    up: int,
) -> None:
    known = [Body(tile) for tile in loops]
    parts = [Call(body, {"x": 512 * turn}) for turn in range(count) for body in known]
    program = Program("kernel", (*[GO, STORED] * up, *before, *parts, *after, *[READY, AGAIN] * up))
    assert verdict(program) == verdict(Program("kernel", program.ops))


# ---- additions to global memory ----


def add(dtype: object = FLOAT32) -> isa.Store:
    return isa.Store(isa.Global("y", 0, 64), isa.Local("ub", 0, FLOAT32, 16), atomic=dtype)  # type: ignore[arg-type]


SUM = isa.Fixpipe(
    isa.Global("y", 0, 64, 1), isa.Local("l0c", 0, FLOAT32, 256), 1, 16, 16, FLOAT32, atomic=True
)  # fmt: skip


def test_additions_of_two_pipes_do_not_race() -> None:
    assert list(order(Program("kernel", (SUM, add())))) == [0, 1]


@pytest.mark.parametrize("store", [add(None), add(FLOAT16)], ids=str)
def test_an_addition_and_another_write_race(store: isa.Store) -> None:
    for ops in ((SUM, store), (store, add(), SUM)):
        with pytest.raises(RaceError, match=r" at gm y \[0:64\]; "):
            order(Program("kernel", ops))
