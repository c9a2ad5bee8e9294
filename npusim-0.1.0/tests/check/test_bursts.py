"""Rectangles of bursts: what is said of them at once holds of every byte."""

from __future__ import annotations

import random

import numpy as np
import pytest

from npusim.check.bursts import Bursts, BurstsOfBodies, are_apart, bursts_of_cores, written_out
from npusim.data.dtypes import UINT8
from npusim.isa import Global, Load, Local, global_operand
from npusim.kernel.program import Binding, Block, Body, Call, Program
from npusim.kernel.table import LaunchTable


def touched(bursts: Bursts, unit: int = 1) -> list[int]:
    """Numbers of all units that each burst of each copy touches, as often as one does."""
    starts, ends = written_out(bursts)
    return [
        unit_of
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        for unit_of in range(start // unit, -(-end // unit))
    ]


@pytest.mark.parametrize("unit", [1, 4, 32])
def test_what_is_apart_shares_no_byte(unit: int) -> None:
    rng, yes, no = random.Random(unit), 0, 0
    for _ in range(3000):
        pitch, wide = rng.choice((32, 64, 96, 40)), rng.choice((4, 8, 16, 32))
        copies = [
            (
                rng.randrange(8) * pitch + rng.choice((0, wide, 2 * wide, 3)) % pitch,
                *(rng.choice((wide, wide, 8)), pitch, rng.randint(1, 3)),
            )
            for _ in range(rng.randint(1, 5))
        ]
        bursts = np.array(copies, np.int64)
        found = touched(bursts, unit)
        is_apart = len(found) == len(set(found))
        assert is_apart or not are_apart(bursts, unit), copies
        yes, no = yes + are_apart(bursts, unit), no + (is_apart and not are_apart(bursts, unit))
    # What is apart without being plain is left to others.
    assert yes > 200
    assert no < 2500


def test_tiles_side_by_side_are_apart() -> None:
    tiles = [
        (row * 4096 + column * 512, 512, 4096, 8) for row in range(0, 64, 8) for column in range(8)
    ]
    bursts = np.array(tiles, np.int64)
    assert are_apart(bursts)
    assert are_apart(bursts, 512)
    assert not are_apart(bursts, 1024)
    assert not are_apart(np.array([*tiles, (4095, 1, 0, 1)]))


def load(name: str, offset: int, nbytes: int, bursts: int = 1, pitch: int = 0) -> Load:
    return Load(Local("ub", 0, UINT8, 4096), Global(name, offset, nbytes, bursts, pitch))


def test_the_bursts_of_all_cores_are_those_of_their_micro_ops() -> None:
    leaf = Body((load("x", 8, 4, 3, 16), load("y", 0, 8), load("x", 100, 4, 2, 4)))
    nest = Body((Call(leaf, {"x": 1000}), load("x", 0, 1)))
    programs = (
        Program("a", (Call(leaf, {"x": 10}), Call(nest, {"x": 20, "y": 30}))),
        Program("b", (Call(leaf, {"y": 7}),)),
    )
    blocks = tuple(
        Block(core, "aiv", program, {"x": Binding("t", 64 * core), "y": Binding("u")})
        for core, program in enumerate((*programs, programs[0]))
    )
    found = bursts_of_cores(LaunchTable.of(blocks), 0, BurstsOfBodies(global_operand))
    expected = [
        64 * block.core + place.offset_bytes + place.stride_bytes * burst + byte
        for block in blocks
        for op in block.program.ops
        for place in [global_operand(op)]
        if place is not None and place.name == "x"
        for burst in range(place.bursts)
        for byte in range(place.burst_bytes)
    ]
    assert sorted(touched(found)) == sorted(expected)
    # The bursts that touch each other are one.
    assert [100 + 10, 8, 0, 1] in found.tolist()
