"""The plan and the programs of npu_fused_infer_attention_score: those of the kernel that runs."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._attention.fai import kernel as fai
from npusim.ops._attention.fai import tiling as fai_tiling
from npusim.ops._attention.fia import kernel as fia
from npusim.ops._attention.ifa import kernel as ifa
from npusim.ops._protocol import Plan
from npusim.ops.npu_fused_infer_attention_score.contract import Problem

__all__ = ["Plan", "build", "tile"]


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split as the kernel that takes the call does."""
    reason, page = p.choice.reason, p.attention.paging
    if page is not None and page.is_assumed:
        reason += "; block_table has no values: blocks of the cache are taken to follow each other"
    nbytes = sum(each.spec.nbytes for each in p.inputs if each.name in ("key", "value"))
    if p.choice.template == "IFA":
        return ifa.tile(spec, p.attention, nbytes, reason)
    if p.choice.template == "FIA":
        return fia.tile(spec, p.attention, nbytes, reason)
    return fai_tiling.tile(spec, p.attention, p.choice.template, reason)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The programs of all cores."""
    if isinstance(plan, fia.Plan):
        names = *(each.name for each in p.inputs), *p.outputs
        build_kernel = ifa.build if p.choice.template == "IFA" else fia.build
        return build_kernel(spec, p.attention, names, plan)
    assert isinstance(plan, fai_tiling.Plan)
    return fai.build(spec, p.attention, plan)
