"""Rules of what sorts, on the vector pipe; what all vector micro-ops share stands in `vector`."""

from __future__ import annotations

from npusim.check.rules.rule import Rule, operands
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT64
from npusim.isa import SORTED_AT_ONCE, GatherMask, MicroOp, MrgSort, Sort32

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


def _lies_apart(op: Sort32 | MrgSort) -> bool:
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
        (Sort32, MrgSort),
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
