"""What is found of a launch at once is what is found of its calls one by one, and said by them.

Programs of operators are broken in one place: a flag or a barrier is left out, an address moves, an
operand grows. With and without what looks at all rows together, the same is said of them, or
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tiny import fewer_cores

from npusim import TensorSpec, chip, ops
from npusim.check import bounds, byte_ranges
from npusim.check.bounds import BoundsError, check_inside
from npusim.check.hazards import HazardError, rounds
from npusim.check.hazards.envelopes import Envelopes
from npusim.check.rules import RuleError
from npusim.data.dtypes import FLOAT32
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import Barrier, Binary, Local, MicroOp, SetFlag, WaitFlag, moved
from npusim.kernel.program import Block, Body, Call, Program
from npusim.kernel.table import LaunchTable, MicroOps, TabledProgram

SPLIT = fewer_cores("ascend910b2", aic=3, aiv=4)
CALLS: dict[str, dict[str, Any]] = {
    "npu_swiglu": {"x": TensorSpec((190, 3000), "float16")},
    "matmul": {"x1": TensorSpec((700, 300), "float16"), "x2": TensorSpec((300, 900), "float16")},
    "npu_rms_norm": {"x": TensorSpec((90, 900), "float16"), "gamma": TensorSpec((900,), "float16")},
    "npu_dynamic_quant": {"x": TensorSpec((70, 1000), "float16")},
}


def launch_of(op: str) -> tuple[tuple[Block, ...], list[GlobalTensor]]:
    operator = ops.load(op)
    problem = operator.check(SPLIT, **CALLS[op])
    blocks = operator.build(SPLIT, problem, operator.tile(SPLIT, problem))
    sizes = {x.name: x.spec.nbytes for x in problem.inputs}
    sizes |= {name: spec.nbytes for name, spec in problem.outputs.items()}
    names = {bound.tensor for block in blocks for bound in block.bindings.values()}
    return blocks, [GlobalTensor(name, sizes.get(name, 2**20)) for name in sorted(names)]


def with_body(program: Program, old: Body, new: Body) -> Program:
    """*program* with another body in place of *old*."""
    if isinstance(program, TabledProgram):
        bodies = tuple(new if body is old else body for body in program.table.bodies)
        table = replace(program.table, bodies=bodies)
        return TabledProgram(program.name, table, program.claimed_bytes, program.queues)
    parts = tuple(
        replace(part, body=new) if isinstance(part, Call) and part.body is old else part
        for part in program.parts
    )
    return replace(program, parts=parts)


def broken(ops: tuple[MicroOp, ...], rng: random.Random) -> tuple[MicroOp, ...]:
    """*ops* with one of them gone, moved in global memory, or with more in its buffers."""
    what, order = rng.random(), [x for x, op in enumerate(ops) if isinstance(op, ORDERS)]
    if what < 0.5 and order:
        at = rng.choice(order)
        return ops[:at] + ops[at + 1 :]
    at = rng.randrange(len(ops))
    op = ops[at]
    if what < 0.75 or not isinstance(op, Binary):
        op = moved(op, rng.choice((-(2**21), -64, 32, 2**21)))
    else:
        op = replace(op, dst=replace(op.dst, offset_bytes=op.dst.offset_bytes + 32))
    return (*ops[:at], op, *ops[at + 1 :])


ORDERS = SetFlag, WaitFlag, Barrier


def mutants(blocks: tuple[Block, ...], count: int) -> Iterator[tuple[Block, ...]]:
    """*blocks*, broken in one body, of all programs or of one."""
    rng = random.Random(0)
    leaves = sorted(
        {body for block in blocks for body in block.program.bodies if not body.calls and len(body)},
        key=lambda body: (len(body), str(body.ops)),
    )
    for _ in range(count):
        old = rng.choice(leaves)
        new = Body(broken(old.ops, rng), old.part_lines)
        programs = list(dict.fromkeys(x.program for x in blocks if old in x.program.bodies))
        chosen = programs if rng.random() < 0.5 else [rng.choice(programs)]
        others = {program: with_body(program, old, new) for program in chosen}
        yield tuple(replace(x, program=others.get(x.program, x.program)) for x in blocks)


def said(blocks: tuple[Block, ...], tensors: list[GlobalTensor], spec: DeviceSpec) -> str:
    try:
        orders = chip.verify(blocks, spec, {tensor.name: tensor.nbytes for tensor in tensors[-1:]})
        check_inside(blocks, tensors)
    except (BoundsError, HazardError, RuleError) as error:
        return f"{type(error).__name__}: {error}"
    found = [orders[block.program] for block in blocks]
    return f"{[x if isinstance(x, range) else [*x] for x in found]}"


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let nothing be found at once, nor of what others do the like."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_are_inside", lambda *_: False)
        patch.setattr(byte_ranges.Search, "is_simple", lambda *_: False)
        patch.setattr(rounds.Orders, "_passes_with_most", lambda *_: False)
        patch.setattr(LaunchTable, "sequences", lambda self: [*range(self.cores)])
        yield


@pytest.mark.parametrize("op", CALLS)
def test_a_fast_no_is_never_a_message(op: str) -> None:
    blocks, tensors = launch_of(op)
    wrong = 0
    for mutant in (blocks, *mutants(blocks, 40)):
        found = said(mutant, tensors, SPLIT)
        with one_by_one():
            assert said(mutant, tensors, SPLIT) == found
        wrong += "Error" in found
    assert 10 < wrong < 41


@pytest.mark.parametrize("op", CALLS)
def test_what_passes_is_found_at_once(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise AssertionError("one by one")

    blocks, tensors = launch_of(op)
    monkeypatch.setattr(bounds, "_of_program", fails)
    monkeypatch.setattr(byte_ranges, "overlap", fails)
    monkeypatch.setattr(rounds, "walk", fails)
    said(blocks, tensors, SPLIT)


def test_a_table_says_what_its_objects_say() -> None:
    blocks, tensors = launch_of("npu_swiglu")
    for mutant in (blocks, *mutants(blocks, 20)):
        programs = {x.program: x.program for x in mutant}
        for program in programs:
            plain = Program(program.name, program.calls, program.claimed_bytes, (), program.queues)
            programs[program] = plain
        plain_blocks = tuple(replace(x, program=programs[x.program]) for x in mutant)
        assert said(plain_blocks, tensors, SPLIT) == said(mutant, tensors, SPLIT)


# ---- bodies that stand for others ----


def add(count: int, start_bytes: int = 0) -> Binary:
    a = Local("ub", start_bytes, FLOAT32, count)
    return Binary("add", a, a, Local("ub", 4096, FLOAT32, 64))


def test_bodies_that_differ_in_bytes_alone_are_one_with_the_most() -> None:
    small, large = Body((add(8), Barrier("vector"))), Body((add(64), Barrier("vector")))
    other, swapped = Body((add(8),)), Body((Barrier("vector"), add(8)))
    nest = Body((Call(small), Call(other)))
    found = Envelopes.of((small, large, nest, swapped), MicroOps())
    assert found.standing == {small: small, large: small, other: other, swapped: swapped}
    areas = [(area.start, area.end) for area, *_ in found.touches[id(small.parts[0])].areas]
    assert areas == [(0, 256), (4096, 4352), (0, 256)]


def test_an_object_at_two_places_touches_the_most_of_both() -> None:
    same = add(8)
    found = Envelopes.of((Body((same, same)), Body((add(8), add(16, 512)))), MicroOps())
    areas = [(area.start, area.end) for area, *_ in found.touches[id(same)].areas]
    assert areas[0] == (0, 576)


def test_a_race_of_the_most_alone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first writes what the second of the other body writes, but never in one body.
    wait = Barrier("vector")
    bodies = Body((add(8), add(8, 32), wait)), Body((add(8, 64), add(8, 96), wait))
    program = Program("kernel", tuple(map(Call, bodies)))
    monkeypatch.setattr(rounds, "walk", lambda *_: pytest.fail("walked in full"))
    orders = rounds.Orders.of_launch(LaunchTable.of((Block(0, "aiv", program, {}),)))
    assert orders.of(program) == range(6)
    passes = rounds.Orders._passes_with_most
    pipes = frozenset({"vector"})
    assert not passes(orders, program, pipes)
    alone = Program("kernel", program.parts[:1])
    orders = rounds.Orders.of_launch(LaunchTable.of((Block(0, "aiv", alone, {}),)))
    assert passes(orders, alone, pipes)
