"""Selects the blocks of a launch that are computed together, as lanes of one array.

Blocks that run the same bodies in the same order differ only in the offsets of their global memory
names. They synchronise only at their end, or at a flag between cores that makes all of them wait,
and the checks have shown that no block accesses what another writes without such a flag. So each
micro-op may be computed for all of them at once: each block has its own buffers and registers, and
reads from global memory what it would read alone.

There are three exceptions. Atomic additions round, so their order matters: a block with one runs
alone, and if its cores synchronise, all blocks do. A matrix of the cube is already one call of
numpy, and is stored differently (``matrices``). And where a core may trap, the message must name
the first in block order: batches that synchronise would have to wait for one that stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npusim.data.integers import ceil_div
from npusim.kernel.program import Block, Call, Program
from npusim.values.facts import Facts, facts_of

__all__ = ["OPERAND_BYTES", "Batch", "batches"]

Batch = tuple[Block, ...]
"""Blocks that are computed together, in launch order; a single block is a batch too."""

OPERAND_BYTES = 1 << 20
"""Largest operand of a batch: two of them, one read and one written, stay in the second-level
cache of current processors, which is faster than fewer calls of numpy (measured)."""


def batches(blocks: Sequence[Block], calls: Mapping[Program, tuple[Call, ...]]) -> list[Batch]:
    """Group *blocks* into batches, ordered by the first block of each.

    *calls* has the calls of each program, in an order in which they may be computed.
    """
    facts = [facts_of(body) for body in {call.body for each in calls.values() for call in each}]
    meets, traps = any(each.meets for each in facts), any(each.traps for each in facts)
    if meets and (traps or any(each.adds for each in facts)):
        return [(block,) for block in blocks]
    known = {program: [facts_of(call.body) for call in calls[program]] for program in calls}
    groups: dict[object, list[int]] = {}
    for index, block in enumerate(blocks):
        key = _key(block, calls[block.program], known[block.program])
        groups.setdefault(key, []).append(index)
    cut = []
    for group in groups.values():
        widest = max((each.width for each in known[blocks[group[0]].program]), default=0)
        most = max(1, OPERAND_BYTES // max(1, widest))
        # As few batches as possible, with about equal numbers of lanes.
        lanes = ceil_div(len(group), ceil_div(len(group), most))
        cut += [group[first : first + lanes] for first in range(0, len(group), lanes)]
    return [tuple(blocks[index] for index in group) for group in sorted(cut)]


def _key(block: Block, calls: tuple[Call, ...], facts: Sequence[Facts]) -> tuple[object, ...]:
    """The key that blocks of a batch share; a block that must run alone has a unique one."""
    if any(each.is_alone for each in facts):
        return (block,)
    bodies = tuple(call.body for call in calls)
    return block.kind, bodies, tuple((name, bound.tensor) for name, bound in block.bindings.items())
