"""Micro-ops of the vector pipe that sort: names and operands follow Ascend C.

A pair has eight bytes: the key in the lower word, in its low half if the key is fp16, and in the
upper word an index that goes with it. Lists are in descending order of their keys. A key that
equals another one, as -0 equals 0, stays behind it (asc-devkit, Sort.md); NaN, of either sign,
counts as larger than infinity and as equal to itself, which is assumed.

Arch 2002 sorts proposals instead, of eight elements of one type, whose element number 4 is the key;
the others go with it (asc-devkit, RpSort16.md, MrgSort4.md, ProposalConcat.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from npusim.data.dtypes import DType
from npusim.devices.schema import Pipe
from npusim.isa.fields import BYTES, Range
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Register
from npusim.isa.work import Rearrangement, Work

__all__ = [
    "LONGEST_LIST",
    "PROPOSALS_AT_ONCE",
    "PROPOSAL_ELEMENTS",
    "SCORE",
    "SORTED_AT_ONCE",
    "GatherMask",
    "MrgSort",
    "MrgSort4",
    "ProposalConcat",
    "ProposalExtract",
    "RpSort16",
    "Sort32",
]

SORTED_AT_ONCE = 32
"""Elements that one repeat of Sort32 puts in order."""
LONGEST_LIST = 2**12 - 1
"""Pairs of a list that MrgSort takes: its length has a field of 12 bits, which is assumed. That of
MrgSort4 has (asc-devkit, dav_m200/kernel_operator_proposal_impl.h)."""
PROPOSAL_ELEMENTS, SCORE = 8, 4
"""Elements of a proposal, and the place of its key among them."""
PROPOSALS_AT_ONCE = 16
"""Proposals that one repeat of RpSort16, ProposalConcat or ProposalExtract takes."""
FIELDS = Range(0, 5)
"""Places of a proposal that a micro-op can write or read alone (asc-devkit, ProposalConcat.md)."""


@dataclass(frozen=True, slots=True)
class Sort32(MicroOp):
    """Each 32 *keys* become a list of pairs with their *indices* (Sort32)."""

    dst: Local
    """uint64, a pair each."""
    keys: Local
    indices: Local
    """int32."""
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("keys", "read"),
        Role("indices", "read"),
        Role("dst", "written"),
    )
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"sort32 {self.dst} <- {self.keys}, {self.indices}"


@dataclass(frozen=True, slots=True)
class MrgSort(MicroOp):
    """Two to four lists of pairs become one (MrgSort).

    List number i has `counts[i]` pairs and begins with that pair of *src* which *first*, *second*,
    *third* or *fourth* says: a number or a register. Of equal keys those of the earlier list come
    first. The largest of the pairs that lead the lists is what is taken next, so that of lists
    which are in no order none comes either.
    """

    dst: Local
    """uint64, a pair each."""
    src: Local
    counts: tuple[Annotated[int, Range(1, LONGEST_LIST)], ...]
    key: DType
    first: Register | Annotated[int, BYTES] = 0
    second: Register | Annotated[int, BYTES] = 0
    third: Register | Annotated[int, BYTES] = 0
    fourth: Register | Annotated[int, BYTES] = 0
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("first", "read", "register"),
        Role("second", "read", "register"),
        Role("third", "read", "register"),
        Role("fourth", "read", "register"),
        Role("dst", "written"),
    )
    work: ClassVar[Work] = Rearrangement()

    @property
    def starts(self) -> tuple[Register | int, ...]:
        """Where its lists begin, one for each of *counts*."""
        return (self.first, self.second, self.third, self.fourth)[: len(self.counts)]

    def __str__(self) -> str:
        lists = zip(self.starts, self.counts, strict=False)
        parts = ", ".join(f"{count} at {start}" for start, count in lists)
        return f"mrg_sort {self.dst} <- {self.src}: {parts} by {self.key.name}"


@dataclass(frozen=True, slots=True)
class GatherMask(MicroOp):
    """The elements of *src* at even or at odd places, closed up (GatherMask, patterns 1 and 2)."""

    places: Literal["even", "odd"]
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"gather_mask.{self.places} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class ProposalConcat(MicroOp):
    """Each element of *src* becomes element *place* of a proposal of *dst* (ProposalConcat)."""

    place: Annotated[int, FIELDS]
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "updated"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"proposal_concat.{self.place} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class ProposalExtract(MicroOp):
    """Each element of *dst* is element *place* of a proposal of *src* (ProposalExtract)."""

    place: Annotated[int, FIELDS]
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"proposal_extract.{self.place} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class RpSort16(MicroOp):
    """Each 16 proposals of *src* become a list in *dst* (RpSort16)."""

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"rp_sort16 {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class MrgSort4(MicroOp):
    """Two to four lists of proposals become one (MrgSort4), again for each repeat of *src*.

    A repeat has the lists behind each other, of `counts[i]` proposals each. Of equal keys those of
    the earlier list come first.
    """

    dst: Local
    src: Local
    counts: tuple[Annotated[int, Range(1, LONGEST_LIST)], ...]
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        lists = ", ".join(map(str, self.counts))
        return f"mrg_sort4 {self.dst} <- {self.src}: lists of {lists}"
