"""Random programs get the verdict of an oracle of single bytes: all faults, and no others."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from advice import advised
from random_programs import DEVICE, OUTPUTS, Fault, RandomProgram, faults, random_program

from npusim import chip, devices
from npusim.check.hazards import DeadlockError, FlagError, RaceError, order
from npusim.check.uninitialized import UnwrittenError
from npusim.isa import MicroOp
from npusim.kernel.program import Program

FOUND: dict[type[Exception], Fault] = {
    RaceError: "race",
    DeadlockError: "deadlock",
    FlagError: "flag",
    UnwrittenError: "unwritten",
}


def verdict(program: RandomProgram) -> Fault | None:
    try:
        chip.verify(program.blocks, devices.load(DEVICE), OUTPUTS)
    except tuple(FOUND) as error:
        return FOUND[type(error)]
    return None


def check(seeds: range) -> Counter[Fault | None]:
    seen: Counter[Fault | None] = Counter()
    for seed in seeds:
        program = random_program(seed)
        expected, found = faults(program), verdict(program)
        assert found in expected or (found is None and not expected), (
            f"{found}, not {sorted(expected)}: {program}"
        )
        seen[found] += 1
    return seen


def test_every_fault_is_found_and_no_right_program_is_refused() -> None:
    seen = check(range(250))
    # All verdicts are among them, many times over, or the test would say little.
    assert all(seen[fault] > 5 for fault in (None, *FOUND.values())), seen


def race_of(ops: list[MicroOp]) -> RaceError | None:
    try:
        order(Program("kernel", tuple(ops)))
    except RaceError as error:
        return error
    return None


def test_applying_race_fixes_in_turn_yields_a_valid_program() -> None:
    followed = 0
    for seed in range(200):
        program = random_program(seed)
        if len(program.blocks) > 1 or faults(program) != {"race"}:
            continue
        # Calls of one body share its micro-ops; here each is one of its own.
        ops, told = [replace(op) for op in program.blocks[0].program.ops], set()
        for event in range(100, 100 + len(ops)):
            race = race_of(ops)
            if race is None:
                break
            about = ops[int(re.findall(r"#(\d+) ", str(race))[1])]
            # One piece of advice settles all races of a micro-op with what came before it.
            assert id(about) not in told, str(race)
            told.add(id(about))
            ops = advised(race, ops, event)
        assert race_of(ops) is None
        followed += len(told)
    assert followed > 20


@pytest.mark.nightly
def test_every_fault_is_found_in_many_more() -> None:
    check(range(250, 10_000))
