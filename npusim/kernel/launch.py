"""Kernels that are launched without an operator, groups of cores, and shares of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from npusim.data.tensor import TensorSpec
from npusim.isa.fields import BYTES
from npusim.kernel.program import Binding, Block, Program

__all__ = ["Kernel", "mixed_launch", "share"]

__kernel_vocabulary__ = True

VECTOR_CORES_OF_A_GROUP = 2
"""A cube core of A2 and A3 has two vector cores beside it (asc-devkit, docs/zh/guide)."""
CORES_OF_A_GROUP = 1 + VECTOR_CORES_OF_A_GROUP


@dataclass(frozen=True, eq=False)
class Kernel:
    """What every core does, one block each."""

    name: str
    blocks: tuple[Block, ...]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    is_mix: bool = False
    """Whether cube and vector cores start together."""
    workspaces: dict[str, Annotated[int, BYTES]] = field(default_factory=dict)
    """Tensors that its cores keep between them, and their bytes."""

    @property
    def block_dim(self) -> int:
        """Cores that are started; a cube core and the vector cores of its group count as one."""
        return len({block.group for block in self.blocks} if self.is_mix else self.blocks)


def mixed_launch(
    groups: int,
    bindings: Callable[[int], dict[str, Binding]],
    cube: Callable[[int], Program],
    vector: Callable[[int, int], Program],
    vector_cores: int = VECTOR_CORES_OF_A_GROUP,
) -> tuple[Block, ...]:
    """The blocks of cube cores with their two vector cores: three a group, in this order.

    A kernel may start only one of the two *vector_cores* of each group.

    `bindings(group)` binds the names of global memory for all three, `cube(group)` is the program
    of the cube core, `vector(group, half)` that of its vector core number *half*, 0 or 1.
    """
    blocks: list[Block] = []
    for group in range(groups):
        bound = bindings(group)
        first = CORES_OF_A_GROUP * group
        blocks.append(Block(first, "aic", cube(group), bound, group))
        for half in range(vector_cores):
            blocks.append(Block(first + 1 + half, "aiv", vector(group, half), bound, group))
    return tuple(blocks)


def share(count: int, parts: int, index: int) -> range:
    """The run of *count* items that part *index* of *parts* gets; the first parts get one more.

    >>> [list(share(5, 3, index)) for index in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    each, more = divmod(count, parts)
    start = index * each + min(index, more)
    return range(start, start + each + (index < more))
