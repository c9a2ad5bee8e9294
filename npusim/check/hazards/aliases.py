"""Names of global memory that a block binds to the same tensor."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from npusim.isa import global_operand, writes_global
from npusim.kernel.program import Block, Body, Program

__all__ = ["NO_ALIASES", "Aliases", "Touched", "aliases", "touched"]


@dataclass(frozen=True, slots=True)
class Aliases:
    """A block's names of global memory, where several are bound to one tensor."""

    names: tuple[tuple[str, str, int], ...] = ()
    """Name, the first name of its tensor, and its offset from that one in bytes."""

    def place(self, name: str) -> tuple[str, int]:
        """The name that represents the tensor of *name*, and the offset of *name* from it."""
        for known, first, base_bytes in self.names:
            if known == name:
                return first, base_bytes
        return name, 0

    def __str__(self) -> str:
        tensors: dict[str, list[str]] = {}
        for name, first, _ in self.names:
            tensors.setdefault(first, []).append(name)
        return ", and ".join(f"{' and '.join(names)} name one tensor" for names in tensors.values())


NO_ALIASES = Aliases()

Touched = dict[str, tuple[frozenset[str], bool]]
"""Name of global memory -> the pipes that touch it, and whether it is written."""


_TOUCHED: WeakKeyDictionary[Body, frozenset[tuple[str, str, bool]]] = WeakKeyDictionary()


def touched(program: Program) -> Touched:
    """How *program* accesses each name of global memory."""
    pipes: dict[str, set[str]] = {}
    written: set[str] = set()
    for body in program.leaves:
        if body not in _TOUCHED:
            _TOUCHED[body] = frozenset(
                (place.name, op.pipe, writes_global(op))
                for op in body
                if (place := global_operand(op)) is not None
            )
        for name, pipe, is_write in _TOUCHED[body]:
            pipes.setdefault(name, set()).add(pipe)
            if is_write:
                written.add(name)
    return {name: (frozenset(found), name in written) for name, found in pipes.items()}


def aliases(block: Block, names: Touched) -> Aliases:
    """The names of *block* by which its pipes may clash; *names* are the accesses of its program.

    Names of a tensor that is only read, or touched by one pipe alone, are left out, since each of
    them can be treated separately.
    """
    tensors: dict[str, list[str]] = {}
    for name in sorted(names):
        if name in block.bindings:
            tensors.setdefault(block.bindings[name].tensor, []).append(name)
    found: list[tuple[str, str, int]] = []
    for same in tensors.values():
        pipes = frozenset[str]().union(*(names[name][0] for name in same))
        if len(same) > 1 and len(pipes) > 1 and any(names[name][1] for name in same):
            first = block.bindings[same[0]].base_bytes
            found += [(name, same[0], block.bindings[name].base_bytes - first) for name in same]
    return Aliases(tuple(found))
