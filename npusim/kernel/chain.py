"""Chains of vector micro-ops that the quantisation kernels share, each step behind a barrier."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, INT4, INT32, DType, RoundMode
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Cast, Local, MicroOp
from npusim.kernel.builder import Builder

__all__ = ["step", "to_float32", "to_quantised"]

__kernel_vocabulary__ = True


def step(builder: Builder, op: MicroOp) -> None:
    """One vector micro-op and the barrier that lets the next one read its result."""
    builder.emit(op)
    builder.barrier("vector")


def to_float32(builder: Builder, dst: Local, src: Local) -> None:
    """Widen *src* to float32; int8, uint8 and int4 go by way of float16."""
    if src.dtype.bits <= 8:
        # In the upper half of dst, so that no result overtakes what is still to be read.
        upper = (
            dst.offset_bytes
            + align_up(dst.nbytes, BLOCK_BYTES)
            - align_up(FLOAT16.nbytes(dst.count), BLOCK_BYTES)
        )
        half = Local(dst.buffer, upper, FLOAT16, dst.count)
        step(builder, Cast(half, src, "none"))
        src = half
    step(builder, Cast(dst, src, "none"))


def to_quantised(builder: Builder, spec: DeviceSpec, dst: Local, values: Local) -> None:
    """Round float32 *values*, ties to even, and narrow them; *values* is overwritten.

    int32 is one cast. The others go float32 -> int32 -> float16 -> target, which saturates and
    gives 0 for NaN. The last step finds integers, so its rounding cannot be seen; 310P has no
    round-to-even there and takes half away from zero (ops-nn@e5c3fa9 quant/ascend_quant_v2).
    """
    if dst.dtype is INT32:
        step(builder, Cast(dst, values, "rint"))
        return
    whole = values.as_dtype(INT32)
    half = Local(values.buffer, values.offset_bytes, FLOAT16, values.count)
    step(builder, Cast(whole, values, "rint"))
    step(builder, Cast(half, whole, "none"))
    step(builder, Cast(dst, half, _last_rounding(spec, dst.dtype)))


def _last_rounding(spec: DeviceSpec, target: DType) -> RoundMode:
    if spec.arch == "2002":
        return "none" if target is INT4 else "round"
    return "rint"
