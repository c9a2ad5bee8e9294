"""Micro-ops of mte2 and mte3: copies between global memory and the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.isa.operands import Global, Local
from npusim.spec import Pipe

__all__ = ["Load", "Store"]


@dataclass(frozen=True, slots=True)
class Load:
    """Copy bursts from global memory, *pitch_bytes* from start to start in the buffer (DataCopy).

    A burst that is no multiple of 32 bytes is padded with zeros up to the next one (DataCopyPad).
    """

    dst: Local
    src: Global
    pitch_bytes: int = 0
    pipe: ClassVar[Pipe] = "mte2"

    def __str__(self) -> str:
        return f"load {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Store:
    """Copy bursts to global memory; the other way round of :class:`Load`."""

    dst: Global
    src: Local
    pitch_bytes: int = 0
    pipe: ClassVar[Pipe] = "mte3"

    def __str__(self) -> str:
        return f"store {self.dst} <- {self.src}"
