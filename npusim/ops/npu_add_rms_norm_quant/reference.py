"""npu_add_rms_norm_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.oracle import (
    clamped,
    halving_sum,
    lanes_sum,
    rounded,
    scaled_root,
    sum_of_parts,
)
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_add_rms_norm_quant.choice import Given, choose, piece_columns

__all__ = ["reference"]


def reference(
    x1: Array,
    x2: Array,
    gamma: Array,
    scales1: Array,
    zero_points1: Array | None,
    beta: Array | None = None,
    scales2: Array | None = None,
    zero_points2: Array | None = None,
    *,
    axis: int = -1,  # noqa: ARG001 (there is no other)
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: str | None = None,  # noqa: ARG001 (nor another type)
    template: str | None = None,
    spec: DeviceSpec | None = None,
) -> tuple[Array, Array, Array]:
    """y1 and y2, int8 in the shape of *x1*, and `x = x1 + x2`.

    *gamma* has the shape of the last dimensions of *x1*, and so have the others. y2 without
    *scales2* is not written: zeros here. *template* names the kernel; without it *spec* decides,
    and None is an Atlas A2 of 48 cores.
    """
    nothing = np.zeros(x1.shape, np.int8)
    if not x1.size:
        return nothing, nothing.copy(), x1.copy()
    columns, is_half = gamma.size, x1.dtype == np.float16
    vectors = zero_points1, beta, scales2, zero_points2
    is_one = (
        scales1.shape == (1,)
        and zero_points1 is not None
        and zero_points1.shape == (1,)
        and (beta is not None and scales2 is None and zero_points2 is None and div_mode)
        and gamma.shape in ((x1.shape[-1],), (1, x1.shape[-1]))
    )
    taken, part = _kernel(len(x1.reshape(-1, columns)), columns, vectors, template, spec)
    with np.errstate(all="ignore"):
        first, second = (x.reshape(-1, columns).astype(np.float32) for x in (x1, x2))
        exact = first + second
        x = rounded(exact, x1.dtype, spec)
        is_rounded = not is_one and (is_half or taken == "single_n" or beta is not None)
        values = x.astype(np.float32) if is_rounded else exact
        mean = np.float32(1) / np.float32(columns)
        add = halving_sum if taken == "single_n" and is_half and not is_one else lanes_sum
        root = scaled_root(sum_of_parts(add, values * values * mean, part), epsilon)
        t = _scaled(values * root[:, None], gamma, beta, x1.dtype, spec, is_one=is_one)
        if is_one:
            assert zero_points1 is not None
            t = t * (np.float32(1) / scales1.astype(np.float32))
            y1 = clamped(t + zero_points1.astype(np.float32))
        else:
            y1 = _quantised(t, scales1, zero_points1, div_mode)
        y2 = nothing if scales2 is None else _quantised(t, scales2, zero_points2, div_mode)
    return y1.reshape(x1.shape), y2.reshape(x1.shape), x.reshape(x1.shape)


def _kernel(
    rows: int,
    columns: int,
    vectors: tuple[Array | None, ...],
    template: str | None,
    spec: DeviceSpec | None,
) -> tuple[str, int]:
    """The template, and how many columns of a row are added up at a time."""
    point, beta, scales2, point2 = (vector is not None for vector in vectors)
    given = Given(zero_points1=point, beta=beta, scales2=scales2, zero_points2=point2 and scales2)
    machine = Machine.of(spec)
    taken = template or choose(rows, columns, given, machine).template
    return taken, piece_columns(columns, given, machine) if taken == "split_d" else columns


def _scaled(
    scaled: Array,
    gamma: Array,
    beta: Array | None,
    dtype: np.dtype[Any],
    spec: DeviceSpec | None,
    *,
    is_one: bool,
) -> Array:
    """*scaled* `(rows, columns)` times gamma, plus beta; fp16 rounds twice on the way."""
    weights = gamma.astype(np.float32).reshape(-1)
    if dtype == np.float16 and not is_one:
        halves = rounded(scaled, dtype, spec).astype(np.float32)
        t = rounded(halves * weights, dtype, spec).astype(np.float32)
    else:
        t = scaled * weights
    return t if beta is None else t + beta.astype(np.float32).reshape(-1)


def _quantised(t: Array, scales: Array, points: Array | None, divides: bool) -> Array:
    factors = scales.astype(np.float32).reshape(-1)
    v = t / factors if divides else t * factors
    return clamped(v if points is None else v + points.astype(np.float32).reshape(-1))
