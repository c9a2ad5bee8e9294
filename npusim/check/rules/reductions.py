"""Rules of vector micro-ops that reduce many elements to fewer."""

from __future__ import annotations

from typing import get_args

from npusim.check.rules.rule import (
    Rule,
)
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    BlockReduce,
    Fold,
    Local,
    Reduce,
    ReduceOrder,
    WholeReduce,
)

__all__ = ["RULES"]

ORDERS: dict[str, tuple[ReduceOrder, ...]] = {
    "2201": get_args(ReduceOrder),
    # A kernel that needs a value alone reads it from the pair.
    "2002": ("value", "value_index", "index_value"),
}
"""asc-devkit, ReduceRepeat.md, constraints."""


def _is_whole(src: Local) -> bool:
    """Whether all repeats are full."""
    return src.mask is None and src.count % min(src.count, src.repeat_elements) == 0


def _elements(count: int) -> str:
    return "one element" if count == 1 else f"{count} elements"


def _is_repeat(local: Local, count: int) -> bool:
    """Whether *local* has *count* full repeats, or is a single, possibly shorter one."""
    repeat_bytes = local.repeat_blocks * BLOCK_BYTES
    if count == 1:
        return 0 < local.nbytes <= repeat_bytes
    return local.nbytes == count * repeat_bytes > 0


def _has_parts(local: Local, count: int) -> bool:
    return local.count > 0 == local.count % count


RULES = (
    Rule(
        (BlockReduce, WholeReduce),
        lambda op, _: op.dst.count == op.span,
        lambda op, _: (
            f"dst must be {_elements(op.span)}, from the first to the last that comes of the "
            f"{op.src.count} of src, not {op.dst.count}; change its count"
        ),
    ),
    Rule(
        (BlockReduce, WholeReduce),
        lambda op, _: not op.dst.is_strided or op.places.size == op.span,
        lambda op, _: (
            f"dst must have either strides or a stride of results, not both as {op.dst} has; "
            f"take the former out"
        ),
    ),
    Rule(
        (BlockReduce,),
        lambda op, _: op.src.mask is None or op.dst_stride is not None,
        lambda op, _: (
            f"a mask must come with a dst_stride, not with {op.dst_stride}; say how far apart the "
            f"results of repeats lie"
        ),
    ),
    Rule(
        (BlockReduce,),
        lambda op, _: not op.pairs or op.op == "sum",
        lambda op, _: f"pairs must be summed up, not reduced to their {op.op}; take Binary",
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.mask is None or _is_whole(op.src),
        lambda op, _: (
            f"with a mask src must be whole repeats and have none, not {op.src.count} of {op.src}; "
            f"take one of the two"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.mask is None or op.mask <= min(op.src.count, op.src.repeat_elements),
        lambda op, _: (
            f"mask must be at most the {min(op.src.count, op.src.repeat_elements)} elements of a "
            f"repeat, not {op.mask}; take more blocks a repeat"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.op != "sum" or op.order == "value",
        lambda op, _: f"a sum must leave a value, not {op.order}; take min or max",
    ),
    Rule(
        (WholeReduce,),
        lambda op, at: op.order in ORDERS[at.arch],
        lambda op, at: (
            f"order must be one of {', '.join(ORDERS[at.arch])} on arch {at.arch}, not "
            f"{op.order}; take the part that is wanted"
        ),
    ),
    Rule(
        (Fold,),
        lambda op, _: (
            not op.dst.is_strided and _is_repeat(op.dst, 1) and _has_parts(op.src, op.dst.count)
        ),
        lambda op, _: (
            f"dst must be one repeat of at most {REPEAT_BYTES} bytes and src a number of such "
            f"repeats, not {op.dst.nbytes} and {op.src.nbytes} bytes; cut them so"
        ),
    ),
    Rule(
        (Reduce,),
        lambda op, _: op.dst.count == op.result_elements,
        lambda op, _: (
            f"dst must be {_elements(op.result_elements)}, not {op.dst.count}; change its count"
        ),
    ),
)
