"""Cores that touch what another one writes are found, and no others."""

from __future__ import annotations

import re

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim.check import cross_core_races
from npusim.check.byte_ranges import Search
from npusim.check.hazards import CrossCoreOrder, Orders, RaceError, Recorder
from npusim.data.dtypes import UINT8
from npusim.isa import Global, Load, Local, MicroOp, Store
from npusim.kernel.program import Binding, Block, Program

UB = Local("ub", 0, UINT8, 32)


def block(core: int, base: int, *ops: MicroOp, **tensors: str) -> Block:
    names = {"x": "x", "y": "y"} | tensors
    bindings = {name: Binding(tensor, base) for name, tensor in names.items()}
    return Block(core, "aiv", Program("kernel", ops), bindings)


def load(start: int, nbytes: int, bursts: int = 1, stride: int = 0) -> Load:
    return Load(UB, Global("x", start, nbytes, bursts, stride), 32)


def store(start: int, nbytes: int, bursts: int = 1, stride: int = 0) -> Store:
    return Store(Global("y", start, nbytes, bursts, stride), UB, 32)


def check_apart(blocks: tuple[Block, ...]) -> None:
    tensors = cross_core_races.shared_tensors(blocks, Search(blocks))
    order = CrossCoreOrder(blocks, Recorder(Orders()))
    cross_core_races.check_apart(blocks, tensors, order)


def refused(cores: str, where: str, *blocks: Block) -> None:
    text = (
        f"kernel: bytes that a core writes must be its own, but cores {cores} both touch {where}; "
        f"give each core its own part, or order them by flags between cores"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(text)}$"):
        check_apart(blocks)


def test_two_cores_must_not_write_the_same_bytes() -> None:
    refused("0 and 1", "y[36:40]", block(0, 0, store(0, 40)), block(1, 32, store(4, 32)))
    check_apart((block(0, 0, store(0, 36)), block(1, 32, store(4, 32))))


def test_a_core_must_not_read_what_another_one_writes() -> None:
    same = {"x": "y"}
    refused("2 and 7", "y[60:64]", block(7, 0, store(32, 32)), block(2, 0, load(60, 32), **same))
    check_apart((block(7, 0, store(32, 32)), block(2, 0, load(64, 32), **same)))


def test_a_name_that_nobody_binds_is_left_to_the_check_of_bounds() -> None:
    stray = Load(UB, Global("nobody", 0, 32), 32)
    refused("0 and 1", "y[0:32]", block(0, 0, store(0, 32), stray), block(1, 0, store(0, 32)))
    check_apart((block(0, 0, store(0, 32), stray), block(1, 32, store(0, 32), stray)))


def test_rows_that_lie_between_each_other_are_apart() -> None:
    check_apart((block(0, 0, store(0, 32, 4, 64)), block(1, 32, store(0, 32, 4, 64))))
    refused(
        "0 and 1", "y[32:33]", block(0, 0, store(0, 33, 4, 64)), block(1, 32, store(0, 32, 4, 64))
    )


places = st.tuples(
    st.booleans(), st.integers(0, 40), st.integers(1, 8), st.integers(1, 3), st.integers(0, 20)
)


@given(
    st.lists(
        st.tuples(st.lists(places, min_size=1, max_size=3), st.integers(0, 60)),
        min_size=1,
        max_size=4,
    )
)
@draws(150)
def test_shared_bytes_race(cores: list[tuple[list[tuple[bool, int, int, int, int]], int]]) -> None:
    blocks, reads, writes = [], [], []
    for core, (pieces, base) in enumerate(cores):
        ops: list[MicroOp] = []
        touched: tuple[set[int], set[int]] = set(), set()
        for is_write, *place in pieces:
            ops.append(store(*place) if is_write else load(*place))
            start, nbytes, bursts, stride = place
            for burst in range(bursts):
                first = base + start + burst * stride
                touched[is_write].update(range(first, first + nbytes))
        blocks.append(block(core, base, *ops, x="y"))
        reads.append(touched[False])
        writes.append(touched[True])
    shared = any(
        writes[a] & (writes[b] | reads[b])
        for a in range(len(cores))
        for b in range(len(cores))
        if a != b
    )
    if shared:
        with pytest.raises(RaceError, match=r"^kernel: bytes that a core writes must be its own"):
            check_apart(tuple(blocks))
    else:
        check_apart(tuple(blocks))
