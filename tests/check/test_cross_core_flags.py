"""Flags between cores: what they order, what they do not, and who waits for ever."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from draws import draws
from hypothesis import event, given
from hypothesis import strategies as st

from npusim import isa
from npusim.check.byte_ranges import Search
from npusim.check.cross_core_races import check_apart, shared_tensors
from npusim.check.hazards import (
    CrossCoreOrder,
    DeadlockError,
    FlagError,
    Orders,
    RaceError,
    Recorder,
)
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, DType
from npusim.devices.schema import Pipe
from npusim.kernel.program import Binding, Block, Body, Call, Program

NAMES = {"x": Binding("ws"), "y": Binding("ws")}


def block(core: int, kind: str, *parts: isa.MicroOp | Call, group: int = 0) -> Block:
    return Block(core, kind, Program("kernel", parts), NAMES, group)


def load(start: int = 0, nbytes: int = 64) -> isa.Load:
    return isa.Load(isa.Local("ub", 0, UINT8, nbytes), isa.Global("x", start, nbytes))


def store(start: int = 0, nbytes: int = 64, atomic: DType | None = None) -> isa.Store:
    return isa.Store(
        isa.Global("y", start, nbytes), isa.Local("ub", 1024, UINT8, nbytes), atomic=atomic
    )


def raise_flag(pipe: Pipe, event: int = 0, mode: isa.CrossMode = "group") -> isa.CrossCoreSetFlag:
    return isa.CrossCoreSetFlag(mode, pipe, event)


def await_flag(pipe: Pipe, event: int = 0, mode: isa.CrossMode = "group") -> isa.CrossCoreWaitFlag:
    return isa.CrossCoreWaitFlag(mode, pipe, event)


def verify(*blocks: Block) -> None:
    tensors = shared_tensors(blocks, Search(blocks))
    check_apart(blocks, tensors, CrossCoreOrder(blocks, Recorder(Orders())))


def races(cores: str, where: str, *blocks: Block) -> None:
    text = (
        f"kernel: bytes that a core writes must be its own, but cores {cores} both touch "
        f"ws[{where}]; give each core its own part, or order them by flags between cores"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(text)}$"):
        verify(*blocks)


def stuck(*blocks: Block, waits: str) -> None:
    text = (
        f"kernel: every awaited flag between cores must be set, but these wait for ever: {waits}; "
        f"set the flag on the cores that they wait for"
    )
    with pytest.raises(DeadlockError, match=f"^{re.escape(text)}$"):
        verify(*blocks)


# ---- group ----


def test_a_cube_core_awaits_both_vector_cores() -> None:
    cube = block(0, "aic", await_flag("mte2"), load(0, 128))
    left = block(1, "aiv", store(0), raise_flag("mte3"))
    verify(cube, left, block(2, "aiv", store(64), raise_flag("mte3")))
    races("0 and 2", "64:128", cube, left, block(2, "aiv", raise_flag("mte3"), store(64)))
    stuck(
        *(cube, left, block(2, "aiv", store(64))),
        waits="core 0 mte2 at #0: cross_core_wait_flag group 0",
    )


def test_vector_cores_await_their_cube_core() -> None:
    out = isa.Fixpipe(isa.Global("y", 0, 64), isa.Local("l0c", 0, FLOAT32, 256), 1, 16, 16, FLOAT32)
    cube = block(0, "aic", out, raise_flag("fixpipe"))
    reader = (await_flag("mte2"), load())
    verify(cube, block(1, "aiv", *reader), block(2, "aiv", *reader))
    races("0 and 2", "0:64", cube, block(1, "aiv", *reader), block(2, "aiv", load()))
    stuck(
        *(cube, block(1, "aiv", *reader, group=1)),
        waits="core 1 mte2 at #0: cross_core_wait_flag group 0",
    )


def test_a_flag_of_another_event_does_not_serve() -> None:
    stuck(
        block(0, "aic", await_flag("mte2", 1), load()),
        block(1, "aiv", store(), raise_flag("mte3", 2)),
        waits="core 0 mte2 at #0: cross_core_wait_flag group 1",
    )


def test_cores_that_wait_for_each_other_are_all_named() -> None:
    stuck(
        block(0, "aic", await_flag("mte2"), raise_flag("mte2", 1)),
        block(1, "aiv", await_flag("mte3", 1), raise_flag("mte3")),
        waits="core 0 mte2 at #0: cross_core_wait_flag group 0; "
        "core 1 mte3 at #0: cross_core_wait_flag group 1",
    )


def test_a_core_counts_no_further_than_it_can() -> None:
    def ahead(sets: int, waits: int = 20) -> tuple[Block, ...]:
        """A vector core that sets a flag so often before it waits for its cube core."""
        often = [raise_flag("mte3")] * sets
        rest = [await_flag("mte3", 1), raise_flag("mte3")] * (20 - sets)
        cube = [await_flag("mte2"), raise_flag("mte2", 1)] * (20 - sets)
        cube += [await_flag("mte2")] * (waits - 20 + sets)
        return block(0, "aic", *cube), block(1, "aiv", *often, *rest)

    verify(*ahead(16))
    text = (
        "kernel: a core counts up to 16 sets of a flag that it has not awaited, but #16 mte3: "
        "cross_core_set_flag group 0 on core 1 may be one more for core 0; let core 1 wait for "
        "core 0 before"
    )
    with pytest.raises(FlagError, match=f"^{re.escape(text)}$"):
        verify(*ahead(17))
    # Whether the last ones are awaited makes no difference to that.
    with pytest.raises(FlagError, match=f"^{re.escape(text)}$"):
        verify(*ahead(17, waits=3))
    # A core counts one when both that it waits for have set the flag: one of them holds it back.
    slow = ahead(16)[1]
    verify(ahead(16)[0], slow, replace(ahead(20)[1], core=2))


def test_flags_between_cores_may_stay_up() -> None:
    verify(block(0, "aic", raise_flag("mte2")), block(1, "aiv", raise_flag("mte3")))


def test_the_pipe_that_sets_must_know_of_the_access() -> None:
    cube = block(0, "aic", await_flag("mte2"), load())
    races("0 and 1", "0:64", cube, block(1, "aiv", store(), raise_flag("mte2")))
    flags = (isa.SetFlag("mte3", "mte2", 0), isa.WaitFlag("mte3", "mte2", 0))
    verify(cube, block(1, "aiv", store(), *flags, raise_flag("mte2")))
    verify(cube, block(1, "aiv", store(), isa.Barrier(), raise_flag("mte2")))
    races("0 and 1", "0:64", cube, block(1, "aiv", *flags, store(), raise_flag("mte2")))


def test_the_pipe_that_touches_must_know_of_the_wait() -> None:
    vector = block(1, "aiv", store(), raise_flag("mte3"))
    races("0 and 1", "0:64", block(0, "aic", await_flag("mte1"), load()), vector)
    flags = (isa.SetFlag("mte1", "mte2", 0), isa.WaitFlag("mte1", "mte2", 0))
    verify(block(0, "aic", await_flag("mte1"), *flags, load()), vector)


def test_what_the_scalar_unit_awaits_holds_for_all_it_issues() -> None:
    vector = block(1, "aiv", store(), raise_flag("mte3"))
    verify(block(0, "aic", await_flag("scalar"), load()), vector)
    races("0 and 1", "0:64", block(0, "aic", load(), await_flag("scalar")), vector)


def test_a_program_that_leaves_program_order_is_followed_too() -> None:
    # The load waits for a flag that is set behind it, so the scalar unit runs ahead of it.
    flags = isa.SetFlag("mte3", "mte2", 0), isa.WaitFlag("mte3", "mte2", 0)
    vector = block(1, "aiv", store(), raise_flag("mte3"))
    verify(block(0, "aic", flags[1], await_flag("mte2"), load(), flags[0]), vector)
    late = block(0, "aic", flags[1], load(), await_flag("scalar"), flags[0])
    races("0 and 1", "0:64", late, vector)


def test_a_ring_is_filled_again_only_after_it_was_read() -> None:
    def fill(back: bool) -> Body:
        return Body((*[await_flag("mte3", 1)] * back, store(), raise_flag("mte3")))

    read = Call(Body((await_flag("mte2"), load(), raise_flag("mte2", 1))), {"x": 0})
    cube = block(0, "aic", *[read] * 6)
    slots = [Call(fill(turn >= 2), {"y": 64 * (turn % 2)}) for turn in range(6)]
    reads = [Call(read.body, {"x": 64 * (turn % 2)}) for turn in range(6)]
    verify(block(0, "aic", *reads), block(1, "aiv", *slots))
    early = [Call(fill(turn >= 3), {"y": 64 * (turn % 2)}) for turn in range(6)]
    races("0 and 1", "0:64", block(0, "aic", *reads), block(1, "aiv", *early))
    races("0 and 1", "0:64", cube, block(1, "aiv", *[Call(fill(turn >= 2)) for turn in range(6)]))


def test_order_goes_through_other_cores() -> None:
    cube = block(0, "aic", await_flag("mte2"), raise_flag("mte2", 1))
    writer = block(1, "aiv", store(), raise_flag("mte3"))
    reader = (raise_flag("mte2"), await_flag("mte2", 1), load())
    verify(cube, writer, block(2, "aiv", *reader))
    races("1 and 2", "0:64", cube, writer, block(2, "aiv", reader[0], load(), reader[1]))


# ---- all ----


def test_all_cores_of_a_kind_wait_for_each_other() -> None:
    flags = raise_flag("mte3", 3, "all"), await_flag("mte2", 3, "all")
    blocks = [block(core, "aiv", store(64 * core), *flags, load(0, 192)) for core in range(3)]
    verify(block(9, "aic", load(1024)), *blocks)
    early = block(2, "aiv", flags[0], store(128), flags[1], load(0, 192))
    races("0 and 2", "128:192", *blocks[:2], early)
    idle = block(2, "aiv", store(128))
    waits = "; ".join(f"core {core} mte2 at #2: cross_core_wait_flag all 3" for core in (0, 1))
    stuck(*blocks[:2], idle, waits=waits)


def test_a_core_knows_its_own_work_after_all_have_met() -> None:
    flags = raise_flag("mte3", 3, "all"), await_flag("mte2", 3, "all")
    back = isa.Load(isa.Local("ub", 0, UINT8, 64), isa.Global("y", 0, 64))
    verify(block(0, "aiv", store(), *flags, back))
    with pytest.raises(RaceError, match=r"^kernel: micro-ops .* not #1 mte3: .* and #3 mte2: "):
        verify(block(0, "aiv", flags[0], store(), flags[1], back))
    with pytest.raises(DeadlockError, match=r"mte2 at #1: cross_core_wait_flag all 3; "):
        verify(block(0, "aiv", store(), flags[1], back))


# ---- pair ----


def test_the_vector_cores_of_a_cube_core_wait_for_each_other() -> None:
    flags = raise_flag("mte3", 3, "pair"), await_flag("mte2", 3, "pair")
    blocks = [
        block(
            1 + core, "aiv", store(64 * core), *flags, load(128 * (core // 2), 128), group=core // 2
        )
        for core in range(4)
    ]
    verify(*blocks)
    early = block(4, "aiv", flags[0], store(192), flags[1], load(128, 128), group=1)
    races("3 and 4", "192:256", *blocks[:3], early)
    idle = block(4, "aiv", store(192), group=1)
    stuck(*blocks[:3], idle, waits="core 3 mte2 at #2: cross_core_wait_flag pair 3")
    beyond = block(2, "aiv", store(64), *flags, load(192, 64), group=0)
    races("2 and 4", "192:256", blocks[0], beyond, *blocks[2:])


# ---- additions ----


def test_cores_may_add_to_the_same_bytes_in_one_type() -> None:
    adds = [block(core, "aiv", store(atomic=FLOAT32)) for core in range(2)]
    verify(*adds)
    races("1 and 2", "0:64", adds[1], block(2, "aiv", store(atomic=FLOAT16)))
    races("1 and 2", "0:64", adds[1], block(2, "aiv", store()))
    races("1 and 2", "0:64", adds[1], block(2, "aiv", load()))


# ---- whatever comes ----

VECTOR_PIPES: tuple[Pipe, ...] = ("scalar", "mte2", "mte3")
micro_ops = st.one_of(
    st.builds(load, st.sampled_from([0, 64])),
    st.builds(store, st.sampled_from([0, 64]), st.just(64), st.sampled_from([None, None, FLOAT32])),
    st.builds(raise_flag, st.sampled_from(VECTOR_PIPES), st.just(0), st.just("group")),
    st.builds(await_flag, st.sampled_from(VECTOR_PIPES), st.just(0), st.just("group")),
)
PAIR = (raise_flag("mte3", 2, "pair"), await_flag("mte3", 2, "pair"))
"""What both vector cores meet by; the cube core has none."""
syncs = st.sampled_from(
    [
        (isa.SetFlag("mte3", "mte2", 0), isa.WaitFlag("mte3", "mte2", 0)),
        (isa.SetFlag("mte2", "mte3", 0), isa.WaitFlag("mte2", "mte3", 0)),
        (isa.Barrier(),),
        (raise_flag("mte3", 1, "all"), await_flag("mte3", 1, "all")),
    ]
)


def programs_of(parts: st.SearchStrategy[tuple[isa.MicroOp, ...]]) -> st.SearchStrategy[Any]:
    return st.lists(parts, min_size=1, max_size=6).map(
        lambda found: tuple(op for part in found for op in part)
    )


parts = st.one_of(micro_ops.map(lambda op: (op,)), syncs)
programs = programs_of(parts)
vector_programs = programs_of(st.one_of(parts, st.just(PAIR), st.just(PAIR[:1])))
Node = tuple[int, int]


def edges(blocks: list[Block]) -> tuple[dict[Node, set[Node]], set[Node]]:
    """Each micro-op's direct predecessors, and the waits that nobody serves."""
    before: dict[Node, set[Node]] = defaultdict(set)
    unserved: set[Node] = set()
    turns: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for number, core in enumerate(blocks):
        ops = core.program.ops
        for index, op in enumerate(ops):
            node = number, index
            same = [i for i in range(index) if ops[i].pipe in (op.pipe, "scalar")]
            before[node] |= {(number, i) for i in same}
            if isinstance(op, isa.Barrier):
                before[node] |= {(number, i) for i in range(index)}
            match op:
                case isa.SetFlag() | isa.WaitFlag():
                    turns[number, type(op), op.src, op.dst].append(node)
                case isa.CrossCoreSetFlag() | isa.CrossCoreWaitFlag():
                    turns[number, type(op), op.mode, op.event].append(node)
    for key, nodes in list(turns.items()):
        number, kind, *flag = key
        if kind is isa.WaitFlag:
            for node, source in zip(nodes, turns[number, isa.SetFlag, *flag], strict=True):
                before[node].add(source)
        if kind is isa.CrossCoreWaitFlag:
            me = blocks[number]
            for turn, node in enumerate(nodes):
                # All are of one group.
                like = flag[0] != "group"
                for other, core in enumerate(blocks):
                    if (core.kind == me.kind) == like:
                        sets = turns.get((other, isa.CrossCoreSetFlag, *flag), [])
                        if turn < len(sets):
                            before[node].add(sets[turn])
                        else:
                            unserved.add(node)
    return before, unserved


def expected(blocks: list[Block]) -> str:
    """deadlock, race or fine, by the transitive closure of what comes before what."""
    before, unserved = edges(blocks)
    known: dict[Node, set[Node]] = {}
    left = [(a, i) for a, core in enumerate(blocks) for i in range(len(core.program.ops))]
    while True:
        ready = [x for x in left if x not in unserved and before[x] <= set(known)]
        if not ready:
            break
        for node in ready:
            known[node] = set().union(before[node], *(known[x] for x in before[node]))
        left = [x for x in left if x not in known]
    if left:
        return "deadlock"
    places = [
        (node, op, op.src if isinstance(op, isa.Load) else op.dst)
        for node in known
        for op in [blocks[node[0]].program.ops[node[1]]]
        if isinstance(op, isa.Load | isa.Store)
    ]
    for a, first, x in places:
        for b, second, y in places:
            writes = isinstance(first, isa.Store) or isinstance(second, isa.Store)
            adds = getattr(first, "atomic", None) and getattr(second, "atomic", None)
            shared = a[0] < b[0] and x.offset_bytes == y.offset_bytes
            if shared and writes and not adds and a not in known[b] and b not in known[a]:
                return "race"
    return "fine"


@given(programs, vector_programs, vector_programs)
@draws(400)
def test_verdicts_are_those_of_the_closure(
    a: tuple[isa.MicroOp, ...], b: tuple[isa.MicroOp, ...], c: tuple[isa.MicroOp, ...]
) -> None:
    kinds = ("aic", "aiv", "aiv")
    blocks = [block(core, kinds[core], *ops) for core, ops in enumerate((a, b, c))]
    try:
        verify(*blocks)
        found = "fine"
    except RaceError:
        found = "race"
    except DeadlockError:
        found = "deadlock"
    event(found)
    assert found == expected(blocks)
