"""A kernel of the vendor's of which npusim has the time alone: what it moves and computes.

A work says which bytes go through which instructions, on which cores; its program is played as
those of operators are, by shapes alone, so that its time comes of the same micro-ops and costs. The
values of such an operation are torch's own, from the host. Two launches of equal works take equally
long.
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
"""Buffers of what is loaded or stored while something else is computed."""
_BY_BITS = {8: UINT8, 16: FLOAT16, 32: FLOAT32, 64: INT64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(ABC):
    """What one kernel does."""

    on_inference: ClassVar[bool] = True
    """Whether a chip of Atlas inference can do it so."""
    kernel: str
    """The name that the vendor's profilers have for it."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How much there is to do; where that is 0, nothing is launched."""

    @abstractmethod
    def write(self, spec: DeviceSpec) -> Kernel:
        """Its program on the chip *spec*."""


def by_bits(bits: int) -> DType:
    """A type of so many *bits*: what an element means does not matter to its time."""
    return _BY_BITS[bits]


def room_bytes(spec: DeviceSpec, kept_bytes: int = 0) -> int:
    """The unified buffer of a vector core, but for *kept_bytes*."""
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
    """What runs the works of that name, as operators are run."""
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
