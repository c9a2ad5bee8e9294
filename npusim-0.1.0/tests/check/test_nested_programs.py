"""Bodies that make calls get the verdict of their micro-ops written out, by every check."""

from __future__ import annotations

from collections import Counter

import pytest
from nests import flat, nested
from random_programs import DEVICE, OUTPUTS, TENSORS, random_program

from npusim import chip, devices
from npusim.check import cross_core_races
from npusim.check.bounds import BoundsError, check_inside
from npusim.check.hazards import HazardError, Orders, record
from npusim.check.hazards.record import Recorder
from npusim.data.tensor import GlobalTensor
from npusim.isa import global_operand
from npusim.isa.micro_op import moved
from npusim.kernel.program import Block, Program


def verdict(blocks: tuple[Block, ...]) -> str:
    try:
        chip.verify(blocks, devices.load(DEVICE), OUTPUTS)
        check_inside(blocks, [GlobalTensor(*tensor, None) for tensor in TENSORS.items()])
    except (HazardError, BoundsError) as error:
        return str(error)
    return "right"


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [0, 200])
def test_nests_get_the_verdict_of_what_they_do(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    said: Counter[str] = Counter()
    for seed in range(first, first + 200):
        program = random_program(seed)
        wanted = verdict(flat(program.blocks))
        assert verdict(nested(program.blocks, seed)) == wanted, program
        with monkeypatch.context() as limits:
            # Every flag is one too many, and pairs of accesses come one by one.
            limits.setattr(record, "FEW_FLAGS", 0)
            limits.setattr(cross_core_races, "FEW_PAIRS", 0)
            limits.setattr(cross_core_races, "PAIRS", 1)
            assert verdict(nested(program.blocks, seed)) == wanted, program
        said[wanted] += 1
    assert 25 < said["right"] < 175


def test_nests_hold_the_micro_ops_that_went_into_them() -> None:
    for seed in range(50):
        blocks = random_program(seed).blocks
        for block, one in zip(blocks, nested(blocks, seed), strict=True):
            assert one.program.ops == block.program.ops
            assert len(one.program) == len(block.program)


def told(program: Program) -> object:
    """The flags between cores of *program*, and its accesses by what comes before and after."""
    found, called = Recorder(Orders()).record(program)
    epochs = {}
    for epoch in found.epochs:
        touched = Counter(
            str(moved(op, shifts.get(place.name, 0) + more.get(place.name, 0)))
            for call, number in epoch.touched
            for more, accesses in [called[call]]
            for shifts, ops in accesses[number]
            for op in ops
            for place in [global_operand(op)]
            if place is not None
        )
        epochs[epoch.waits, epoch.sets] = touched
    return found.flags, epochs


@pytest.mark.sample(1)
@pytest.mark.parametrize("few_flags", [0, record.FEW_FLAGS])
@pytest.mark.parametrize("first", [0, 200, 400])
def test_nests_look_alike(monkeypatch: pytest.MonkeyPatch, first: int, few_flags: int) -> None:
    monkeypatch.setattr(record, "FEW_FLAGS", few_flags)
    compared = 0
    for seed in range(first, first + 200):
        blocks = random_program(seed).blocks
        if len(blocks) == 1 or verdict(flat(blocks)) != "right":
            continue
        for one, other in zip(flat(blocks), nested(blocks, seed), strict=True):
            assert told(one.program) == told(other.program), seed
            compared += 1
    assert compared > 50
