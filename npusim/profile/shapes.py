"""What the operands of a kernel say, and a reading of them as a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npusim.data.tensor import TensorSpec
from npusim.profile.kernels import Kernel, spec_of

__all__ = ["Reading", "given", "only_output", "without_ones"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A call that a kernel may have been."""

    op: str
    args: tuple[Any, ...]
    options: dict[str, Any]

    @classmethod
    def of(cls, op: str, *args: object, **options: object) -> Reading:
        """The call of *op* as it is written."""
        return cls(op, args, options)


def given(kernel: Kernel) -> tuple[TensorSpec, ...]:
    """The inputs that there are, in order."""
    return tuple(spec_of(each) for each in kernel.inputs if each.shape is not None)


def only_output(kernel: Kernel) -> TensorSpec:
    """The first output."""
    return spec_of(kernel.outputs[0])


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The extents that are not 1."""
    return tuple(extent for extent in shape if extent != 1)
