"""Names of global memory that mean the same tensor to a block."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from npusim.isa import global_operand, writes_global
from npusim.kernel.program import Block, Body, Program

__all__ = ["NO_ALIASES", "Aliases", "Touched", "aliases", "touched"]


@dataclass(frozen=True, slots=True)
class Aliases:
    """What a block's names of global memory stand for, where several are bound to one tensor."""

    names: tuple[tuple[str, str, int], ...] = ()
    """Name, the first of the names for its tensor, and how many bytes behind that it begins."""

    def place(self, name: str) -> tuple[str, int]:
        """The name that stands for the tensor of *name*, and how many bytes *name* is behind it."""
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
    """What *program* does to each name of global memory."""
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
    """The names of *block* that its pipes may clash by, *names* being what its program touches.

    Names for one tensor that is only read, or touched by one pipe alone, are left out: one name
    each is enough for these.
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
