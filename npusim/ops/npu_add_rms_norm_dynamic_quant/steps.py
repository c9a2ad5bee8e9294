"""A call of npu_add_rms_norm_dynamic_quant, and the fp32 steps shared by its templates.

ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import align_up
from npusim.data.tensor import Operand
from npusim.kernel import INT4, DType, Local, Register
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore
from npusim.ops._row_quant import LARGEST, find_factor, find_max


@dataclass(frozen=True, slots=True)
class Output:
    """One of the two quantised outputs."""

    number: int
    """1 or 2."""
    smooth: Operand | None
    is_taken: bool
    """Whether it is requested."""

    @property
    def y(self) -> str:
        """Its name as a tensor."""
        return "output" if self.number == 1 else "y2"

    @property
    def scale(self) -> str:
        """The name of its scales."""
        return f"scale{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(norm.Problem):
    """A checked call."""

    beta: Operand | None
    both: tuple[Output, Output]
    is_masked: bool
    """Whether there is an output_mask: without one, normal computes both outputs."""
    target: DType
    """int8 or int4."""

    @property
    def taken(self) -> tuple[Output, ...]:
        """The outputs that are requested."""
        return tuple(output for output in self.both if output.is_taken)


def padded(columns: int, target: DType) -> int:
    """Columns of a row in the buffer: whole blocks of the output."""
    return align_up(columns, 64 if target is INT4 else 32)


class Steps:
    """The fp32 steps of all templates."""

    def __init__(self, core: NormCore, p: Problem) -> None:
        self.core, self.p = core, p

    def root_of(self, squares: Local) -> None:
        """1 / root of *squares* `(n,)`, which are overwritten, into register `root`."""
        self.core.read_sum("root", squares)
        self.core.root_of("root")
        self.core.sync("scalar", "vector")

    def read_absmax(self, register: Register, magnitudes: Local) -> None:
        """The largest of *magnitudes* `(n,)`, which are overwritten, into *register*."""
        find_max(self.core, magnitudes[:1], magnitudes)
        self.core.sync("vector", "scalar")
        self.core.get_value(register, magnitudes[:1])

    def divide(self, absmax: Register, scale: Local) -> None:
        """127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`."""
        find_factor(self.core, absmax, LARGEST[self.p.target], scale)
        self.core.sync("scalar", "vector")

    def narrow(self, y: Local, values: Local) -> None:
        """*values* rounded to *y*."""
        self.core.quantize(y, values, ("none", "trunc"))
