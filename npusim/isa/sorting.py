"""Micro-ops of the vector pipe that sort: names and operands follow Ascend C.

A pair has eight bytes: the key in the lower word (in its low half if the key is fp16), and in the
upper word an index. Lists are in descending order of keys. A key that equals an earlier one, as -0
equals 0, stays behind it (asc-devkit, Sort.md); NaN, of either sign, counts as larger than infinity
and as equal to itself, which is assumed.

Arch 2002 sorts proposals instead: eight elements of one type, of which element 4 is the key
(asc-devkit, RpSort16.md, MrgSort4.md, ProposalConcat.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from npusim.data.dtypes import DType
from npusim.devices.schema import Pipe
from npusim.isa.fields import BYTES, Range
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Numbers, Register
from npusim.isa.work import Rearrangement, Work

__all__ = [
    "LONGEST_LIST",
    "PLACES",
    "PROPOSALS_AT_ONCE",
    "PROPOSAL_ELEMENTS",
    "SCORE",
    "SORTED_AT_ONCE",
    "GatherMask",
    "MrgSort",
    "MrgSort4",
    "PlacesOf",
    "ProposalConcat",
    "ProposalExtract",
    "RpSort16",
    "Sort32",
]

SORTED_AT_ONCE = 32
"""Elements that one repeat of Sort32 sorts."""
LONGEST_LIST = 2**12 - 1
"""Pairs in a list of MrgSort: its length field is assumed to have 12 bits, as that of MrgSort4
(asc-devkit, dav_m200/kernel_operator_proposal_impl.h)."""
PROPOSAL_ELEMENTS, SCORE = 8, 4
"""Elements of a proposal, and the index of its key among them."""
PROPOSALS_AT_ONCE = 16
"""Proposals that one repeat of RpSort16, ProposalConcat or ProposalExtract processes."""
FIELDS = Range(0, 5)
"""Elements of a proposal that can be written or read alone (asc-devkit, ProposalConcat.md)."""


PlacesOf = Literal["even", "odd", "first", "second", "third", "fourth", "all"]
PLACES: dict[PlacesOf, tuple[int, int]] = {
    "even": (0, 2),
    "odd": (1, 2),
    "first": (0, 4),
    "second": (1, 4),
    "third": (2, 4),
    "fourth": (3, 4),
    "all": (0, 1),
}
"""First index and step of patterns 1 to 7 (asc-devkit, GatherMask.md)."""


@dataclass(frozen=True, slots=True)
class Sort32(MicroOp):
    """Sort each 32 *keys* into a list of pairs with their *indices* (Sort32)."""

    dst: Local
    """uint64, one per pair."""
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
    """Merge two to four lists of pairs (MrgSort).

    List i has `counts[i]` pairs and begins at the pair of *src* that *first*, *second*, *third* or
    *fourth* gives: a constant or a register. Equal keys of the earlier list come first. Each step
    takes the largest of the pairs at the heads of the lists, so the merge of unsorted lists is not
    sorted either.
    """

    dst: Local
    """uint64, one per pair."""
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
        """Start of each list, one for each of *counts*."""
        return (self.first, self.second, self.third, self.fourth)[: len(self.counts)]

    def __str__(self) -> str:
        lists = zip(self.starts, self.counts, strict=False)
        parts = ", ".join(f"{count} at {start}" for start, count in lists)
        return f"mrg_sort {self.dst} <- {self.src}: {parts} by {self.key.name}"


@dataclass(frozen=True, slots=True)
class GatherMask(MicroOp):
    """Compact the elements of *src* at certain *places* (GatherMask).

    Even or odd places are patterns 1 and 2, the n-th of every four 3 to 6, all of them 7. A tensor
    has one bit per element instead, the first one lowest; *dst* then has room for all, and register
    *kept* receives how many were selected (rsvdCnt). Rows of *src*, and of the tensor, are repeats.
    """

    places: PlacesOf | Local
    dst: Local
    src: Local
    kept: Register | None = None
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("places", "read"),
        Role("dst", "written"),
        Role("kept", "written", "register"),
    )
    work: ClassVar[Work] = Rearrangement()

    @property
    def row_elements(self) -> int:
        """Elements of *src* in a repeat; the pattern restarts in each."""
        src = self.src
        return min(src.count, src.repeat_elements) if src.is_strided else src.count

    @property
    def taken(self) -> Numbers | None:
        """The indices of the elements of *src* selected; None if a tensor selects them."""
        if isinstance(self.places, Local):
            return None
        first, step = PLACES[self.places]
        numbers = np.arange(self.src.count)
        within: Numbers = numbers % self.row_elements
        found: Numbers = numbers[(within >= first) & ((within - first) % step == 0)]
        return found

    def __str__(self) -> str:
        kept = f", {self.kept}" if self.kept else ""
        if isinstance(self.places, Local):
            return f"gather_mask {self.dst}{kept} <- {self.src} by {self.places}"
        return f"gather_mask.{self.places} {self.dst}{kept} <- {self.src}"


@dataclass(frozen=True, slots=True)
class ProposalConcat(MicroOp):
    """Write each element of *src* to element *place* of a proposal of *dst* (ProposalConcat)."""

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
    """Read element *place* of each proposal of *src* to an element of *dst* (ProposalExtract)."""

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
    """Sort each 16 proposals of *src* into a list in *dst* (RpSort16)."""

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"rp_sort16 {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class MrgSort4(MicroOp):
    """Merge two to four lists of proposals, in each repeat of *src* (MrgSort4).

    A repeat has adjacent lists of `counts[i]` proposals each. Equal keys of the earlier list come
    first.
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
