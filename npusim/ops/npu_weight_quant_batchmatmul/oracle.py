"""npu_weight_quant_batchmatmul on whole arrays in plain numpy, a function for each template.

Every `+`, `*` and `/` on a float32 array is one IEEE operation of the vector pipe, rounded to
nearest even; each line rounds as often as it has operators.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel: *_custom.h, *_custom_weight_nz.h,
*_custom_mix_splitk.h, *_custom_nz_splitk.h, fixpipe/, *_weight_nz_performance.h,
*_msd_multicore.h, *_msd_split_k.h, *_msd_group.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from warnings import catch_warnings, simplefilter

import numpy as np

from npusim import devices
from npusim.data.dtypes import FLOAT16, Array, cast
from npusim.data.errors import DocumentWarning
from npusim.data.few_rows import few_rows_product
from npusim.data.int_product import int_product
from npusim.data.tensor import Operand, is_transposed
from npusim.ops._digits import away, fitted, pair_sum
from npusim.ops._int4_matmul import unpacked
from npusim.ops._matmul_oracle import (
    IntProduct,
    cube_product,
    exact_int,
    fixpipe_int8,
    scale_of_words,
)
from npusim.ops._oracle import without_nan
from npusim.ops._vocabulary import Contract, Given
from npusim.ops.npu_weight_quant_batchmatmul.check import SUPPORT, check
from npusim.ops.npu_weight_quant_batchmatmul.choice import (
    OP,
    CallTraits,
    block_k,
    k_step,
    scheme_of,
)
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem

F32 = np.float32
DEFAULT = "ascend910b2"
"""The chip whose choice of kernel applies by default: an Atlas A2 with 24 cube cores."""


def oracle(given: Given) -> Array:
    """Multiply x `(m, k)` by the dequantised weight `(k, n)` like the template.

    The chip determines the template, how many cores share k, and the handling of overflow.
    """
    return _computed(Inputs.of(given, cube_product, exact_int))


def at_once(given: Given, *_: object) -> Array | None:
    """The same with faster products."""
    return without_nan(_computed(Inputs.of(given, few_rows_product, int_product)))


def _computed(call: Inputs) -> Array:
    with np.errstate(all="ignore"):
        choice = call.p.choice
        y = TEMPLATES[choice.template, choice.form](call)
        return call.round_to_x(y) if choice.template in ("msd", "msd_group") else y


@dataclass(frozen=True, slots=True)
class Inputs:
    """The elements of a call in plain layouts, and the kernel that takes it."""

    given: Given
    p: Problem
    multiply: Callable[..., Array]
    """Multiplies floats: see :func:`cube_product`."""
    multiply_int: IntProduct
    cube_cores: int
    x: Array
    """`(m, k)`, fp16 or bf16."""
    weight: Array
    """`(k, n)` int8; int4 elements are int8 here."""
    scale: Array
    """`(groups, n)`, one group unless scaled per group; fp16, bf16 or int64."""
    offset: Array | None
    """`(groups, n)`, fp16, bf16 or int32."""
    quant: Array | None
    """`(1, n)` int64."""
    bias: Array | None
    """`(1, n)` float32."""

    @staticmethod
    def of(given: Given, multiply: Callable[..., Array], multiply_int: IntProduct) -> Inputs:
        """The inputs of a call, whatever their layout."""
        spec = given.spec or devices.load(DEFAULT)
        with catch_warnings():
            simplefilter("ignore", DocumentWarning)
            p = check(Contract(OP, spec, arguments=given.arguments, support=SUPPORT))
        weight = np.asarray(given.weight)
        if weight.dtype == np.int32:
            weight = unpacked(weight, is_transposed(given.weight))
        return Inputs(
            given,
            p,
            multiply,
            multiply_int,
            spec.cores["aic"].count if "aic" in spec.cores else 0,
            np.asarray(given.x),
            weight,
            _spread(p.antiquant_scale, p),
            None if p.antiquant_offset is None else _spread(p.antiquant_offset, p),
            None if p.quant_scale is None else _spread(p.quant_scale, p),
            None if p.bias is None else _spread(p.bias, p).astype(F32),
        )

    @property
    def traits(self) -> CallTraits:
        return self.p.traits

    @property
    def is_half(self) -> bool:
        """Whether x is fp16."""
        return self.p.x.element is FLOAT16

    def half(self, values: Array) -> Array:
        """float32 *values* rounded to fp16, ties to even."""
        return self.given.rounded(values, np.dtype(np.float16))

    def to_x(self, values: Array) -> Array:
        """float32 *values* rounded to the type of x, ties to even."""
        return self.given.rounded(values, self.x.dtype)

    def round_to_x(self, values: Array) -> Array:
        """float32 *values* rounded to the type of x, ties away from zero (CAST_ROUND)."""
        spec = self.given.spec
        overflow = "inf_nan" if spec is None else spec.half_overflow
        return cast(values, self.p.x.element, "round", overflow)

    def per_row(self, parameter: Array) -> Array:
        """Scale or offset `(groups, n)` for each of the weight's k rows: `(k or 1, n)`, float32."""
        if self.traits.scaling == "group":
            parameter = np.repeat(parameter, self.traits.group_size, axis=0)[: self.traits.k]
        return parameter.astype(F32)

    def cube(self, weight: Array, start: int = 0, bias: Array | None = None) -> Array:
        """The columns of x from *start* on times *weight*, float32; sums start with *bias*."""
        x = self.x[:, start : start + len(weight)]
        return self.multiply(x, weight, bias, self.given.cube_order)

    def zeros(self) -> Array:
        """`(m, n)` float32."""
        return np.zeros((self.traits.m, self.traits.n), F32)


def _spread(operand: Operand, p: Problem) -> Array:
    """One value, `(n,)` or `(groups, n)` as `(groups, n)`."""
    array, n = np.asarray(operand.array), p.traits.n
    return np.full((1, n), array.reshape(())) if array.size == 1 else array.reshape(-1, n)


# ---- templates that dequantise the weight and multiply floats ----


def dequantised(call: Inputs, *, in_half: bool = True, scaled: bool = True) -> Array:
    """Weight plus offset, times scale if *scaled*, in the type of x.

    The sum is rounded to fp16 if *in_half*, after a bf16 offset has been; otherwise it stays fp32.
    """
    value = call.weight.astype(F32)
    if call.offset is not None:
        offset = call.per_row(call.offset)
        if in_half and not call.is_half:
            offset = call.half(offset).astype(F32)
        value = value + offset
        value = call.half(value).astype(F32) if in_half else value
    return call.to_x(value * call.per_row(call.scale) if scaled else value)


def custom(call: Inputs) -> Array:
    """`(m, n)` in the type of x, or int8 with a quant_scale."""
    y = call.cube(dequantised(call, in_half=call.is_half), bias=call.bias)
    return call.to_x(y) if call.quant is None else fixpipe_int8(y, call.quant)


def fixpipe(call: Inputs) -> Array:
    """`(m, n)` fp16: the cube itself adds the int32 offset, the fixpipe applies the scale."""
    whole = call.weight.astype(np.int64)
    if call.offset is not None:
        whole = whole + call.offset
    weight = call.half(whole.astype(F32) * scale_of_words(call.scale))
    return call.half(call.cube(weight, bias=call.bias))


def split_k(call: Inputs) -> Array:
    """`(m, n)` bf16: the groups' products are added one after the other, ascending."""
    return call.to_x(_in_steps(call, dequantised(call), call.traits.group_size))


def nz_splitk(call: Inputs) -> Array:
    """`(m, n)` in the type of x: the cores along k add their products, ascending.

    bf16 weights are not scaled before the product; the sum is. The sum of several
    cores, of bf16, or with a bias, is rounded by a vector core with ties away from zero; otherwise
    the fixpipe rounds, ties to even.
    """
    weight, step = dequantised(call, scaled=call.is_half), k_step(call.traits, call.cube_cores)
    if call.is_half and step >= call.traits.k and call.bias is None:
        return call.to_x(call.cube(weight))
    y = _in_steps(call, weight, step)
    if not call.is_half:
        y = y * call.scale.astype(F32)
    return call.round_to_x(y if call.bias is None else y + call.bias)


def _in_steps(call: Inputs, weight: Array, step: int) -> Array:
    """Products of *step* of k each, added to zero in float32, ascending."""
    y = call.zeros()
    for start in range(0, call.traits.k, step):
        y = y + call.cube(weight[start : start + step], start)
    return y


# ---- x split into digits ----


def absmax(rows: Array) -> Array:
    """`(..., 1)`: the largest magnitude of each row."""
    return np.asarray(np.abs(rows).max(axis=-1, keepdims=True))


def lanes_sum(rows: Array) -> Array:
    """64 lanes that each add every 64th element, then :func:`pair_sum`; a tail of 32 goes to 32."""
    lanes = rows[..., :64]
    for start in range(64, rows.shape[-1], 64):
        piece = rows[..., start : start + 64]
        width = piece.shape[-1]
        lanes = np.concatenate([lanes[..., :width] + piece, lanes[..., width:]], axis=-1)
    return pair_sum(lanes)


def halving_sum(rows: Array) -> Array:
    """Add the upper half of the vectors of 64 to the lower half, repeatedly, then sum the lanes.

    With an odd number of vectors the last is carried along; a tail of 32 is added at the end.
    """
    whole = rows.shape[-1] // 64 * 64
    vectors = rows[..., :whole].reshape(*rows.shape[:-1], -1, 64)
    while vectors.shape[-2] > 1:
        half = vectors.shape[-2] // 2
        sums = vectors[..., :half, :] + vectors[..., half : 2 * half, :]
        vectors = np.concatenate([sums, vectors[..., 2 * half :, :]], axis=-2)
    return lanes_sum(np.concatenate([vectors[..., 0, :], rows[..., whole:]], axis=-1))


# ---- msd with a scale for each column ----

FIRST = F32(127.499)
SECOND = F32(127.499**2 * 2)
"""The product is computed in double, then rounded."""


def multicore(call: Inputs, *, precise: bool = False) -> Array:
    """`(m, n)` float32 before rounding; *precise* sums the digits of a row instead of x."""
    x = call.x.astype(F32)
    largest = absmax(x)
    # If a row fills a whole step, it is processed alone, with the scalar unit's reciprocal.
    q = x / largest if x.shape[1] < 128 else x * (F32(1) / largest)
    first = away(q * FIRST)
    undone = first * (F32(1) / FIRST)
    second = away((q - undone) * SECOND)
    if precise:
        rest = second * (F32(1) / SECOND)
        total = (halving_sum(undone) + halving_sum(rest)) * largest
    else:
        total = halving_sum(x) if x.shape[1] >= 4096 else lanes_sum(x)
    products = [call.multiply_int(fitted(a), call.weight).astype(F32) for a in (first, second)]
    y = products[0] * (F32(1) / FIRST) + products[1] * (F32(1) / SECOND)
    y = y * largest
    if call.offset is not None:
        y = total * call.offset.astype(F32) + y
    y = y * call.scale.astype(F32)
    return y if call.bias is None else y + call.bias


def msd_split_k(call: Inputs) -> Array:
    """`(m, n)` float32 before rounding, from blocks of k with separate digits."""
    f = call.traits
    depth, digits = block_k(f), scheme_of(f)
    scale, starts = call.scale.astype(F32), range(0, f.k, depth)
    x = np.pad(call.x.astype(F32), ((0, 0), (0, len(starts) * depth - f.k)))
    y = call.zeros()
    if call.offset is not None:
        both = scale * call.offset.astype(F32)
        for start in starts:
            y = halving_sum(x[:, start : start + depth]) * both + y
    for start in starts:
        block, weight = x[:, start : start + depth], call.weight[start : start + depth]
        largest, u = absmax(block), call.zeros()
        for a, undo in zip(digits.split(block, largest), digits.weights, strict=True):
            u = call.multiply_int(a[:, : len(weight)], weight).astype(F32) * F32(undo) + u
        y = (u * scale) * largest + y
    return y if call.bias is None else y + call.bias


# ---- msd with scales for groups of k ----

PACK_DEPTH = 1024
"""Groups are summed in packs of this much of k."""


def msd_per_group(call: Inputs) -> Array:
    """`(m, n)` float32: the offsets of a pack's groups first, then their products."""
    y, groups = call.zeros(), range(call.scale.shape[0])
    step = PACK_DEPTH // call.traits.group_size
    for first in range(0, len(groups), step):
        pack = groups[first : first + step]
        if call.offset is not None:
            for group in pack:
                y = _group_offset(call, group) + y
        for group in pack:
            u = _group_product(call, group) * call.scale[group].astype(F32)
            y = u * absmax(_group_x(call, group)) + y
    return y if call.bias is None else y + call.bias


def msd_group(call: Inputs) -> Array:
    """`(m, n)` float32: each core sums its groups, then the cores are added, ascending."""
    y, groups = call.zeros(), range(call.scale.shape[0])
    step = k_step(call.traits, call.cube_cores) // call.traits.group_size
    for first in range(0, len(groups), step):
        y = y + _core_sum(call, groups[first : first + step])
    return y if call.bias is None else y + call.bias


def _core_sum(call: Inputs, groups: range) -> Array:
    """The contribution of one core to the result: offset and product of each group in turn."""
    parts = []
    for group in groups:
        if call.offset is not None:
            parts.append(_group_offset(call, group))
        u = _group_product(call, group) * call.scale[group].astype(F32)
        parts.append(u * absmax(_group_x(call, group)))
    total = parts[0]
    for part in parts[1:]:
        total = part + total
    return total


def _group_x(call: Inputs, group: int) -> Array:
    size = call.traits.group_size
    return np.asarray(call.x[:, group * size : (group + 1) * size].astype(F32))


def _group_offset(call: Inputs, group: int) -> Array:
    """The row sums of x times scale times offset, `(m, n)`."""
    assert call.offset is not None
    both = call.scale[group].astype(F32) * call.offset[group].astype(F32)
    return np.asarray(lanes_sum(_group_x(call, group)) * both)


def _group_product(call: Inputs, group: int) -> Array:
    """x over its largest magnitude, times the weight, for one group: `(m, n)` float32.

    With inner_precise=1 the cube stores fp16 and the digits of int4 are combined in fp16.
    """
    size, digits, x = call.traits.group_size, scheme_of(call.traits), _group_x(call, group)
    weight = call.weight[group * size : (group + 1) * size]
    products = [call.multiply_int(a, weight).astype(F32) for a in digits.split(x, absmax(x))]
    if call.given.inner_precise and call.traits.weight == "int4":
        return in_half(call, products) * F32(digits.weights[0])
    total = products[0] * F32(digits.weights[0])
    for product, undo in zip(products[1:], digits.weights[1:], strict=True):
        total = product * F32(undo) + total
    return total


def in_half(call: Inputs, products: list[Array]) -> Array:
    """The digits' products combined in fp16, rounded after each step; as float32."""
    factors = (1 / 14.98, 1 / 14.98**2)
    first, *rest = (call.half(product).astype(F32) for product in products)
    for product, factor in zip(rest, factors, strict=True):
        step = call.half(product * F32(np.float16(factor))).astype(F32)
        first = call.half(step + first).astype(F32)
    return first


TEMPLATES: dict[tuple[str, str], Callable[[Inputs], Array]] = {
    ("msd", "multicore"): multicore,
    ("msd", "multicore_hp"): lambda call: multicore(call, precise=True),
    ("msd", "split_k"): msd_split_k,
    ("msd", "per_group"): msd_per_group,
    ("msd_group", ""): msd_group,
    ("split_k", ""): split_k,
    ("nz_splitk", ""): nz_splitk,
    ("custom", "nd"): custom,
    ("custom", "nz"): custom,
    ("fixpipe", ""): fixpipe,
    ("weight_nz", ""): custom,
}
"""Template and form -> its oracle; the sums of msd and msd_group are not rounded yet."""
