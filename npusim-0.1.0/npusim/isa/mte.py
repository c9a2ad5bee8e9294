"""Micro-ops of mte2 and mte3: copies between global memory and the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from npusim.data.dtypes import UINT8, DType
from npusim.data.integers import align_up
from npusim.devices.schema import Pipe
from npusim.isa.fields import BYTES
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import BLOCK_BYTES, Global, Local
from npusim.isa.work import Transfer, Work

__all__ = ["Load", "Store"]


@dataclass(frozen=True, slots=True)
class Load(MicroOp):
    """Copy bursts from global memory, *pitch_bytes* from start to start in the buffer (DataCopy).

    A burst that is no multiple of 32 bytes is padded with zeros up to the next one (DataCopyPad).
    *dst* names all that is written but the padding of the last burst.
    """

    dst: Local
    src: Global
    pitch_bytes: Annotated[int, BYTES] = 0
    pipe: ClassVar[Pipe] = "mte2"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", "global"),
        Role("dst", "written", touched="footprint"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.src.nbytes)

    @property
    def footprint(self) -> Local:
        """All bytes written, padding included, as one range."""
        padded = align_up(self.src.burst_bytes, BLOCK_BYTES)
        nbytes = (self.src.bursts - 1) * self.pitch_bytes + padded
        return Local(self.dst.buffer, self.dst.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        return f"load {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Store(MicroOp):
    """Copy bursts to global memory; the other way round of :class:`Load`. *src* names all of them.

    With *atomic* the elements are added to what is there, as that type (SetAtomicAdd).
    """

    dst: Global
    src: Local
    pitch_bytes: Annotated[int, BYTES] = 0
    atomic: DType | None = None
    pipe: ClassVar[Pipe] = "mte3"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", touched="footprint"),
        Role("dst", "written", "global", added="atomic"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.dst.nbytes)

    @property
    def footprint(self) -> Local:
        """All bytes read, as one range."""
        nbytes = (self.dst.bursts - 1) * self.pitch_bytes + self.dst.burst_bytes
        return Local(self.src.buffer, self.src.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        sign = "<-" if self.atomic is None else f"{self.atomic.name} +="
        return f"store {self.dst} {sign} {self.src}"
