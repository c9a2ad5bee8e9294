"""Kernels of elementwise operators, run for values and times separately."""

from __future__ import annotations

from npusim import ops
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import Kernel

__all__ = ["elementwise"]


def elementwise(spec: DeviceSpec, op: str, *operands: TensorSpec | str) -> Kernel:
    """The kernel of operator *op* for these operands; raises OpError if it refuses them.

    *operands* are those of :func:`npusim.run`: tensors, and other arguments of the operator.
    """
    operator = ops.load(op)
    problem = operator.check(spec, *operands)
    plan = operator.plan(spec, problem)
    blocks = operator.build(spec, problem, plan)
    inputs = {operand.name: operand.spec for operand in problem.inputs}
    return Kernel(op, blocks, inputs, problem.outputs)
