"""The arguments of a call as plain arrays, whatever layout they came in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, Array, cast, unpack_int4
from npusim.data.tensor import Tensor, is_transposed
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["CubeOrder", "ReferenceInputs", "reference_inputs"]

CubeOrder = Literal["k16", "k8", "k4", "k1"]
"""How many products the cube adds up at a time."""


@dataclass(frozen=True, slots=True)
class ReferenceInputs:
    """The numbers of a call, and what the kernel's arithmetic depends on."""

    x: Array
    """`(m, k)`, fp16 or bf16."""
    weight: Array
    """`(k, n)` int8; int4 numbers are int8 here."""
    scale: Array
    """`(groups, n)`, one group unless scaled per group; fp16, bf16 or int64."""
    offset: Array | None
    """`(groups, n)`, fp16, bf16 or int32."""
    quant: Array | None
    """`(n,)` int64."""
    bias: Array | None
    """`(n,)` float32."""
    traits: CallTraits
    inner_precise: int
    aic: int
    overflow: Literal["inf_nan", "saturate"]
    cube_order: CubeOrder

    def half(self, values: Array) -> Array:
        """float32 *values* rounded to fp16, ties to even."""
        with np.errstate(over="ignore"):
            return self._fitted(values.astype(np.float16), 65504.0)

    def to_x(self, values: Array) -> Array:
        """float32 *values* rounded to the type of x, ties to even."""
        if self.x.dtype == np.float16:
            return self.half(values)
        return self._fitted(values.astype(BFLOAT16.numpy), (2 - 2.0**-7) * 2.0**127)

    def round_to_x(self, values: Array) -> Array:
        """float32 *values* rounded to the type of x, ties away from zero (CAST_ROUND)."""
        target = FLOAT16 if self.x.dtype == np.float16 else BFLOAT16
        return cast(values, target, "round", self.overflow)

    def _fitted(self, values: Array, largest: float) -> Array:
        if self.overflow == "inf_nan":
            return values
        limit = values.dtype.type(largest)
        kept = np.where(np.isnan(values), values.dtype.type(0), values)
        return np.asarray(np.minimum(np.maximum(kept, -limit), limit))

    def per_row(self, parameter: Array) -> Array:
        """Scale or offset `(groups, n)` for each of the weight's k rows: `(k or 1, n)`."""
        if self.traits.scaling != "group":
            return parameter
        repeated: Array = np.repeat(parameter, self.traits.group_size, axis=0)
        return repeated[: self.traits.k]


def reference_inputs(
    x: Any,
    weight: Any,
    scale: Array,
    offset: Array | None,
    quant: Array | None,
    bias: Array | None,
    group_size: int,
    deterministic: bool,
    **device: Any,
) -> ReferenceInputs:
    """Convert the arguments to plain layouts.

    *device* are those fields of :class:`ReferenceInputs` that the chip and the modes fix.
    """
    is_nz = isinstance(weight, Tensor) and weight.layout != "ND"
    trans_x, trans_weight = is_transposed(x), is_transposed(weight)
    plain, whole = np.asarray(x), np.asarray(weight)
    is_int4 = whole.dtype == np.int32
    if is_int4:
        gm_matrix = np.ascontiguousarray(whole.T if trans_weight else whole)
        nibbles = unpack_int4(gm_matrix.view(np.uint8))
        whole = nibbles.T if trans_weight else nibbles
    (m, k), n = plain.shape, whole.shape[1]
    traits = CallTraits(
        m,
        k,
        n,
        x=plain.dtype.name,
        weight="int4" if is_int4 else "int8",
        trans_x=trans_x,
        trans_weight=trans_weight,
        is_nz=is_nz,
        scaling="group" if group_size else "tensor" if scale.size == 1 else "channel",
        group_size=group_size,
        has_offset=offset is not None,
        has_bias=bias is not None,
        has_quant=quant is not None,
        is_packed=scale.dtype == np.int64,
        deterministic=deterministic,
    )
    return ReferenceInputs(
        plain,
        whole,
        _spread(np.asarray(scale), n),
        None if offset is None else _spread(np.asarray(offset), n),
        None if quant is None else _spread(quant, n)[0],
        None if bias is None else _spread(bias.astype(np.float32), n)[0],
        traits,
        **device,
    )


def _spread(parameter: Array, n: int) -> Array:
    """One number, `(n,)` or `(groups, n)` as `(groups, n)`."""
    if parameter.size == 1:
        return np.full((1, n), parameter.reshape(())[()], parameter.dtype)
    return parameter.reshape(-1, n)
