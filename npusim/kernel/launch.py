"""A kernel without an operator around it: blocks, and the tensors they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field

from npusim.data.tensor import TensorSpec
from npusim.kernel.program import Block

__all__ = ["Kernel"]


@dataclass(frozen=True, eq=False)
class Kernel:
    """What every core does, one block each."""

    name: str
    blocks: tuple[Block, ...]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    is_mix: bool = False
    """Whether cube and vector cores start together."""
    workspaces: dict[str, int] = field(default_factory=dict)
    """Tensors that its cores keep between them, and their bytes."""

    @property
    def block_dim(self) -> int:
        """Cores that are started; a cube core and the vector cores of its group count as one."""
        return len({block.group for block in self.blocks} if self.is_mix else self.blocks)
