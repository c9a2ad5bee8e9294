"""A kernel of C++, in place of an operator: what it records is what runs.

It is recorded with the values that it is given, since it may look at them; what it stores to are
its outputs.
"""

from __future__ import annotations

from inspect import Parameter, Signature

import numpy as np

from npusim.ascendc import AscendCError, SourceLaunch
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block
from npusim.ops import Contract, Operator, Plan, Row
from npusim.run.user_kernel import UserProblem, no_oracle, operand_of

__all__ = ["operator"]


def operator(launch: SourceLaunch) -> Operator:
    """What runs *launch* as operators are run."""
    kernel = launch.kernel
    return Operator(
        name=kernel.name,
        document=f"{kernel.name}, a kernel of {kernel.file.name}.",
        kernel_type=kernel.name,
        signature=_signature(launch),
        contract=lambda contract: _check(launch, contract),
        support=(Row(),),
        tile=_tile,
        build=_build,
        oracle=no_oracle,
    )


def _signature(launch: SourceLaunch) -> Signature:
    """The parameters of a call: tensors where the kernel takes pointers."""
    return Signature(
        [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                annotation=TensorSpec if is_pointer else Parameter.empty,
            )
            for name, is_pointer in launch.kernel.parameters
        ]
    )


def _check(launch: SourceLaunch, contract: Contract) -> UserProblem:
    kernel, arguments = launch.kernel, contract.arguments
    pointers = {name for name, is_pointer in kernel.parameters if is_pointer}
    operands: dict[str, Operand] = {}
    for name in pointers & arguments.keys():
        value = arguments[name]
        if not isinstance(value, np.ndarray | Tensor | TensorSpec):
            raise AscendCError(
                f"{kernel.name}: {name} must be a tensor, not {type(value).__name__}; pass an array"
            )
        operands[name] = operand_of(kernel.name, name, value)
    operands = {name: operands[name] for name, _ in kernel.parameters if name in operands}
    others = {name: value for name, value in arguments.items() if name not in pointers}
    recorded = kernel.record(contract.spec, launch.blocks, operands, others)
    programs = recorded.programs
    stored = [name for name in operands if name in programs.stored]
    if not stored:
        raise AscendCError(
            f"{kernel.name}: a kernel must store something, but it leaves all tensors as they are; "
            f"pass its outputs too, and sizes that leave it work"
        )
    specs = {name: operand.spec for name, operand in operands.items()}
    return UserProblem(
        inputs=tuple(operands.values()),
        outputs={name: specs[name] for name in stored},
        kernel=Kernel(kernel.name, programs.blocks, specs, is_mix=kernel.cores.halves > 0),
    )


def _tile(_: DeviceSpec, problem: UserProblem) -> Plan:
    """What starts; its sizes come as arguments, or it reads them itself."""
    kernel = problem.kernel
    return Plan(block_dim=kernel.block_dim, is_mix=kernel.is_mix, reads_tiling=False)


def _build(_: DeviceSpec, problem: UserProblem, __: Plan) -> tuple[Block, ...]:
    """The blocks are written already."""
    return problem.kernel.blocks
