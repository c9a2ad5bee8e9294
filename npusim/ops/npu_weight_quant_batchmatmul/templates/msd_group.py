"""msd_group: cores share n and k; each adds up its groups, then all add up in global memory.

Of each group the cube core makes int32 or fp16 products in one of two places in turn; its two
vector cores put them together, scale them and add them to sums in the unified buffer, which they
add to zeros in global memory at last. Whoever has columns rounds them there.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_group.h, op_host/op_tiling/
*_tiling_msd_group.cpp. There every core that shares k stores the same output; here only the first
one does. How many rows are put together at a time is assumed.
"""

from __future__ import annotations

from functools import partial

from npusim.devices.schema import DeviceSpec
from npusim.isa import Global
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Program
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import GroupCube
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_digits import FILLED, READ, READY
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_group_plan import (
    PLACES,
    MsdGroupPlan,
    Share,
    share_of,
    tile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_group_vector import VectorSide

__all__ = ["MsdGroupPlan", "build", "tile"]


def build(spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> tuple[Block, ...]:
    """Three blocks a share: a cube core and its two vector cores."""
    cube, vector = _CubeSide(spec, p, plan), VectorSide(spec, p, plan)
    names = (*(x.name for x in p.inputs), "output", *plan.workspaces)
    blocks = []
    for index in range(plan.block_dim):
        share = share_of(p, plan, index)
        base = index * PLACES * plan.product_bytes
        bindings = {name: Binding(name) for name in names}
        bindings["products"] = Binding("products", base)
        first = 3 * index
        blocks.append(Block(first, "aic", cube.program(share), bindings, index))
        for half in (0, 1):
            program = vector.program(share, half, 2 * index + half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, index))
    return tuple(blocks)


class _CubeSide:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> None:
        self._p, self._plan = p, plan
        self._builder = Builder(p.choice.template, spec.cores["aic"], spec.sync)
        most = min(plan.core_k, p.traits.k)
        self._cube = GroupCube(self._builder, p, plan.core_n, most, 1)

    def program(self, share: Share) -> Program:
        """Multiply the groups of *share* one after the other."""
        cube, k = self._cube, share.group * self._p.traits.group_size
        shifts = {
            "digits": cube.digits.shift_k(k),
            "weight": cube.weight.shift_k(k) + cube.weight.shift(share.column),
        }
        key = share.groups, share.columns
        self._builder.call(key, shifts, partial(self._write, *key))
        return self._builder.build()

    def _write(self, groups: int, columns: int) -> None:
        builder, plan, size = self._builder, self._plan, self._p.traits.group_size
        builder.cross_core_wait_flag("group", "mte2", READY)
        held = self._cube.hold(groups * size)
        stride = plan.product_bytes // self._cube.products.digit_rows
        for group in range(groups):
            if group >= PLACES:
                builder.cross_core_wait_flag("group", "fixpipe", READ)
            first = group % PLACES * plan.product_bytes
            to = Global("products", first, stride, 1, stride)
            k = group * size
            self._cube.multiply(held, k, k, 0, columns, to)
            builder.cross_core_set_flag("group", "fixpipe", FILLED)
        self._cube.drop(held)
