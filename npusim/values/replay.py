"""A launch whose values are computed repeatedly, each time on other tensors.

A small launch takes less time than finding out which of its blocks can be joined, where their names
of global memory begin and whether flags match. All of that is done once here; what remains is the
micro-ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from npusim.data.dtypes import Overflow
from npusim.devices.schema import DeviceSpec
from npusim.isa import MicroOp
from npusim.kernel.program import Block, Program
from npusim.values.buffers import Buffers
from npusim.values.facts import Facts, facts_of
from npusim.values.lanes import batches
from npusim.values.matrices import Panels
from npusim.values.play import bases_of, moved, ordered
from npusim.values.runs import Run
from npusim.values.semantics import Memory, State, run
from npusim.values.semantics.state import Bytes

__all__ = ["MOST_BLOCKS", "Replay"]

MOST_BLOCKS = 8
"""Most blocks of a small launch; larger ones are analysed in each call."""


class _Name(NamedTuple):
    """The binding of a name in a step, like `Memory` without the bytes."""

    name: str
    tensor: str
    is_constant: bool
    bases: Sequence[int]


class _Step(NamedTuple):
    """One call for each block of a batch."""

    names: tuple[_Name, ...]
    ops: Sequence[MicroOp | Run]


class Replay:
    """The values of *blocks*, vector cores that do not synchronise; safe for several threads."""

    def __init__(
        self,
        blocks: tuple[Block, ...],
        spec: DeviceSpec,
        orders: Mapping[Program, Sequence[int]],
    ) -> None:
        calls = {block.program: ordered(block.program, orders[block.program]) for block in blocks}
        facts = {call.body: facts_of(call.body) for each in calls.values() for call in each}
        written = {
            block.bindings[name].tensor
            for block in blocks
            for call in calls[block.program]
            for name in facts[call.body].stored
        }
        self._overflow: Overflow = spec.half_overflow
        self._batches = []
        for batch in batches(blocks, calls):
            lanes = len(batch) if len(batch) > 1 else None
            steps = []
            for together in zip(*(calls[block.program] for block in batch), strict=True):
                names = tuple(
                    _Name(
                        name,
                        bound.tensor,
                        bound.tensor not in written,
                        moved(bases_of(batch, name), name, together),
                    )
                    for name, bound in batch[0].bindings.items()
                )
                (ops,) = facts[together[0].body].pieces
                assert isinstance(ops, list)
                if ops:
                    steps.append(_Step(names, ops))
            self._batches.append((Buffers(spec.cores[batch[0].kind], lanes=lanes), steps))
        self._panels, self._lock = Panels(), Lock()

    @classmethod
    def of(
        cls,
        blocks: tuple[Block, ...],
        spec: DeviceSpec,
        orders: Mapping[Program, Sequence[int]],
    ) -> Replay | None:
        """None if the launch is not small, or its blocks synchronise, trap or use the cube."""
        bodies = {body for block in blocks for body in block.program.bodies}
        if len(blocks) > MOST_BLOCKS or any(map(_is_more, map(facts_of, bodies))):
            return None
        return cls(blocks, spec, orders)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of its buffers."""
        return sum(buffers.nbytes for buffers, _ in self._batches)

    def run(self, data: Mapping[str, Bytes]) -> None:
        """Compute all blocks on *data*, the bytes of each tensor."""
        with self._lock:
            for buffers, steps in self._batches:
                buffers.reset()
                state = State(buffers, {}, self._overflow, panels=self._panels)
                for names, ops in steps:
                    state.memories = {
                        name: Memory(data[tensor], bases[0], is_constant, False, bases)
                        for name, tensor, is_constant, bases in names
                    }
                    run(ops, state)


def _is_more(facts: Facts) -> bool:
    return facts.is_alone or facts.meets or facts.traps
