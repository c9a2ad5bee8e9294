"""Attention: which kernel runs a call, its plan, its programs and its oracle."""

from __future__ import annotations

from functools import partial
from warnings import catch_warnings, simplefilter

import numpy as np

from npusim import devices
from npusim.data.dtypes import Array
from npusim.data.errors import DocumentWarning
from npusim.data.few_rows import few_rows_product
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._attention import fai, fia, ifa, ifa_atb, mla
from npusim.ops._attention.check import Problem
from npusim.ops._attention.fai_tiling import Plan as FaiPlan
from npusim.ops._attention.oracle import attend
from npusim.ops._attention.problem import Attention
from npusim.ops._matmul_oracle import cube_product
from npusim.ops._oracle import Given
from npusim.ops._protocol import Operator, Plan

CHIP = "Atlas A2"
"""The chip whose kernel choice applies if none is given: kernels add in different orders."""
ELSEWHERE = (
    "run it on Atlas A2 or A3: the kernels of npu_prompt_flash_attention and "
    "npu_incre_flash_attention on Atlas inference are not simulated"
)


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split the call like the kernel that runs it."""
    a, template, reason = p.attention, p.choice.template, p.choice.reason
    if a.paging is not None and a.paging.is_assumed:
        reason += "; block_table has no values: blocks of the cache are taken to follow each other"
    if template.startswith("FAI"):
        return fai.tile(spec, a, template, reason)
    nbytes = sum(each.spec.nbytes for each in p.inputs if each.name in ("key", "value"))
    return fia.tile(spec, a, template, nbytes, reason)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The programs of all cores."""
    if isinstance(plan, FaiPlan):
        return fai.build(spec, p.attention, plan)
    assert isinstance(plan, fia.Plan)
    names = *(each.name for each in p.inputs), *p.outputs
    kernels = {"FIA-MLA": mla.build, "IFA": ifa.build, "IFA-ATB": ifa_atb.build}
    build_kernel = kernels.get(p.choice.template, fia.build)
    return build_kernel(spec, p.attention, names, plan)


def oracle_of(operator: Operator, given: Given) -> tuple[Array, ...]:
    """The attention output and softmax_lse, computed like the kernel that runs the call.

    softmax_lse is a single 0 unless requested; training has maxima and sums instead.
    """
    spec = given.spec or devices.load(CHIP)
    arguments = {each.name: getattr(given, each.name) for each in operator.parameters}
    with catch_warnings():
        # The call itself has already warned.
        simplefilter("ignore", DocumentWarning)
        problem = operator.check(spec, **arguments)
    assert isinstance(problem, Problem)
    arrays = {each.name: np.asarray(each.array) for each in problem.inputs}
    return attend(problem, arrays, spec, partial(cube_product, order=given.cube_order))


MOST_AT_ONCE = 2**20
"""Products of numbers of a call that is computed in few calls of numpy; of larger ones micro-ops
are as fast (measured of one product)."""


def is_small(a: Attention) -> bool:
    """Whether a call is computed in few calls of numpy."""
    scores = a.requests * a.query_heads * a.longest_query * max(a.kv_lengths)
    return scores * 2 * a.head_size <= MOST_AT_ONCE


def at_once(given: Given, p: Problem, _: Plan) -> tuple[Array, ...] | None:
    """The same for small calls; not where there is a NaN, of whose bits the oracle says nothing."""
    if given.spec is None or not is_small(p.attention):
        return None
    known = {each.name: given.arguments.get(each.name) for each in p.inputs}
    arrays = {name: np.asarray(x) for name, x in known.items()}
    found = attend(p, arrays, given.spec, partial(few_rows_product, order=given.cube_order))
    return None if np.isnan(found[0]).any() else found
