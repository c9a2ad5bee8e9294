"""Rules of comparisons and selections on the vector pipe."""

from __future__ import annotations

from npusim.check.rules.kinds import (
    COMPARING,
)
from npusim.check.rules.rule import (
    Rule,
    fits,
    operands,
    sizes,
    types,
)
from npusim.check.rules.vector_dtypes import (
    FLOATS,
)
from npusim.data.dtypes import (
    INT32,
    UINT8,
)
from npusim.isa import (
    CMP_MASK_BYTES,
    REPEAT_BYTES,
    Compare,
    CompareScalar,
    GetCmpMask,
    Local,
    Select,
    SetCmpMask,
    reads,
)

__all__ = ["RULES"]


def _compares(op: Compare | CompareScalar) -> bool:
    """Whether the types are known. asc-devkit, Compare.md and CompareScalar.md: int32 for eq."""
    known = (*FLOATS, INT32) if op.op == "eq" else FLOATS
    is_bits = not isinstance(op.dst, Local) or op.dst.dtype is UINT8
    return is_bits and op.a.dtype in known and {x.dtype for x in reads(op)} == {op.a.dtype}


def _compared(op: Compare | CompareScalar) -> bool:
    """Whether there is one bit per element of full repeats (asc-devkit, Compare.md)."""
    if not isinstance(op.dst, Local):
        return op.a.repeats == 1 and op.a.count == reads(op)[-1].count > 0
    repeats = op.a.nbytes % REPEAT_BYTES == 0 < op.a.count == reads(op)[-1].count
    return repeats and op.dst.count * 8 == op.a.count and op.a.mask is None


def _bits(op: Compare | CompareScalar) -> int:
    return op.dst.count * 8 if isinstance(op.dst, Local) else CMP_MASK_BYTES * 8


def _selects(op: Select) -> bool:
    """Whether the types are supported. asc-devkit, Select.md."""
    chosen = [op.dst, op.a, *(x for x in (op.b,) if isinstance(x, Local))]
    if isinstance(op.mask, Local):
        is_whole = op.mask.count in (op.mask_bytes, op.whole_mask_bytes) or op.is_repeated
        if op.mask.dtype is not UINT8 or not is_whole:
            return False
    return op.dst.dtype in FLOATS and all(
        x.dtype is op.dst.dtype and x.count == op.dst.count > 0 for x in chosen
    )


RULES = (
    Rule(
        COMPARING,
        lambda op, _: _compares(op),
        lambda op, _: (
            f"dst must be uint8 and what is compared share one of float32, float16, or for eq "
            f"int32, not {types(op)} for {op.op}; cast first"
        ),
    ),
    Rule(
        COMPARING,
        lambda op, _: _compared(op),
        lambda op, _: (
            f"what is compared must be whole repeats of {REPEAT_BYTES} bytes, or for the register "
            f"one, all with the same number of elements and a bit in dst for each, not "
            f"{', '.join(str(local.count) for local in reads(op))} elements and "
            f"{_bits(op)} bits; pad them"
        ),
    ),
    Rule(
        (Select,),
        lambda op, _: _selects(op),
        lambda op, _: (
            f"mask must be uint8 with a bit for each element, and all others share their number "
            f"of elements and one of float32, float16, not {sizes(op)}; cast first, or cut them "
            f"alike"
        ),
    ),
    Rule(
        (Select,),
        lambda op, _: isinstance(op.b, Local) or fits(op.b, op.dst.dtype),
        lambda op, _: f"b must be a number that {op.dst.dtype.name} has, not {op.b}; round it",
    ),
    Rule(
        (GetCmpMask, SetCmpMask),
        lambda op, _: all(x.dtype is UINT8 and x.count == CMP_MASK_BYTES for x in operands(op)),
        lambda op, _: (
            f"the register must go to or come from {CMP_MASK_BYTES} uint8, not {sizes(op)}; take "
            f"so many"
        ),
    ),
)
