"""Rules of the scalar pipe."""

from __future__ import annotations

from npusim.check.rules.rule import Place, Rule, named
from npusim.isa import (
    Global,
    Local,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarStore,
    ScalarStoreGlobal,
)

__all__ = ["RULES"]


def _rounds_stay_apart(op: ScalarLoop) -> bool:
    """Whether no iteration touches what another one stores."""
    touched = [
        (part.src if isinstance(part, ScalarLoad) else part.dst, part.step_bytes, index)
        for index, part in enumerate(op.body)
        if isinstance(part, ScalarLoad | ScalarStore)
    ]
    for stored, step, store in touched:
        if not isinstance(op.body[store], ScalarStore) or op.count == 1:
            continue
        for local, other_step, index in touched:
            a, b = op.swept(stored, step), op.swept(local, other_step)
            overlap = max(a.offset_bytes, b.offset_bytes) < min(a.end_bytes, b.end_bytes)
            if index == store or a.buffer != b.buffer or not overlap:
                continue
            together = a.offset_bytes == b.offset_bytes and step == other_step
            if not together or step < max(stored.nbytes, local.nbytes):
                return False
    return True


ELEMENT_BITS = (8, 16, 32, 64)


def _is_element(local: Local) -> bool:
    return local.count == 1 and local.dtype.bits in ELEMENT_BITS


def _element_text(op: ScalarLoad | ScalarStore | ScalarLoop, _: Place) -> str:
    bad = next(local for _, local in named(op) if not _is_element(local))
    return (
        f"what is loaded or stored must be one element of 8 to 64 bits, not {bad.count} in {bad}; "
        f"take one after the other"
    )


def _element_of(op: ScalarLoadGlobal | ScalarStoreGlobal) -> Global:
    return op.src if isinstance(op, ScalarLoadGlobal) else op.dst


def _is_one(op: ScalarLoadGlobal | ScalarStoreGlobal) -> bool:
    place, size = _element_of(op), op.dtype.nbytes(1)
    is_element = op.dtype.bits in ELEMENT_BITS and place.bursts == 1
    return is_element and place.burst_bytes == size and place.offset_bytes % size == 0


RULES = (
    Rule(
        (ScalarLoad, ScalarStore, ScalarLoop),
        lambda op, _: all(_is_element(local) for _, local in named(op)),
        _element_text,
    ),
    Rule(
        (ScalarLoadGlobal, ScalarStoreGlobal),
        lambda op, _: _is_one(op),
        lambda op, _: (
            f"{'src' if isinstance(op, ScalarLoadGlobal) else 'dst'} must be one element of 8 to "
            f"64 bits that lies at a multiple of its size, not {_element_of(op).nbytes} bytes of "
            f"{op.dtype.name} at {_element_of(op).offset_bytes}; name just that one"
        ),
    ),
    Rule(
        (ScalarLoop,),
        lambda op, _: not op.used,
        lambda op, _: (
            f"a loop must set each register before it reads it, not take {', '.join(op.used)} from "
            f"outside; load it inside the loop"
        ),
    ),
    Rule(
        (ScalarLoop,),
        lambda op, _: _rounds_stay_apart(op),
        lambda _, __: (
            "a round must not touch what another round stores, not even in part; "
            "store elsewhere, or write the rounds one by one"
        ),
    ),
)
