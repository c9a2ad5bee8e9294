"""npu_moe_init_routing_v2: rows of all tokens sorted by their experts.

.. code-block:: text

    order                = the choices (token, j), sorted stably by expert
    output[i]            = x[order[i] / k]                            quant_mode -1
    expanded_scale[i]    = scale[order[i] / k]
    output[i]            = int8(v / s), v = x[order[i] / k] * scale[expert], s = max|v| / 127
                                                                      quant_mode 1
    expanded_scale[i]    = s
    expanded_row_idx     = the row of each choice, or -1              row_idx_type 0
    expanded_row_idx     = order                                      row_idx_type 1
    expert_token_cumsum_or_count = the ends of the experts' rows      expert_tokens_num_type 0
                                   the number of rows of each expert  expert_tokens_num_type 1
                                   (expert, rows), for non-empty ones expert_tokens_num_type 2

Experts outside of active_expert_range are sorted behind all others, those below it last and in
their original order, and their rows are not written. With drop_pad_mode 1 each expert has
expert_capacity rows of output `(experts, capacity, width)`: further ones are dropped, and missing
ones are zeros. v and s are float32; v / s is truncated to the precision of float16 and then
rounded, halves away from zero, so that 2.5 becomes 3. The kernel for single tokens of a certain
model rounds to odd instead of truncating, then halves to even. A row of zeros becomes one of zeros.

A card does not write the rows of experts that are not active, the counts without
expert_tokens_num_flag, and the scales without quantisation; here they are 0.

Atlas inference has another kernel, MoeInitRoutingV2, for rows of float16 and float32 without
quantisation: all experts are active, the index is the row of each choice, and the counts are the
ends of the experts' rows, in int32, whatever row_idx_type, expert_tokens_num_type and
expert_tokens_num_flag are. Its fourth result is expert_tokens_before_capacity, of int32, which that
kernel does not write. See the module `coupled`; more choices than a core can hold are handled by
kernels that are not simulated.

Sources: ops-transformer@c29bc10 moe/moe_init_routing_v3, op_kernel and op_host; torch_npu 2.14.0,
the text of this function, which has only drop_pad_mode 0, and the shapes that it returns to
torch.compile, which include drop_pad_mode 1. Assumed: with drop_pad_mode 1 rows are dropped from
the end, scales and the index refer to places in output, and counts include dropped rows; and what
the modules of this folder say about the schedule. Not simulated: static quantisation, fewer rows
than choices (active_num), and the kernel for many tokens with 8 of 256 experts, of which 32 or
fewer are active; the general one replaces it. Without values of expert_idx the choices are
distributed evenly over the active experts.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_moe_init_routing_v2 import coupled, kernel
from npusim.ops.npu_moe_init_routing_v2.check import (
    PAIRS,
    SUPPORT,
    CoupledPlan,
    Plan,
    Problem,
    check,
    tile,
)


def build(spec: DeviceSpec, p: Problem, plan: Plan | CoupledPlan) -> tuple[Block, ...]:
    """The kernel of the product line."""
    if isinstance(plan, CoupledPlan):
        return coupled.build(spec, p, plan)
    return kernel.build(spec, p, plan)


def oracle(given: ops.Given) -> tuple[Array, Array, Array, Array]:
    """The rows of each expert, in order, their places, their counts and their scales."""
    x, expert_idx, scale, expert_num = given.x, given.expert_idx, given.scale, given.expert_num
    if given.spec is not None and given.spec.series in ops.ATLAS_INFERENCE:
        return _coupled(x, expert_idx, expert_num)
    is_padded, kind = given.drop_pad_mode == 1, given.expert_tokens_num_type
    first, last = given.active_expert_range or (0, expert_num)
    experts, k = expert_idx.ravel(), expert_idx.shape[1]
    is_active = (experts >= first) & (experts < last)
    order = np.argsort(np.where(experts < first, expert_num, experts), kind="stable")
    places, coming = np.arange(is_active.sum()), order[: is_active.sum()]
    shape: tuple[int, ...] = (len(order),)
    if is_padded:
        places, coming = _padded(experts, expert_num, given.expert_capacity)
        shape = expert_num, given.expert_capacity
    new = x[coming // k]
    scales = np.zeros(np.prod(shape), np.float32)
    if given.quant_mode == 1:
        is_one_token = _is_one_token(x, expert_idx, scale, (first, last)) and (
            given.expert_tokens_num_flag and kind == 2 and not is_padded
        )
        factors = None if scale is None else scale[(experts[coming] - first) % len(scale)]
        new, scales[places] = _quantise(new, factors, is_one_token)
    elif scale is not None:
        scales[places] = scale[coming // k]
    rows = np.zeros((scales.size, x.shape[1]), new.dtype)
    rows[places] = new
    rows = rows.reshape(*shape, x.shape[1])
    index = order.astype(np.int32)
    if given.row_idx_type == 0:
        index = np.full_like(index, -1)
        index[coming] = places
    numbers = np.bincount(experts[is_active] - first, minlength=last - first).astype(np.int64)
    counts = _counts(numbers, kind, first, expert_num)
    return rows, index, counts if given.expert_tokens_num_flag else np.zeros_like(counts), scales


def _coupled(x: Array, expert_idx: Array, expert_num: int) -> tuple[Array, Array, Array, Array]:
    """The same on Atlas inference: all rows unquantised, and the ends of all experts."""
    order = np.argsort(expert_idx.ravel(), kind="stable")
    index = np.argsort(order, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(expert_idx.ravel(), minlength=expert_num)).astype(np.int32)
    return x[order // expert_idx.shape[1]], index, ends, np.zeros(expert_num, np.int32)


def _padded(experts: Array, expert_num: int, capacity: int) -> tuple[Array, Array]:
    """Places of rows `(kept,)`, and the choices they belong to; each expert has *capacity*."""
    own = [np.flatnonzero(experts == expert)[:capacity] for expert in range(expert_num)]
    places = [expert * capacity + np.arange(len(each)) for expert, each in enumerate(own)]
    return np.concatenate(places), np.concatenate(own)


def _counts(numbers: Array, kind: int, first: int, experts: int) -> Array:
    if kind == 0:
        return np.asarray(np.cumsum(numbers))
    if kind == 1:
        return numbers
    pairs = np.zeros((experts, 2), np.int64)
    present = np.flatnonzero(numbers)
    pairs[: len(present)] = np.stack([present + first, numbers[present]], axis=1)
    return pairs


def _is_one_token(x: Array, expert_idx: Array, scale: Array | None, active: object) -> bool:
    """Whether the kernel for single tokens of a certain model runs."""
    shapes = (x.shape, expert_idx.shape, None if scale is None else scale.shape)
    is_bf16 = x.dtype not in (np.float16, np.float32)
    return is_bf16 and active == (0, 256) and shapes == ((1, 7168), (1, 8), (256, 7168))


def _quantise(x: Array, factors: Array | None, is_one_token: bool) -> tuple[Array, Array]:
    """int8 rows and their scales, `max|v| / 127`."""
    with np.errstate(all="ignore"):
        values = x.astype(np.float32)
        if factors is not None:
            values = values * factors
        scales = np.max(np.abs(values), axis=1, initial=0) / np.float32(127)
        half = _half(values / scales[:, None], is_one_token)
        whole = np.where(np.isnan(half), 0, half)
        away = np.sign(whole) * np.floor(np.abs(whole) + 0.5)
        whole = np.rint(whole) if is_one_token else away
        return np.clip(whole, -128, 127).astype(np.int8), scales


def _half(values: Array, to_odd: bool) -> Array:
    """float32 *values* truncated to float16 precision, as float64; rounds to odd with *to_odd*.

    Quotients are at most about 127.5, NaN, or subnormals of float16, which have fewer bits.
    """
    wide = values.astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, -14)
    unit = np.ldexp(1.0, exponent - 10)
    cut = np.trunc(wide / unit)
    if to_odd:
        is_even = cut % 2 == 0
        cut = np.where((cut * unit != wide) & is_even, cut + np.copysign(1, wide), cut)
    return np.asarray(cut * unit)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x, where = given["x"], given["expert_idx"]
    rows = where.shape[0] * where.shape[1]
    active: Any = given["active_expert_range"]
    experts = active[1] - active[0] if active else given["expert_num"]
    counts = (given["expert_num"], 2) if given["expert_tokens_num_type"] == PAIRS else (experts,)
    is_padded = given["drop_pad_mode"] == 1
    places = (given["expert_num"], given["expert_capacity"]) if is_padded else (rows,)
    return (
        ((*places, x.shape[1]), "int8" if given["quant_mode"] == 1 else x.dtype),
        ((rows,), "int32"),
        (counts, "int64"),
        ((prod(places),), "float32"),
    )


TORCH = ops.TorchFunction(
    schema="npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None, "
    "Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1, "
    "int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False, "
    "int quant_mode=-1, int[] active_expert_range=[], int row_idx_type=0, int? x_dtype=None) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeInitRoutingV3",
    outputs=_outputs,
    absent=("offset", "x_dtype"),
)


def _kernel_type(spec: DeviceSpec, _: Problem, __: object) -> str:
    return "MoeInitRoutingV2" if spec.series in ops.ATLAS_INFERENCE else "MoeInitRoutingV3"


OPERATOR = ops.Operator(
    kernel_type=_kernel_type,
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("expert_idx",),
    torch=(TORCH,),
)
