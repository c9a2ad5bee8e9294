"""A row of the tables of the family: an operator, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8, DType
from npusim.ops._signature import parameters_of
from npusim.ops._support import A2_A3, EVERYWHERE
from npusim.ops.families.elementwise.chain import Value

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
AS_IS = {FLOAT32: FLOAT32, FLOAT16: FLOAT16, BFLOAT16: FLOAT32}
WIDE = {FLOAT32: FLOAT32, FLOAT16: FLOAT32, BFLOAT16: FLOAT32}
WITH_INT32 = AS_IS | {INT32: INT32}
FLAGS = {UINT8: FLOAT16}
WITH_BYTES = WITH_INT32 | {INT8: FLOAT16, UINT8: FLOAT16}

UNCHANGED = {dtype: dtype for dtype in (*FLOATS, INT32)}

Pairs = dict[tuple[DType, DType], tuple[str, ...]]
"""Two types of operands -> the product lines whose kernel accepts them together."""
WITH_FLOAT32: Pairs = {
    pair: A2_A3 if BFLOAT16 in pair else EVERYWHERE
    for half in (FLOAT16, BFLOAT16)
    for pair in ((FLOAT32, half), (half, FLOAT32))
}
ANY_FLOATS: Pairs = {(x, other): A2_A3 for x in FLOATS for other in FLOATS if x is not other}

ONE, TWO = "Tensor x", "Tensor x, Tensor|float other"


@dataclass(frozen=True, slots=True)
class Expression:
    """One operator of the family."""

    name: str
    kernel: str
    """The profilers' name of the vendor's kernel."""
    caption: str
    """A short description, for lists."""
    formula: str
    computed_in: dict[DType, DType]
    """Types it accepts -> the type in which it computes them."""
    write: Callable[..., Value]
    """`write(chain, *values)`: the steps, in the type of the computation."""
    parameters: str = ONE
    """Parameters in schema syntax; a function of torch has its own."""
    mixes: Pairs = field(default_factory=dict)
    """Pairs of two types that are computed as float32, which the result has too."""
    wide_numbers: tuple[type, ...] = ()
    """Numbers that a kernel of bfloat16 takes as float32, instead of rounded to bfloat16."""
    by_series: bool = False
    """Whether steps depend on the product line, whose name is the last argument of `write`."""
    gives_bool: bool = False
    """Whether the result is 0 or 1 in uint8, as numpy and torch store a bool."""

    @property
    def operands(self) -> tuple[str, ...]:
        """The parameters that are tensors, in the order of the kernel."""
        return tuple(each.name for each in parameters_of(self.parameters) if each.is_tensor)
