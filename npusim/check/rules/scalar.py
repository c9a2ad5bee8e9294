"""Rules of the scalar pipe."""

from __future__ import annotations

from npusim.check.rules.rule import Rule
from npusim.isa import ScalarAlu, ScalarLoad, ScalarLoop, ScalarStore, Trap

__all__ = ["RULES"]


def _loop_reads_only_what_it_wrote(op: ScalarLoop) -> bool:
    written: set[str] = set()
    for part in op.body:
        used: tuple[str | int, ...] = ()
        if isinstance(part, ScalarAlu):
            used = (part.a, part.b, part.c)
        elif isinstance(part, ScalarStore):
            used = (part.src,)
        elif isinstance(part, Trap):
            used = (part.when,)
        if any(isinstance(x, str) and x not in written for x in used):
            return False
        if isinstance(part, ScalarLoad | ScalarAlu):
            written.add(part.dst)
    return True


def _rounds_stay_apart(op: ScalarLoop) -> bool:
    """Whether no round touches what another one stores."""
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


RULES = (
    Rule(
        (ScalarLoop,),
        lambda op, _: op.count > 0 and _loop_reads_only_what_it_wrote(op),
        lambda op, _: (
            f"a loop must run at least once and write each register before it reads it, "
            f"not {op.count} x with a register from outside; load it inside the loop"
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
