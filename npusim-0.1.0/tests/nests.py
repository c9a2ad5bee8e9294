"""The same launch with its micro-ops in calls of bodies, some of which make calls of their own."""

from __future__ import annotations

import random
from dataclasses import replace

from npusim.isa import MicroOp, global_operand
from npusim.isa.micro_op import moved
from npusim.kernel.program import Block, Body, Call, Program

__all__ = ["flat", "nested"]

Part = MicroOp | Call
STEPS = (-64, 0, 64, 256)


def flat(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """*blocks* without calls; those that share a program still do."""
    programs = {x.program: Program(x.program.name, x.program.ops) for x in blocks}
    return tuple(replace(block, program=programs[block.program]) for block in blocks)


def nested(blocks: tuple[Block, ...], seed: int) -> tuple[Block, ...]:
    """*blocks*, whose micro-ops lie in up to three levels of calls, equal pieces in one body."""
    rng = random.Random(seed)
    bodies: dict[object, Body] = {}
    programs: dict[Program, Program] = {}
    for block in blocks:
        if block.program not in programs:
            parts: tuple[Part, ...] = block.program.ops
            for _ in range(rng.randint(1, 3)):
                parts = _grouped(parts, rng, bodies)
            programs[block.program] = Program(block.program.name, parts)
    return tuple(replace(block, program=programs[block.program]) for block in blocks)


def _grouped(
    parts: tuple[Part, ...], rng: random.Random, bodies: dict[object, Body]
) -> tuple[Part, ...]:
    """*parts* cut into pieces, most of which become calls."""
    length, found, start = rng.choice((2, 3, 5, 9)), list[Part](), 0
    while start < len(parts):
        piece = parts[start : start + (length if rng.random() < 0.8 else rng.randint(1, 9))]
        start += len(piece)
        if rng.random() < 0.2:
            found += piece
            continue
        # The body begins where its first access of x begins, so that turns of a loop share it.
        first = next((x for part in piece for x in [_offset(part)] if x is not None), 0)
        steps = {"x": first, "y": rng.choice(STEPS), "w": rng.choice(STEPS)}
        inner = tuple(_moved(part, steps) for part in piece)
        key = tuple((id(x.body), *x.shifts.items()) if isinstance(x, Call) else x for x in inner)
        found.append(Call(bodies.setdefault(key, Body(inner)), steps))
    return tuple(found)


def _offset(part: Part) -> int | None:
    """Where *part* touches x."""
    if isinstance(part, Call):
        return part.shifts["x"]
    place = global_operand(part)
    return place.offset_bytes if place is not None and place.name == "x" else None


def _moved(part: Part, steps: dict[str, int]) -> Part:
    """*part* with its names so many bytes further back."""
    if isinstance(part, Call):
        return Call(part.body, {x: part.shifts[x] - step for x, step in steps.items()})
    place = global_operand(part)
    return part if place is None else moved(part, -steps.get(place.name, 0))
