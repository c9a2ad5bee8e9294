"""Kernels of the vendor that npusim only times: what they move and compute.

A work describes which bytes go through which instructions, on which cores. Its program is simulated
like that of an operator, by shapes alone, so its time comes from the same micro-ops and costs. The
values of the operation are computed by torch on the host. Launches of equal works take the same
time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any, ClassVar

from npusim.data.dtypes import FLOAT16, FLOAT32, INT64, UINT8, DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, Kernel
from npusim.ops import Contract, Operator, Plan, Row
from npusim.run.user_kernel import UserProblem, no_oracle

__all__ = ["AHEAD", "INPUT", "OUTPUT", "Work", "by_bits", "kernel_of", "operator_of", "room_bytes"]

INPUT, OUTPUT = "x", "y"
"""Operands are x0, x1 and so on, and results y0, y1."""
AHEAD = 2
"""Buffers for each tensor, so that one is loaded or stored while another one is used."""
_BY_BITS = {8: UINT8, 16: FLOAT16, 32: FLOAT32, 64: INT64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(ABC):
    """The work of one kernel."""

    on_inference: ClassVar[bool] = True
    """Whether the kernel runs in this form on Atlas inference."""
    kernel: str
    """The name of the kernel in the vendor's profilers."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The amount of work; if it is 0, nothing is launched."""

    @abstractmethod
    def write(self, spec: DeviceSpec) -> Kernel:
        """The program of the kernel for the chip *spec*."""


def by_bits(bits: int) -> DType:
    """A type with *bits* bits. Only the size of elements affects the time."""
    return _BY_BITS[bits]


def room_bytes(spec: DeviceSpec, kept_bytes: int = 0) -> int:
    """The size of the unified buffer of a vector core, less *kept_bytes*."""
    return spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - kept_bytes


def kernel_of(
    name: str,
    blocks: tuple[Block, ...],
    inputs: Iterable[tuple[int, int]],
    outputs: Iterable[tuple[int, int]],
    workspaces: dict[str, int] | None = None,
) -> Kernel:
    """The launch of *blocks*; operands and results are `(elements, bits)`."""
    return Kernel(
        name,
        blocks,
        {f"{INPUT}{place}": _spec(*each) for place, each in enumerate(inputs)},
        {f"{OUTPUT}{place}": _spec(*each) for place, each in enumerate(outputs)},
        workspaces=workspaces or {},
    )


def _spec(elements: int, bits: int) -> TensorSpec:
    return TensorSpec((elements,), by_bits(bits).name)


@cache
def operator_of(kernel: str) -> Operator:
    """The operator that runs works with the name *kernel*."""
    work = Parameter("work", Parameter.POSITIONAL_OR_KEYWORD, annotation=object)
    return Operator(
        name=kernel,
        document=f"{kernel}: a kernel of which the time alone is simulated.",
        kernel_type=kernel,
        signature=Signature([work]),
        contract=_problem,
        support=(Row(),),
        tile=_tile,
        build=lambda _, problem, __: problem.kernel.blocks,
        oracle=no_oracle,
    )


def _problem(contract: Contract) -> UserProblem:
    work: Work = contract.value("work")
    kernel = work.write(contract.spec)
    inputs = tuple(Operand(name, spec) for name, spec in kernel.inputs.items())
    return UserProblem(inputs=inputs, outputs=kernel.outputs, kernel=kernel, reads_tiling=True)


def _tile(_: DeviceSpec, problem: Any) -> Plan:
    kernel = problem.kernel
    return Plan(block_dim=kernel.block_dim, workspaces=kernel.workspaces)
