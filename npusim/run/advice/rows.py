"""Changes of the number of rows, tokens or requests of a call."""

from __future__ import annotations

from collections.abc import Iterator

from npusim import ops
from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.reports import style
from npusim.reports.bounds import MIN_SHARE
from npusim.reports.causes import path_causes
from npusim.reports.finish import finishes
from npusim.run.advice.change import Change, resized
from npusim.run.result import Call, Result

__all__ = ["rows"]

MATRICES = ("matmul", "npu_quant_matmul", "npu_weight_quant_batchmatmul")
"""Products with independent rows, which are the second-last axis of the first operand."""
ROWS = (
    *("npu_add_rms_norm", "npu_add_rms_norm_dynamic_quant", "npu_add_rms_norm_quant"),
    *("npu_anti_quant", "npu_dequant_swiglu_quant", "npu_dynamic_quant"),
    *("npu_dynamic_quant_asymmetric", "npu_gelu", "npu_moe_gating_top_k"),
    *("npu_moe_gating_top_k_softmax", "npu_quantize", "npu_rms_norm", "npu_swiglu"),
    "npu_swiglu_quant",
)
"""Operators with independent tokens, which are the first axis."""
MORE = (2, 4, 8, 16)
"""Factors by which the number of rows is increased."""
HARDLY = 1.1
"""More rows are worth suggesting if the kernel takes at most this many times as long."""
UNITS = (16, 32, 64, 128, 256)
"""Fewer rows are tried at these multiples, and at a multiple of the cores started."""
MOST_LEFT = 1 / 8
"""Largest share of the rows that may remain for another call."""


def rows(run: Result, call: Call) -> Iterator[Change]:
    """Fewer rows, if few exceed a boundary, or more rows that take hardly any longer."""
    first, *_ = ops.signature(call.operator).parameters
    x = call.arguments[first]
    if not _has_rows(run, call) or not isinstance(x, TensorSpec) or len(x.shape) < 2:
        return
    axis = -2 if call.operator.name in MATRICES else 0
    count = x.shape[axis]
    # The time of earlier kernels is no indication of the effect of more rows.
    own_us = run.launches[-1].time_us or 0.0
    most_us = (run.time_us or 0.0) + (HARDLY - 1) * own_us
    for other, text in _fewer(run, count):
        for arguments in _with_rows(call, first, axis, other):
            yield Change(
                text=text,
                change=f"pass {other} rows in one call, and the {count - other} left over with "
                f"those of another",
                arguments=arguments,
                topic="rows",
                rows=(count, other),
            )
    for other in (count * times for times in MORE):
        for arguments in _with_rows(call, first, axis, other):
            yield Change(
                text=_shared(run),
                change=f"batch {other} rows in one call",
                arguments=arguments,
                topic="rows",
                rows=(count, other),
                most_us=most_us,
            )


def _fewer(run: Result, count: int) -> Iterator[tuple[int, str]]:
    """Row counts slightly below *count*, the largest first, and why each may be faster."""
    assert run.plan is not None
    cores = run.plan.block_dim
    found = {count // unit * unit: f"{count} rows are no multiple of {unit}" for unit in UNITS}
    if cores > 1:
        even = count // cores * cores
        found[even] = f"{count} rows do not divide evenly among {cores} cores"
    for other in sorted(found, reverse=True):
        if count * (1 - MOST_LEFT) <= other < count:
            yield other, found[other]


def _has_rows(run: Result, call: Call) -> bool:
    """Whether the call has rows, tokens or requests whose number could change."""
    name, given = call.operator.name, run.arguments
    if run.is_own_kernel or name not in (*MATRICES, *ROWS) or given.get("group_index") is not None:
        return False
    tensors = [spec for spec in given.values() if isinstance(spec, TensorSpec)]
    last = len(tensors[0].shape) - 1
    along = (given[axis] for axis in ("axis", "dim") if axis in given)
    return not tensors[0].transposed and all(axis in (-1, last) for axis in along)


def _with_rows(call: Call, first: str, axis: int, other: int) -> Iterator[Arguments]:
    """The call with that many rows: in all tensors of this extent, or in the first one alone."""
    x = call.arguments[first]
    count = x.shape[axis]
    alone = {first: resized(x, axis, other)}
    together = {
        name: resized(value, 0, other)
        for name, value in call.arguments.items()
        if name != first and isinstance(value, TensorSpec) and value.shape[:1] == (count,)
    }
    if together:
        yield alone | together
        pertoken = {name: value for name, value in together.items() if "token" in name}
        matrices = {name: value for name, value in together.items() if len(value.shape) > 1}
        for some in (pertoken, matrices):
            if some and some != together:
                yield alone | some
    yield alone


def _shared(run: Result) -> str:
    """Why more rows may cost little."""
    launch = sum(each.path_share for each in path_causes(run) if each.cause == "launch")
    words = [f"launch and completion take {style.percent(launch)} of the time"]
    for each in finishes(run):
        took = len(each.done_us)
        if each.left_out:
            words.append(f"{each.left_out} of {took + each.left_out} {each.kind} cores get no work")
        elif each.idle:
            words.append(f"{each.idle} of {took} {each.kind} cores are idle in the last wave")
    if run.op in MATRICES:
        words.append("all rows of a call share one read of the weight")
    kept = words if launch >= MIN_SHARE else words[1:] or words
    return ", and ".join(filter(None, (", ".join(kept[:-1]), kept[-1])))
