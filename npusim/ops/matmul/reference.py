"""matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.product import CubeOrder
from npusim.data.tensor import Tensor, is_transposed
from npusim.devices.schema import DeviceSpec
from npusim.ops._products import cube_product
from npusim.ops.matmul import k_split
from npusim.ops.matmul.choice import Template, choose
from npusim.ops.matmul.references.chunks import in_chunks, in_runs
from npusim.ops.matmul.traits import CallTraits, Chip

__all__ = ["reference"]

LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}


def reference(
    x1: Array | Tensor,
    x2: Array | Tensor,
    bias: Array | None = None,
    *,
    output_dtype: str | None = None,
    template: str | None = None,
    cube_order: CubeOrder = "k16",
    spec: DeviceSpec | None = None,
) -> Array:
    """`x1 (..., m, k) @ x2 (..., k, n) + bias (n,)`, batches broadcast, in the type of x1.

    *x2* may be a Tensor of any layout; *output_dtype* may be "float32", which leaves the last
    rounding out; *template* names the kernel. *spec* says which one is taken
    otherwise, and what becomes of results out of range; None is an Atlas A2 with 24 cube cores.
    """
    a, b = np.asarray(x1), np.asarray(x2)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    traits = _traits(x1, x2, bias, output_dtype)
    if traits.matrices == 1:
        a, b = a.reshape(-1, a.shape[-1]), b.reshape(b.shape[-2:])
    choice = choose(traits, spec, template)
    total = _sums(choice.template, traits, Chip.of(spec), (a, b, bias, cube_order))
    total = total.reshape(shape)
    if traits.is_wide:
        return total
    kind = a.dtype
    if spec is not None and spec.half_overflow == "saturate":
        largest = LARGEST[kind.name]
        total = np.clip(np.where(np.isnan(total), 0, total), -largest, largest)
    with np.errstate(over="ignore"):
        return np.asarray(total.astype(kind))


Call = tuple[Array, Array, Array | None, CubeOrder]
"""Operands, bias and order of the cube."""


def _sums(template: Template, f: CallTraits, chip: Chip, call: Call) -> Array:
    """What *template* sums up: `(..., m, n)` in fp32."""
    match template:
        case "al1_split_k":
            return in_chunks(*call, k_split.resident_tiles(f, chip).chunk_k)
        case "single_core_split_k":
            return in_chunks(*call, k_split.single_core_chunk_k(f, chip))
        case "deterministic_split_k":
            return in_runs(*call, k_split.STRIP, k_split.cores_along_k(f, chip))
    return cube_product(*call)


def _traits(
    x1: Array | Tensor, x2: Array | Tensor, bias: Array | None, output_dtype: str | None
) -> CallTraits:
    """What the choice of a kernel looks at."""
    m, matrices = x1.shape[-2], prod(np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2]))
    if prod(x2.shape[:-2]) == 1 and not (is_transposed(x1) and matrices > 1):
        # The rows of all matrices of x1 are those of one.
        m, matrices = matrices * m, 1
    return CallTraits(
        *(m, x1.shape[-1], x2.shape[-1], str(x1.dtype), matrices),
        trans_x1=is_transposed(x1),
        trans_x2=is_transposed(x2),
        is_nz=isinstance(x2, Tensor) and x2.layout != "ND",
        has_bias=bias is not None,
        is_wide=output_dtype == "float32",
    )
