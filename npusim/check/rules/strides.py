"""Rules of the strides and masks of vector operands."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from npusim.check.rules.kinds import (
    LANEWISE,
    RAGGED,
    ROWED,
    SOLID,
    SOLID_PARTS,
    STRIDING,
    VECTOR,
)
from npusim.check.rules.rule import Rule, operands
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BLOCKS,
    REPEAT_BYTES,
    CastDequant,
    Compare,
    CompareScalar,
    Gather,
    Local,
    MicroOp,
    Scatter,
    Select,
    lanes,
    places,
    writes,
)
from npusim.kernel.repeats import STRIDE_BLOCKS

__all__ = ["RULES"]


def _whole_repeats(local: Local) -> bool:
    blocks, rest = divmod(local.nbytes, BLOCK_BYTES)
    return not rest and (blocks < local.repeat_blocks or blocks % local.repeat_blocks == 0)


def _ends_well(op: MicroOp) -> bool:
    """Whether only operands that the chip allows have a partial last repeat.

    If the chip counts elements, each repeat except the last one has all of its lanes.
    """
    widest = max(16, *(local.dtype.bits for local in _lanewise(op)))
    return all(
        local.mask is not None
        or local.repeats == 1
        or local.count % local.repeat_elements == 0
        or local.repeat_elements == REPEAT_BYTES * 8 // widest
        for local in _lanewise(op)
        if local.is_strided
    )


def _in_step(op: MicroOp) -> bool:
    """Whether all strided operands begin their next repeat at the same element."""
    strided = [local for local in _lanewise(op) if local.is_strided]
    return not any(map(_repeats, strided)) or len({x.repeat_elements for x in strided}) == 1


def _repeats(local: Local) -> bool:
    """Whether *local* is strided and has several repeats."""
    return local.is_strided and local.repeats > 1


def _can_stride(local: Local) -> bool:
    """Whether the strides fit their fields; the repeat stride only if there are several repeats."""
    repeat_stride = local.repeat_stride if _repeats(local) else 0
    return max(local.block_stride, repeat_stride) <= STRIDE_BLOCKS


@lru_cache(maxsize=4096)
def _written_once(dst: Local) -> bool:
    """Whether a strided *dst* contains no block, or element, twice."""
    if dst.is_ragged:
        return np.unique(places(dst)).size == places(dst).size
    blocks = dst.nbytes // BLOCK_BYTES
    if blocks * BLOCK_BYTES > dst.end_bytes - dst.offset_bytes:
        return False
    found = (divmod(index, dst.repeat_blocks) for index in range(blocks))
    return len({a * dst.repeat_stride + b * dst.block_stride for a, b in found}) == blocks


def _lanewise(op: MicroOp) -> tuple[Local, ...]:
    """The operands of *op* whose lanes are combined."""
    match op:
        case CastDequant():
            return (op.src,)
        case Compare():
            return (op.a, op.b)
        case CompareScalar():
            return (op.a,)
        case Select():
            return tuple(x for x in (op.dst, op.a, op.b) if isinstance(x, Local))
        case Gather():
            return (op.offsets, op.dst)
        case Scatter():
            return (op.offsets, op.src)
        case _:
            return operands(op)


def _solid_parts(op: MicroOp) -> list[Local]:
    """Operands of *op* that have strides although they must not."""
    found = [getattr(op, name) for name in SOLID_PARTS[type(op)]]
    return [local for local in found if isinstance(local, Local) and local.is_strided]


def _mask_fits(local: Local) -> bool:
    """Whether a mask selects lanes that a repeat has, in full repeats."""
    if local.mask is None:
        return True
    is_within = int(lanes(local.mask)[-1]) < REPEAT_BYTES * 8 // local.dtype.bits
    return is_within and local.dtype.bits >= 8 and local.count % local.repeat_elements == 0


RULES = (
    Rule(
        SOLID,
        lambda op, _: not any(local.is_strided for local in operands(op)),
        lambda op, _: (
            f"operands must be without strides, not "
            f"{', '.join(str(local) for local in operands(op))}; take the pieces one by one"
        ),
    ),
    Rule(
        tuple(SOLID_PARTS),
        lambda op, _: not _solid_parts(op),
        lambda op, _: (
            f"{', '.join(SOLID_PARTS[type(op)])} must be without strides, not "
            f"{', '.join(str(local) for local in _solid_parts(op))}; take the pieces one by one"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: all(map(_mask_fits, operands(op))),
        lambda op, _: (
            f"a mask must pick lanes of a repeat of {REPEAT_BYTES} bytes, of elements of whole "
            f"bytes, and the number of elements be as many for each repeat, not "
            f"{', '.join(f'{local.count} of {local}' for local in operands(op))}; count those "
            f"that take part"
        ),
    ),
    Rule(
        LANEWISE,
        lambda op, _: len({local.mask for local in _lanewise(op)}) == 1,
        lambda op, _: (
            f"all operands must have the same mask, or none, not "
            f"{', '.join(str(local) for local in _lanewise(op))}; give it to each"
        ),
    ),
    Rule(
        RAGGED,
        lambda op, _: _ends_well(op),
        lambda op, _: (
            f"strided operands that end within a repeat must have whole repeats of {REPEAT_BYTES} "
            f"bytes of the widest before, not "
            f"{', '.join(f'{local.count} of {local}' for local in operands(op))}; give them a mask"
        ),
    ),
    Rule(
        tuple(kind for kind in VECTOR if kind not in RAGGED),
        lambda op, _: all(_whole_repeats(local) for local in operands(op) if local.is_strided),
        lambda op, _: (
            f"strided operands must be blocks of {BLOCK_BYTES} bytes, up to those of a repeat or a "
            f"multiple of them, "
            f"not {', '.join(str(local.nbytes) for local in operands(op))} bytes; pad them"
        ),
    ),
    Rule(
        tuple(kind for kind in VECTOR if kind not in ROWED),
        lambda op, _: all(local.repeat_blocks <= REPEAT_BLOCKS for local in operands(op)),
        lambda op, _: (
            f"a repeat must have at most {REPEAT_BLOCKS} blocks, not "
            f"{max(local.repeat_blocks for local in operands(op))}; make it several"
        ),
    ),
    Rule(
        LANEWISE,
        lambda op, _: _in_step(op),
        lambda op, _: (
            f"strided operands must have the same number of elements in a repeat, not "
            f"{', '.join(str(local.repeat_elements) for local in _lanewise(op))}; "
            f"take fewer blocks a repeat of the narrower one"
        ),
    ),
    Rule(
        STRIDING,
        lambda op, _: all(_can_stride(local) for local in operands(op) if local.is_strided),
        lambda op, _: (
            f"strides must be at most {STRIDE_BLOCKS} blocks, not those of "
            f"{', '.join(str(local) for local in operands(op))}; emit what in_reach makes of it"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: all(_written_once(local) for local in writes(op) if local.is_strided),
        lambda op, _: (
            f"dst must have strides that bring it to each block once, not {op.dst.block_stride} "
            f"and {op.dst.repeat_stride} for {op.dst.nbytes} bytes; raise them, or write "
            f"elsewhere and combine"
        ),
    ),
)
