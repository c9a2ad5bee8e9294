"""Which micro-ops a device accepts: rows of (kinds, what must hold, what to say when it does not).

A row's predicate gets the micro-op and the :class:`Place` it would run on; a false answer becomes a
:class:`RuleError` that names the micro-op, what must hold, what came and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npusim.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8, DType, RoundMode
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Global,
    Load,
    Local,
    MicroOp,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    SetFlag,
    Store,
    Trap,
    WaitFlag,
    reads,
    writes,
)
from npusim.program import Program
from npusim.spec import Core, DeviceSpec

__all__ = ["Place", "RuleError", "check"]


class RuleError(ValueError):
    """A device does not accept a micro-op."""


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of core on a device."""

    spec: DeviceSpec
    kind: str

    @property
    def core(self) -> Core:
        return self.spec.cores[self.kind]


@dataclass(frozen=True, slots=True)
class Rule:
    kinds: tuple[type, ...]
    holds: Callable[[Any, Place], bool]
    says: Callable[[Any, Place], str]


VECTOR = (Cast, Binary, BinaryScalar, Duplicate, Broadcast, Reduce, Copy)
ARITHMETIC = (Binary, BinaryScalar)
FLAGS = (SetFlag, WaitFlag)
ANY = (*VECTOR, Load, Store, ScalarLoad, ScalarStore, ScalarLoop)

_INTEGRAL: tuple[RoundMode, ...] = ("rint", "floor", "ceil", "round", "trunc")
# asc-devkit, Cast.md, one table a product line; 310P's fp32 to int32 stands in its code only
# (impl/basic_api/dav_m200/kernel_operator_vec_vconv_impl.h).
CASTS: dict[str, dict[tuple[DType, DType], tuple[RoundMode, ...]]] = {
    "2201": {
        (FLOAT32, FLOAT32): _INTEGRAL,
        (FLOAT32, FLOAT16): (*_INTEGRAL, "odd", "none"),
        (FLOAT32, BFLOAT16): _INTEGRAL,
        (FLOAT32, INT32): _INTEGRAL,
        (FLOAT16, FLOAT32): ("none",),
        (FLOAT16, INT32): _INTEGRAL,
        (FLOAT16, INT8): (*_INTEGRAL, "none"),
        (FLOAT16, UINT8): (*_INTEGRAL, "none"),
        (FLOAT16, INT4): (*_INTEGRAL, "none"),
        (BFLOAT16, FLOAT32): ("none",),
        (BFLOAT16, INT32): _INTEGRAL,
        (INT4, FLOAT16): ("none",),
        (INT8, FLOAT16): ("none",),
        (UINT8, FLOAT16): ("none",),
        (INT32, FLOAT32): ("none",),
        (INT32, FLOAT16): ("none",),
    },
    "2002": {
        (FLOAT32, FLOAT16): ("odd", "none"),
        (FLOAT32, INT32): _INTEGRAL,
        (FLOAT16, FLOAT32): ("none",),
        (FLOAT16, INT32): _INTEGRAL,
        (FLOAT16, INT8): ("floor", "ceil", "round", "trunc", "none"),
        (FLOAT16, UINT8): ("floor", "ceil", "round", "trunc", "none"),
        (FLOAT16, INT4): ("none",),
        (INT8, FLOAT16): ("none",),
        (UINT8, FLOAT16): ("none",),
        (INT32, FLOAT32): ("none",),
        (INT32, FLOAT16): ("none",),
    },
}
# asc-devkit, Add.md, Mul.md, Max.md: no bf16 arithmetic on either; Div.md: floats only.
ARITHMETIC_DTYPES = (FLOAT32, FLOAT16, INT32)
DIV_DTYPES = (FLOAT32, FLOAT16)


def _locals(op: MicroOp) -> tuple[Local, ...]:
    return (*reads(op), *writes(op))


def _in_bounds(local: Local, core: Core) -> bool:
    size = getattr(core, f"{local.buffer}_bytes", None)
    return size is not None and 0 <= local.offset_bytes < local.end_bytes <= size


def _bounds_text(op: MicroOp, place: Place) -> str:
    core = place.core
    bad = next(local for local in _locals(op) if not _in_bounds(local, core))
    size = getattr(core, f"{bad.buffer}_bytes", None)
    have = f"the {size} bytes of {bad.buffer}" if size else f"a buffer that {place.kind} has"
    return f"each operand must be a range within {have}, not {bad}; claim it with the builder"


def _global(op: Load | Store) -> Global:
    return op.src if isinstance(op, Load) else op.dst


def _granule(op: Load | Store, place: Place) -> int:
    transfer = place.spec.transfer
    is_load = isinstance(op, Load)
    return transfer.load_granule_bytes if is_load else transfer.store_granule_bytes


def _granular(op: Load | Store, place: Place) -> bool:
    where, granule = _global(op), _granule(op, place)
    return where.burst_bytes % granule == 0 and where.stride_bytes % granule == 0


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
            meet = max(a.offset_bytes, b.offset_bytes) < min(a.end_bytes, b.end_bytes)
            if index == store or a.buffer != b.buffer or not meet:
                continue
            together = a.offset_bytes == b.offset_bytes and step == other_step
            if not together or step < max(stored.nbytes, local.nbytes):
                return False
    return True


def _path_names(op: Load | Store) -> tuple[str, str]:
    """The ways that a copy takes, past the L2 and out of it or into it."""
    if isinstance(op, Load):
        return f"gm_to_{op.dst.buffer}", f"l2_to_{op.dst.buffer}"
    return f"{op.src.buffer}_to_gm", f"{op.src.buffer}_to_l2"


def _padded(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def _whole_repeats(local: Local) -> bool:
    blocks, rest = divmod(local.nbytes, BLOCK_BYTES)
    return not rest and (blocks < 8 or blocks % 8 == 0)


def _names(dtypes: tuple[DType, ...]) -> str:
    return ", ".join(dtype.name for dtype in dtypes)


RULES = (
    Rule(
        ANY,
        lambda op, at: all(_in_bounds(local, at.core) for local in _locals(op)),
        _bounds_text,
    ),
    Rule(
        (Load, Store),
        lambda op, at: set(_path_names(op)) <= set(at.core.paths),
        lambda op, at: (
            f"a copy must go a way that {at.kind} has, one of {', '.join(at.core.paths)}, "
            f"not {' or '.join(_path_names(op))}; take another buffer"
        ),
    ),
    Rule(
        (*VECTOR, Load, Store),
        lambda op, _: all(local.offset_bytes % BLOCK_BYTES == 0 for local in _locals(op)),
        lambda op, _: (
            f"each operand must start at a multiple of {BLOCK_BYTES} bytes, not at "
            f"{', '.join(str(local.offset_bytes) for local in _locals(op))}; align it"
        ),
    ),
    Rule(
        (Load, Store),
        lambda op, _: op.pitch_bytes % BLOCK_BYTES == 0 and _global(op).burst_bytes > 0,
        lambda op, _: (
            f"rows must be filled and lie whole blocks of {BLOCK_BYTES} bytes apart, not "
            f"{_global(op).burst_bytes} bytes every {op.pitch_bytes}; pad the rows"
        ),
    ),
    Rule(
        (Load,),
        lambda op, _: op.src.bursts == 1 or op.pitch_bytes >= _padded(op.src.burst_bytes),
        lambda op, _: (
            f"rows must lie at least the {_padded(op.src.burst_bytes)} bytes apart that each "
            f"fills, not {op.pitch_bytes}; raise the pitch"
        ),
    ),
    Rule(
        (Load, Store),
        _granular,
        lambda op, at: (
            f"bursts and strides must be multiples of {_granule(op, at)} bytes on arch "
            f"{at.spec.arch}, not {_global(op).burst_bytes} and {_global(op).stride_bytes}; "
            f"copy row by row, and let the tail overlap"
        ),
    ),
    Rule(
        (Cast,),
        lambda op, at: op.mode in CASTS[at.spec.arch].get((op.src.dtype, op.dst.dtype), ()),
        lambda op, at: (
            f"mode must be one of "
            f"{', '.join(CASTS[at.spec.arch].get((op.src.dtype, op.dst.dtype), ('none known',)))} "
            f"for {op.src.dtype.name} to {op.dst.dtype.name} on arch {at.spec.arch}, "
            f"not {op.mode!r}; use one of these, or cast in two steps"
        ),
    ),
    Rule(
        ARITHMETIC,
        lambda op, _: (
            op.dst.dtype in (DIV_DTYPES if op.op == "div" else ARITHMETIC_DTYPES)
            and all(local.dtype is op.dst.dtype for local in reads(op))
        ),
        lambda op, _: (
            f"operands must share one of "
            f"{_names(DIV_DTYPES if op.op == 'div' else ARITHMETIC_DTYPES)}, not "
            f"{', '.join(local.dtype.name for local in _locals(op))}; cast first"
        ),
    ),
    Rule(
        (Cast, Copy, *ARITHMETIC),
        lambda op, _: all(local.count == op.dst.count > 0 for local in reads(op)),
        lambda op, _: (
            f"operands must have the same number of elements, and at least one, not "
            f"{', '.join(str(local.count) for local in _locals(op))}; cut them alike"
        ),
    ),
    Rule(
        (Duplicate, Broadcast, Reduce, Copy),
        lambda op, _: (
            op.dst.dtype.bits in (16, 32)
            and all(local.dtype is op.dst.dtype for local in reads(op))
        ),
        lambda op, _: (
            f"operands must share one type of 16 or 32 bits, not "
            f"{', '.join(local.dtype.name for local in _locals(op))}; cast first"
        ),
    ),
    Rule(
        (Broadcast,),
        lambda op, _: op.dst.nbytes == op.src.count * BLOCK_BYTES,
        lambda op, _: (
            f"dst must be {BLOCK_BYTES} bytes for each of the {op.src.count} elements, "
            f"not {op.dst.nbytes} in all; change its count"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: all(_whole_repeats(local) for local in _locals(op) if local.is_strided),
        lambda op, _: (
            f"strided operands must be blocks of {BLOCK_BYTES} bytes, up to 8 or a multiple of 8, "
            f"not {', '.join(str(local.nbytes) for local in _locals(op))} bytes; pad them"
        ),
    ),
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
    Rule(
        FLAGS,
        lambda op, at: 0 <= op.event < at.spec.sync.event_ids and op.src != op.dst,
        lambda op, at: (
            f"a flag must go between two pipes with an event in [0, {at.spec.sync.event_ids}), "
            f"not {op.src}->{op.dst} {op.event}; use another event"
        ),
    ),
    Rule(
        FLAGS,
        lambda op, at: {op.src, op.dst} <= set(at.core.pipes),
        lambda op, at: (
            f"a flag must go between pipes of {at.kind}, which are {', '.join(at.core.pipes)}, "
            f"not {op.src}->{op.dst}; drop it"
        ),
    ),
)


def check(program: Program, place: Place) -> None:
    """Raise RuleError for the first micro-op of *program* that *place* does not accept."""
    rows: dict[type, list[Rule]] = {}
    for rule in RULES:
        for kind in rule.kinds:
            rows.setdefault(kind, []).append(rule)
    seen: set[MicroOp] = set()
    for index, op in enumerate(program.ops):
        if op in seen:
            continue
        seen.add(op)
        if op.pipe not in place.core.pipes:
            raise RuleError(
                f"{program.name} #{index}: {op}: its pipe must be one of {place.kind}'s, which are "
                f"{', '.join(place.core.pipes)}, not {op.pipe}; run it on another kind of core"
            )
        for rule in rows.get(type(op), ()):
            if not rule.holds(op, place):
                raise RuleError(f"{program.name} #{index}: {op}: {rule.says(op, place)}")
