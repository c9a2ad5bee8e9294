"""A C++ kernel as an operator: what it records is what runs.

It is recorded with the values of its arguments, since it may read them; the tensors that it stores
to are its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature

import numpy as np

from npusim.ascendc import AscendCError, ProgramLaunch, SourceLaunch
from npusim.ascendc.programs import Written
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block
from npusim.ops import Contract, Operator, Plan, Row
from npusim.run.user_kernel import UserProblem, no_oracle, operand_of

__all__ = ["operator"]


def operator(launch: SourceLaunch | ProgramLaunch) -> Operator:
    """The operator that runs *launch*."""
    return Operator(
        name=launch.name,
        document=f"{launch.name}, a kernel of {launch.file.name}.",
        kernel_type=launch.name,
        signature=_signature(launch),
        contract=lambda contract: _problem(launch, contract),
        support=(Row(),),
        tile=_tile,
        build=_build,
        oracle=no_oracle,
    )


def _signature(launch: SourceLaunch | ProgramLaunch) -> Signature:
    """The parameters of a call: tensors where the kernel takes pointers."""
    return Signature(
        [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                annotation=TensorSpec | Sequence[TensorSpec] if is_pointer else object,
            )
            for name, is_pointer, _ in launch.parameters
        ]
    )


def _problem(launch: SourceLaunch | ProgramLaunch, contract: Contract) -> UserProblem:
    arguments = contract.arguments
    operands = {each.name: each for each in _operands(launch, contract)}
    pointers = {each.name for each in launch.parameters if each.is_pointer}
    others = {name: value for name, value in arguments.items() if name not in pointers}
    for name, value in others.items():
        if isinstance(value, Mapping) and isinstance(launch, SourceLaunch):
            others[name] = launch.kernel.structure(contract.spec, name, value)
    programs = launch.record(contract.spec, operands, others)
    stored = [name for name in operands if name in programs.stored]
    if not stored:
        raise AscendCError(
            f"{launch.name}: a kernel must store something, but it leaves all tensors as they are; "
            f"pass its outputs too, and sizes that leave it work"
        )
    specs = {name: operand.spec for name, operand in operands.items()}
    return UserProblem(
        inputs=tuple(operands.values()),
        outputs={name: specs[name] for name in stored},
        kernel=_kernel(launch.name, programs, specs),
        is_strict=launch.is_strict,
        reads_tiling=programs.reads_tiling,
    )


def _operands(launch: SourceLaunch | ProgramLaunch, contract: Contract) -> Iterator[Operand]:
    """The operand of each pointer, one for each tensor of a list; None is a null pointer."""
    for name, is_pointer, _ in launch.parameters:
        value = contract.arguments.get(name)
        if not is_pointer or value is None:
            continue
        if isinstance(value, Mapping) and isinstance(launch, SourceLaunch):
            value = launch.kernel.structure(contract.spec, name, value)
        if isinstance(value, bytes):
            value = np.frombuffer(value, np.uint8)
        if isinstance(value, list | tuple):
            for number, part in enumerate(value):
                yield _tensor(launch.name, f"{name}[{number}]", part)
        else:
            yield _tensor(launch.name, name, value)


def _kernel(name: str, programs: Written, specs: dict[str, TensorSpec]) -> Kernel:
    return Kernel(name, programs.blocks, specs, is_mix=programs.is_mix)


def _tensor(who: str, name: str, value: object) -> Operand:
    if not isinstance(value, np.ndarray | Tensor | TensorSpec):
        raise AscendCError(
            f"{who}: {name} must be a tensor, not {type(value).__name__}; pass an array"
        )
    return operand_of(who, name, value)


def _tile(_: DeviceSpec, problem: UserProblem) -> Plan:
    """What starts, and whether it first reads its sizes."""
    kernel, reads = problem.kernel, problem.reads_tiling
    return Plan(block_dim=kernel.block_dim, is_mix=kernel.is_mix, reads_tiling=reads)


def _build(_: DeviceSpec, problem: UserProblem, __: Plan) -> tuple[Block, ...]:
    """The blocks are already written."""
    return problem.kernel.blocks
