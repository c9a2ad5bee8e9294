"""Rules that derive the works of the launched kernels from a call of a torch operation.

A rule is a function of the call and the name of its kernel. It returns None if a card runs the
operation on its AI CPU, or if nothing is known about its kernel.
"""

from __future__ import annotations

from math import prod

import torch

from npusim.torch.host.comparisons import is_in_float64
from npusim.torch.works.call import (
    FLOATS,
    HALF,
    Call,
    Rule,
    Works,
    axis_of,
    bits_of,
    cast,
    elements,
)
from npusim.torch.works.copies import Runs
from npusim.torch.works.passes import Pass, RowPasses
from npusim.torch.works.scans import RunningSum
from npusim.torch.works.sorts import RowSort
from npusim.torch.works.streams import MASK, Stream
from npusim.torch.works.work import Work

__all__ = [
    "channels",
    "compared",
    "divided",
    "floored",
    "layer_norm",
    "moment",
    "moved",
    "number_a_row",
    "ranked",
    "running",
    "statistics",
    "stream",
    "strided",
    "written",
]

SORTED = FLOATS
"""Types that Sort and TopKV2 accept; integers are sorted by the AI CPU (ops-math, sort.cpp,
topk.cpp)."""


# ---- over all elements ----


def stream(*steps: str) -> Rule:
    """An elementwise kernel: the instructions *steps* on each element of the result."""

    def rule(call: Call, kernel: str) -> Works:
        found = max(call.outputs, key=torch.Tensor.numel)
        return [elements(kernel, call.inputs, call.outputs, steps, found.numel())]

    return rule


def compared(name: str) -> Rule:
    """Comparison *name*, an elementwise kernel; the AI CPU makes those in float64."""

    def rule(call: Call, kernel: str) -> Works:
        x, other = call.args[:2]
        if isinstance(x, torch.Tensor) and is_in_float64(name, x, other):
            return None
        return stream(MASK)(call, kernel)

    return rule


def floored(*steps: str) -> Rule:
    """An elementwise kernel of a division; the AI CPU divides by a float, in float64."""

    def rule(call: Call, kernel: str) -> Works:
        return None if isinstance(call.args[1], float) else stream(*steps)(call, kernel)

    return rule


def divided(call: Call, kernel: str) -> Works:
    """A quotient, by its rounding mode: RealDiv, FloorDiv, or RealDiv and Trunc."""
    mode = call.kwargs.get("rounding_mode")
    if mode == "floor":
        return floored("div", "add")(call, "FloorDiv")
    first = stream("div")(call, kernel)
    return [*(first or ()), *(stream("add")(call, "Trunc") or ())] if mode == "trunc" else first


def written(call: Call, kernel: str) -> Works:
    """A kernel that fills its result without reading it."""
    return [elements(kernel, [], call.outputs, (), call.outputs[0].numel())]


def moved(call: Call, kernel: str) -> Works:
    """A kernel that copies its input unchanged."""
    found = call.outputs[0]
    return [elements(kernel, [found], [found], (), found.numel())]


def strided(x: torch.Tensor, y: torch.Tensor) -> Works:
    """AsStrided, or ViewCopy if *y* is not contiguous; bytes adjacent in both are a run."""
    size = x.element_size()
    run = size
    for each, a, b in zip(
        reversed(y.shape), reversed(x.stride()), reversed(y.stride()), strict=False
    ):
        if each > 1 and (a * size != run or b * size != run):
            break
        run *= each
    total = y.numel() * size
    runs = max(1, total // run)
    kernel = "AsStrided" if y.is_contiguous() else "ViewCopy"
    pitches = (_pitch(each, run, runs) for each in (x, y))
    names = "read_pitch_bytes", "write_pitch_bytes"
    return [Runs(kernel=kernel, runs=runs, run_bytes=run, **dict(zip(names, pitches, strict=True)))]


def _pitch(x: torch.Tensor, run_bytes: int, runs: int) -> int:
    """The average distance between the starts of runs of *x*, in bytes."""
    steps = ((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    span_bytes = int((sum(steps) + 1) * x.element_size())
    return max(run_bytes, (span_bytes - run_bytes) // max(1, runs - 1))


# ---- in order ----


def ranked(keeps_all: bool) -> Rule:
    """Sort or TopKV2, and the Cast of its indices; with Transposes if it is not the last axis."""

    def rule(call: Call, kernel: str) -> Works:
        x, values = call.args[0], call.outputs[0]
        if x.dtype not in SORTED or (keeps_all and x.shape[-1:] == (1,)):
            return None
        dim = _sorted_dim(call, keeps_all)
        before, along, behind = axis_of(x, dim)
        rows = before * behind
        kept = along if keeps_all else values.numel() // rows
        sort = RowSort(kernel=kernel, rows=rows, columns=along, bits=bits_of(x), kept=max(1, kept))
        works: list[Work] = [sort, cast(values.numel(), 32, 64)]
        if behind > 1:
            works.insert(0, _turned(x))
            works += [_turned(y) for y in call.outputs]
        return works

    return rule


def _sorted_dim(call: Call, keeps_all: bool) -> int:
    """The axis of `sort(x, dim)`, `sort.stable(x, stable=, dim=)` and `topk(x, k, dim)`."""
    if "dim" in call.kwargs:
        return int(call.kwargs["dim"])
    place = 1 if keeps_all else 2
    given = call.args[place] if place < len(call.args) else -1
    if isinstance(given, bool) or given is None:
        given = call.args[place + 1] if place + 1 < len(call.args) else -1
    return int(given)


def _turned(x: torch.Tensor) -> Work:
    size = x.element_size()
    pitch = size * max(1, x.shape[-1])
    return Runs(
        kernel="Transpose",
        runs=x.numel(),
        run_bytes=size,
        read_pitch_bytes=min(pitch, size * max(1, x.numel() - 1)),
        write_pitch_bytes=size,
    )


def running(call: Call, kernel: str) -> Works:
    """Cumsum of floats and int32; int64 runs on the AI CPU."""
    y = call.outputs[0]
    if y.dtype not in (*FLOATS, torch.int32):
        return None
    x = call.args[0]
    first = [cast(x.numel(), bits_of(x), bits_of(y))] if x.dtype != y.dtype else []
    before, lines, inner = axis_of(y, call.value(1, "dim", 0))
    work = RunningSum(kernel=kernel, outer=before, lines=lines, inner=inner, bits=bits_of(y))
    return [*first, work]


# ---- a row at a time ----


def number_a_row(*steps: str, passes: int = 1, casts: bool = False) -> Rule:
    """A reduction over all axes that the results lack; *casts*: a Cast of the indices follows."""

    def rule(call: Call, kernel: str) -> Works:
        x = call.args[0]
        rows = max(1, call.outputs[0].numel())
        numbers = tuple(min(bits_of(y), 32) if casts else bits_of(y) for y in call.outputs)
        work = RowPasses(
            kernel=kernel,
            rows=rows,
            columns=max(1, x.numel() // rows),
            bits=bits_of(x),
            passes=(Pass(steps),) * passes,
            numbers=numbers,
        )
        wide = [y for y in call.outputs if casts and bits_of(y) == 64]
        return [work, *(cast(y.numel(), 32, 64) for y in wide)]

    return rule


def moment(call: Call, kernel: str) -> Works:
    """A variance or its root: the mean, which is expanded to the shape of x, then the squares."""
    x = call.args[0]
    rows, bits = max(1, call.outputs[0].numel()), bits_of(x)
    columns = max(1, x.numel() // rows)
    size = {"rows": rows, "columns": columns, "bits": bits, "numbers": (bits,)}
    return [
        RowPasses(kernel="ReduceMean", passes=(MEAN,), **size),
        Stream(kernel="Expand", elements=x.numel(), loads=(), stores=(bits,)),
        RowPasses(kernel=kernel, passes=(VARIANCE,), others=(bits,), **size),
    ]


MEAN, VARIANCE = Pass(("mul",)), Pass(("sub", "mul", "mul"))
SCALED = Pass(("mul", "mul", "add"), reduces=False)


def layer_norm(call: Call, kernel: str) -> Works:
    """LayerNormV3: mean, variance and result; Casts of mean and rstd if they are 16-bit floats."""
    x, shape, weight, bias = call.args[:4]
    columns = prod(shape)
    rows, bits = x.numel() // max(1, columns), bits_of(x)
    own = 16 if weight is not None and weight.dtype == x.dtype and x.dtype in HALF else 32
    fills: list[Work] = [
        Stream(kernel="Fill", elements=columns, loads=(), stores=(bits,))
        for each in (weight, bias)
        if each is None
    ]
    parameters = tuple(bits if each is None else bits_of(each) for each in (weight, bias))
    work = RowPasses(
        kernel=kernel,
        rows=rows,
        columns=columns,
        bits=bits,
        passes=(MEAN, VARIANCE, SCALED),
        parameters=parameters,
        stores=(bits,),
        numbers=(own, own),
    )
    return [*fills, work, *([cast(rows, 16, 32)] * 2 if own == 16 else [])]


def statistics(call: Call, kernel: str) -> Works:
    """GroupNormSilu with the activation disabled: sums of x and of its squares, then the result."""
    x, groups = call.args[0], call.args[6]
    rows, bits = x.shape[0] * groups, bits_of(x)
    sums = Pass(("mul",), by_scalar=True)
    work = RowPasses(
        kernel=kernel,
        rows=rows,
        columns=x.numel() // rows,
        bits=bits,
        passes=(sums, sums, Pass(("mul", "add"), reduces=False)),
        stores=(bits,),
        numbers=(bits, bits),
    )
    return [work]


def channels(call: Call, kernel: str) -> Works:
    """BNInfer, an elementwise kernel; for training, BNTrainingReduce and BNTrainingUpdate."""
    x, is_training = call.args[0], call.value(5, "training", False)
    first: list[Work] = []
    if is_training:
        rows = x.shape[1]
        first.append(
            RowPasses(
                kernel="BNTrainingReduce",
                rows=rows,
                columns=x.numel() // max(1, rows),
                bits=bits_of(x),
                passes=(Pass(), Pass(("mul",))),
                numbers=(32, 32),
            )
        )
        kernel = "BNTrainingUpdate"
    return [*first, elements(kernel, [x], call.outputs[:1], ("mul", "add"), x.numel())]
