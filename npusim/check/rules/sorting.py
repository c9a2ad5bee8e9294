"""Rules of vector micro-ops that sort; rules of all vector micro-ops are in `vector`."""

from __future__ import annotations

from npusim.check.rules.rule import Rule, operands, sizes
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT16, UINT32, UINT64
from npusim.data.integers import ceil_div
from npusim.isa import (
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    SORTED_AT_ONCE,
    GatherMask,
    Local,
    MrgSort,
    MrgSort4,
    ProposalConcat,
    ProposalExtract,
    RpSort16,
    Sort32,
)

__all__ = ["RULES"]

KEYS = (FLOAT32, FLOAT16)
# asc-devkit, Sort32.md and MrgSort.md.
LISTS = range(2, 5)


def _sorts(op: Sort32) -> bool:
    count = op.keys.count
    return (
        (op.keys.dtype, op.indices.dtype, op.dst.dtype) in [(key, INT32, UINT64) for key in KEYS]
        and op.indices.count == op.dst.count == count > 0
        and count % SORTED_AT_ONCE == 0
    )


def _merges(op: MrgSort) -> bool:
    return (
        op.src.dtype is op.dst.dtype is UINT64
        and op.key in KEYS
        and len(op.counts) in LISTS
        and sum(op.counts) == op.dst.count
        and all(
            isinstance(start, str) or start + count <= op.src.count
            for start, count in zip(op.starts, op.counts, strict=False)
        )
    )


PROPOSING = (ProposalConcat, ProposalExtract, RpSort16, MrgSort4)
AI_CORE = "ai_core"


def _proposes(op: ProposalConcat | ProposalExtract | RpSort16 | MrgSort4) -> bool:
    """Whether its operands have one type, and as many proposals as it processes at a time."""
    if op.src.dtype is not op.dst.dtype or op.src.dtype not in KEYS:
        return False
    if isinstance(op, ProposalConcat | ProposalExtract):
        few, many = sorted((op.src.count, op.dst.count))
        narrow = op.src if isinstance(op, ProposalConcat) else op.dst
        fits = many == few * PROPOSAL_ELEMENTS and narrow.count == few
        return fits and few > 0 == few % PROPOSALS_AT_ONCE
    each = PROPOSALS_AT_ONCE if isinstance(op, RpSort16) else sum(op.counts)
    if isinstance(op, MrgSort4) and len(op.counts) not in LISTS:
        return False
    return op.src.count == op.dst.count > 0 == op.src.count % (PROPOSAL_ELEMENTS * each)


def _lies_apart(op: Sort32 | MrgSort | RpSort16 | MrgSort4) -> bool:
    """Whether nothing is written over pairs that are still to be read."""
    ends = [(local.offset_bytes, local.end_bytes) for local in operands(op)]
    *read, (start, end) = ends
    return all(high <= start or end <= low for low, high in read)


def _gathers(op: GatherMask) -> bool:
    """asc-devkit, GatherMask.md."""
    taken = op.src.count if op.taken is None else op.taken.size
    return (
        op.dst.dtype.bits in (16, 32)
        and op.src.dtype is op.dst.dtype
        and op.src.count > 0
        and op.dst.count == taken > 0
    )


def _has_bits(op: GatherMask, places: Local) -> bool:
    words = ceil_div(op.row_elements, places.dtype.bits)
    rows = op.src.count // op.row_elements
    is_like = places.dtype in (UINT16, UINT32) and places.dtype.bits == op.src.dtype.bits
    if not is_like or op.src.count % op.row_elements:
        return False
    if not places.is_strided:
        return rows == 1 and places.count == words
    return places.repeats == rows and places.count == rows * words


RULES = (
    Rule(
        (Sort32, MrgSort),
        lambda _, at: at.arch == "2201",
        lambda _, at: f"the arch must be 2201, which sorts pairs, not {at.arch}; sort on the host",
    ),
    Rule(
        (Sort32,),
        lambda op, _: _sorts(op),
        lambda op, _: (
            f"keys must be float32 or float16, indices int32 and dst uint64, all with the same "
            f"number of elements, a multiple of {SORTED_AT_ONCE}, not {sizes(op)}; cast or pad "
            f"them"
        ),
    ),
    Rule(
        (MrgSort,),
        lambda op, _: _merges(op),
        lambda op, _: (
            f"src and dst must be uint64, key float32 or float16, and two to four lists make the "
            f"pairs of dst and lie within src, not {sizes(op)}, key {op.key.name} and lists of "
            f"{', '.join(map(str, op.counts)) or 'none'} from {', '.join(map(str, op.starts))}; "
            f"change their counts"
        ),
    ),
    Rule(
        PROPOSING,
        # asc-devkit, RpSort16.md: the vector cores of Atlas inference have no proposals.
        lambda _, at: at.arch == "2002" and at.kind == AI_CORE,
        lambda _, at: (
            f"the core must be an AI core of arch 2002, which sorts proposals, not {at.kind} of "
            f"arch {at.arch}; sort pairs, or on the host"
        ),
    ),
    Rule(
        PROPOSING,
        lambda op, _: _proposes(op),
        lambda op, _: (
            f"src and dst must be float16 or float32 alike, with whole proposals of "
            f"{PROPOSAL_ELEMENTS} elements, as many as {PROPOSALS_AT_ONCE} or its lists go into, "
            f"not {op.src.count} {op.src.dtype.name}, {op.dst.count} {op.dst.dtype.name}; pad them"
        ),
    ),
    Rule(
        (Sort32, MrgSort, RpSort16, MrgSort4),
        lambda op, _: _lies_apart(op),
        lambda op, _: (
            f"dst must lie apart from what is read, not {op.dst} among "
            f"{', '.join(str(local) for local in operands(op)[:-1])}; write elsewhere"
        ),
    ),
    Rule(
        (GatherMask,),
        lambda op, _: _gathers(op),
        lambda op, _: (
            f"src and dst must share one type of 16 or 32 bits, and dst have as many elements as "
            f"come, of src or with a tensor at most, not {sizes(op)}; change its count"
        ),
    ),
    Rule(
        (GatherMask,),
        lambda op, _: not isinstance(op.places, Local) or _has_bits(op, op.places),
        lambda op, _: (
            f"places must be unsigned and as wide as elements of src, with a bit for each of the "
            f"{op.row_elements} of each repeat, not {op.places.count} of {op.places}; change them"
        ),
    ),
    Rule(
        (GatherMask,),
        lambda op, at: at.arch == "2201" or op.places != "all",
        lambda op, at: f"places must be some of all on arch {at.arch}, not {op.places}; copy them",
    ),
)
