"""Reductions along an axis: sums, means, the maximum and its index, and softmax.

.. code-block:: text

    sum, mean, amax       one number per row
    argmax                the index of the first maximum
    softmax               y = e ** (x - max) / sum(e ** (x - max))
    log_softmax           y = x - max - ln(sum(e ** (x - max)))

Sums are in float32. The order of additions is assumed: along the last axis by halves and then
neighbours, along others one row after another. The vendor's generator is closed, so sums are not
claimed to be bit for bit those of a card.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops import _protocol
from npusim.ops._protocol import Operator
from npusim.ops.families.reductions import column_softmax, columns, kernel, long_rows, segments
from npusim.ops.families.reductions.contract import SUPPORT, Problem, check
from npusim.ops.families.reductions.reference import compute

TABLE = {
    # Operator: the vendor's kernel, what it does, the formula, a note on types.
    "sum": (
        "ReduceSum",
        "the sum of each row, or column",
        "y = x[0] + x[1] + ... in float32",
        "float16 and bfloat16 are widened first, and the sum is rounded once.",
    ),
    "mean": (
        "ReduceMean",
        "the mean of each row, or column",
        "y = x[0] * (1 / n) + x[1] * (1 / n) + ... in float32",
        "float16 and bfloat16 are widened first, and the mean is rounded once.",
    ),
    "amax": (
        "ReduceMax",
        "the largest of each row, or column",
        "y = max(x[0], x[1], ...)",
        "NaN is largest.",
    ),
    "argmax": (
        "ArgMaxV2",
        "the index of the largest element of each row, as int32",
        "y = the first i where x[i] = max(x[0], x[1], ...)",
        "That the largest is found first and then where it is, and that a row with NaN gives its "
        "last index, is assumed.",
    ),
    "softmax": (
        "SoftmaxV2",
        "exponentials of each row over their sum, along an axis",
        "y = e ** (x - max) / sum(e ** (x - max))",
        "float16 subtracts in float16, all else is in float32; Atlas inference multiplies by one "
        "over the sum.",
    ),
    "log_softmax": (
        "LogSoftmaxV2",
        "the logarithm of softmax",
        "y = x - max - ln(sum(e ** (x - max)))",
        "All is in float32, but the largest of float32 and bfloat16 along the last axis is rounded "
        "to float16: beyond 65504 comes NaN or an infinity.",
    ),
}


Kernel = tuple[Callable[..., _protocol.Plan], Callable[..., tuple[Block, ...]]]
"""The function that splits a problem, and the one that writes its programs."""


def _kernel(spec: DeviceSpec, p: Problem) -> Kernel:
    """The kernel for rows, or for columns."""
    if p.inner > 1 and p.keeps_shape:
        return column_softmax.tile, column_softmax.build
    if p.inner > 1:
        return columns.tile, columns.build
    if kernel.fits(spec, p):
        return kernel.tile, kernel.build
    if p.name in segments.NAMES:
        return segments.tile, segments.build
    return long_rows.tile, long_rows.build


def _tile(spec: DeviceSpec, p: Problem) -> _protocol.Plan:
    return _kernel(spec, p)[0](spec, p)


def _build(spec: DeviceSpec, p: Problem, plan: _protocol.Plan) -> tuple[Block, ...]:
    return _kernel(spec, p)[1](spec, p, plan)


def _operator(name: str) -> Operator:
    vendor, caption, formula, note = TABLE[name]
    return Operator(
        signature=f"{name}(Tensor x, int dim=-1) -> Tensor",
        document=(
            f"{name}: {caption}.\n\n.. code-block:: text\n\n    {formula}\n\n"
            f"The vendor's kernel is {vendor}; *dim* is any axis. {note}"
        ),
        kernel_type=vendor,
        support=SUPPORT,
        contract=check,
        tile=_tile,
        build=_build,
        oracle=partial(compute, name),
        at_once=lambda given, *_: compute(name, given),
    )


OPERATORS = tuple(map(_operator, TABLE))
