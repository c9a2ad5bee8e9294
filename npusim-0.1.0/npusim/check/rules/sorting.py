"""Rules of what sorts, on the vector pipe; what all vector micro-ops share stands in `vector`."""

from __future__ import annotations

from npusim.check.rules.rule import Rule, operands
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT64
from npusim.isa import (
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    SORTED_AT_ONCE,
    GatherMask,
    MicroOp,
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


def _sizes(op: MicroOp) -> str:
    return ", ".join(f"{local.count} {local.dtype.name}" for local in operands(op))


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
    """Whether its operands have one type, and as many proposals as it takes at a time."""
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
    """Whether nothing is written where pairs still wait to be read."""
    ends = [(local.offset_bytes, local.end_bytes) for local in operands(op)]
    *read, (start, end) = ends
    return all(high <= start or end <= low for low, high in read)


RULES = (
    Rule(
        (Sort32, MrgSort, GatherMask),
        lambda _, at: at.arch == "2201",
        lambda _, at: f"the arch must be 2201, which sorts pairs, not {at.arch}; sort on the host",
    ),
    Rule(
        (Sort32,),
        lambda op, _: _sorts(op),
        lambda op, _: (
            f"keys must be float32 or float16, indices int32 and dst uint64, all with the same "
            f"number of elements, a multiple of {SORTED_AT_ONCE}, not {_sizes(op)}; cast or pad "
            f"them"
        ),
    ),
    Rule(
        (MrgSort,),
        lambda op, _: _merges(op),
        lambda op, _: (
            f"src and dst must be uint64, key float32 or float16, and two to four lists make the "
            f"pairs of dst and lie within src, not {_sizes(op)}, key {op.key.name} and lists of "
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
        lambda op, _: (
            op.dst.dtype.bits in (16, 32)
            and op.src.dtype is op.dst.dtype
            and op.src.count == 2 * op.dst.count > 0
        ),
        lambda op, _: (
            f"src and dst must share one type of 16 or 32 bits, and src have twice the elements of "
            f"dst, not {_sizes(op)}; take the pairs as such"
        ),
    ),
)
