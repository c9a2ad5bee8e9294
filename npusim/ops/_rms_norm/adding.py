"""Two tensors added, their squares added up, and the products of the sum: steps of several kernels.

Numbers of 16 bits are worked on in fp32; fp16 is added and multiplied by gamma as such.

ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryScalar, Local, Register
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.ops._rms_norm.steps import narrow, widen
from npusim.ops._rms_norm.sums import lanes_into

__all__ = ["add", "add_in_float32", "add_squares", "times_gamma", "times_root"]


def add(
    builder: Builder,
    spec: DeviceSpec,
    out: Local,
    values: Local,
    addends: tuple[Local, Local],
    work: Local,
    *,
    is_rounded: bool,
) -> None:
    """The sum of *addends* to *out*, in their type, and to *values* in fp32.

    *is_rounded* takes *values* of bf16 from *out*; *work* has room for fp32. The values of fp32 are
    the first addend's, in its place.
    """
    first, second = addends
    if first.dtype is FLOAT16:
        step(builder, Binary("add", out, first, second))
        widen(builder, values, out)
    elif first.dtype is FLOAT32:
        step(builder, Binary("add", values, first, second))
        widen(builder, out, values)
    else:
        add_in_float32(builder, spec, out, values, addends, work)
        if is_rounded:
            widen(builder, values, out)


def add_in_float32(
    builder: Builder,
    spec: DeviceSpec,
    out: Local,
    values: Local,
    addends: tuple[Local, Local],
    work: Local,
) -> None:
    """The sum of *addends*, of 16 bits, to *values* in fp32 and rounded to *out*."""
    first, second = addends
    widen(builder, values, first)
    widen(builder, work, second)
    step(builder, Binary("add", values, values, work))
    narrow(builder, spec, out, values)


def add_squares(
    builder: Builder, total: Local, lanes: Local, squares: Local, values: Local, mean: float
) -> None:
    """The sum of the squares of *values* `(n,)`, each times *mean*, to *total* `(1,)`."""
    step(builder, Binary("mul", squares, values, values))
    step(builder, BinaryScalar("mul", squares, squares, mean))
    lanes_into(builder, total, lanes, squares)


def times_gamma(
    builder: Builder, spec: DeviceSpec, out: Local, scaled: Local, gamma: Local, work: Local
) -> None:
    """fp32 *scaled* `(width,)`, rounded to the type of *out*, times *gamma* to *out*.

    *scaled* and *work*, in fp32, are overwritten. Of fp32 *out* may be *scaled*.
    """
    if out.dtype is FLOAT32:
        step(builder, Binary("mul", out, scaled, gamma))
        return
    narrow(builder, spec, out, scaled)
    if out.dtype is FLOAT16:
        step(builder, Binary("mul", out, out, gamma))
        return
    widen(builder, scaled, out)
    widen(builder, work, gamma)
    step(builder, Binary("mul", scaled, scaled, work))
    narrow(builder, spec, out, scaled)


def times_root(builder: Builder, dst: Local, values: Local, root: Register = "root") -> None:
    """*values* times a register."""
    step(builder, BinaryScalar("mul", dst, values, root))
