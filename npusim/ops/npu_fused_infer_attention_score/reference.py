"""npu_fused_infer_attention_score on whole arrays in plain numpy: the oracle for tiled runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from npusim import devices
from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._attention.fai import oracle as fai
from npusim.ops._attention.fai.split import work_of
from npusim.ops._attention.fia import oracle as fia
from npusim.ops._attention.ifa import oracle as ifa
from npusim.ops.npu_fused_infer_attention_score.contract import Problem, check

__all__ = ["reference"]

CHIP = "Atlas A2"
"""Whose choice of kernel is followed where no chip is named: kernels add in other orders."""

OWN = ("query", "key", "value", "spec", "cube_order")
"""Parameters of the reference that it hands to the check by place, or not at all."""


def reference(
    query: Array,
    key: Array,
    value: Array,
    *,
    pse_shift: None = None,
    atten_mask: Array | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: None = None,
    quant_scale1: None = None,
    dequant_scale2: None = None,
    quant_scale2: None = None,
    quant_offset2: None = None,
    antiquant_scale: Array | None = None,
    antiquant_offset: None = None,
    key_antiquant_scale: Array | None = None,
    key_antiquant_offset: None = None,
    value_antiquant_scale: Array | None = None,
    value_antiquant_offset: None = None,
    block_table: Array | None = None,
    query_padding_size: None = None,
    kv_padding_size: None = None,
    key_shared_prefix: None = None,
    value_shared_prefix: None = None,
    actual_shared_prefix_len: None = None,
    query_rope: None = None,
    key_rope: None = None,
    key_rope_antiquant_scale: None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
    template: str | None = None,
    spec: DeviceSpec | None = None,
    cube_order: Literal["k16", "k8", "k4", "k1"] = "k16",
) -> tuple[Array, Array]:
    """What each token of *query* attends to, and softmax_lse, as the kernel that takes it has it.

    Shapes are those of *input_layout*; see the operator's docstring. softmax_lse is one 0 unless
    *softmax_lse_flag* asks for it.
    """
    given = {name: each for name, each in locals().items() if name not in OWN}
    spec = spec or devices.load(CHIP)
    problem = check(spec, query, key, value, **given)
    if problem.choice.template == "IFA":
        return _ifa(problem, spec)
    if problem.choice.template == "FIA":
        return _fia(problem, spec, cube_order)
    output, lse = _fai(problem, spec, (query, key, value), cube_order)
    return output, lse if softmax_lse_flag else np.zeros(1, np.float32)


def _fai(
    problem: Problem,
    spec: DeviceSpec,
    tensors: tuple[Array, Array, Array],
    cube_order: Literal["k16", "k8", "k4", "k1"],
) -> tuple[Array, Array]:
    ends = _ends(problem, spec) if problem.choice.template == "FAI-FD" else None
    with np.errstate(all="ignore"):
        return fai.attend(problem.attention, *tensors, cube_order, ends)


def _ifa(problem: Problem, spec: DeviceSpec) -> tuple[Array, Array]:
    """What kernel IFA gives on *spec*."""
    arrays = {each.name: np.asarray(each.array) for each in problem.inputs}
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    cores = spec.cores["aic"].count
    output = ifa.attend(problem.attention, query, key, value, arrays, cores)
    return output.reshape(problem.output.shape), np.zeros(1, np.float32)


def _fia(
    problem: Problem, spec: DeviceSpec, cube_order: Literal["k16", "k8", "k4", "k1"]
) -> tuple[Array, Array]:
    """What kernel FIA gives on *spec*."""
    a, arrays = problem.attention, {each.name: each.array for each in problem.inputs}
    query, key, value = (np.asarray(arrays[name]) for name in ("query", "key", "value"))
    cores, mask = spec.cores["aic"].count, arrays.get("atten_mask")
    output, lse = fia.attend(a, query, key, value, mask, cores, cube_order)
    shaped = output.reshape(problem.output.shape)
    return shaped, lse if a.returns_lse else np.zeros(1, np.float32)


def _ends(problem: Problem, spec: DeviceSpec) -> dict[tuple[int, int], tuple[int, ...]]:
    """Where FAI-FD splits keys on *spec*: see :func:`~npusim.ops._attention.fai.oracle.attend`."""
    work = work_of(problem.attention, spec.cores["aic"].count, "FAI-FD")
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for tasks in work.tasks:
        for task in tasks:
            for head in range(task.head, task.head + task.form.heads):
                place = task.request, head
                found[place] = (*found.get(place, ()), task.form.keys)
    return found
