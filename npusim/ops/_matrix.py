"""Products of matrices: what is multiplied by what, and how the operands lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from npusim.dtypes import DType
from npusim.layout import FRACTAL_ROWS, NZ, c0, to_fractals
from npusim.ops._checks import Contract
from npusim.tensor import Operand

__all__ = ["Product", "as_fractals", "logical_shape", "product_of", "require_nd"]

INT4_PER_INT32 = 8


@dataclass(frozen=True, slots=True)
class Product:
    """`(*batch, m, n) = (*batch_a, m, k) @ (*batch_b, k, n)`, the batches broadcast."""

    m: int
    k: int
    n: int
    element: DType
    """What the cube multiplies: int4 where the tensors hold it packed."""
    batch: tuple[int, ...]
    batch_a: tuple[int, ...]
    batch_b: tuple[int, ...]
    transposed_a: bool
    """Whether x1 lies in memory as (k, m)."""
    transposed_b: bool
    """Whether x2 lies in memory as (n, k)."""
    fractal_b: bool
    """Whether x2 lies in memory as FRACTAL_NZ."""

    @property
    def unit_m(self) -> int:
        """Rows come in multiples of this: fractals are turned whole if x1 lies as (k, m)."""
        return c0(self.element) if self.transposed_a else FRACTAL_ROWS

    @property
    def unit_n(self) -> int:
        """The same of columns, which lie inside unless x2 lies as (n, k)."""
        return FRACTAL_ROWS if self.transposed_b else c0(self.element)

    @property
    def matrices(self) -> int:
        """How many matrices come out."""
        return prod(self.batch)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """For each matrix of the output, in order: which of x1 and which of x2 make it."""
        a = np.arange(prod(self.batch_a)).reshape(self.batch_a)
        b = np.arange(prod(self.batch_b)).reshape(self.batch_b)
        places = (np.broadcast_to(x, self.batch).reshape(-1).tolist() for x in (a, b))
        return tuple(zip(*places, strict=True))


def require_nd(contract: Contract, operand: Operand) -> None:
    """Refuse FRACTAL_NZ for *operand*."""
    contract.require(
        operand.spec.layout == "ND",
        f"{operand.name} must have layout ND, not {operand.spec.layout}; "
        f"pass it through npu_format_cast(..., 2)",
    )


def logical_shape(operand: Operand, packed: bool) -> tuple[int, ...]:
    """The shape in numbers; *packed*: eight of them an int32, along the axis that lies inside."""
    shape = list(operand.shape)
    if packed:
        shape[-2 if operand.spec.transposed else -1] *= INT4_PER_INT32
    return tuple(shape)


def product_of(
    contract: Contract, x1: Operand, x2: Operand, element: DType, packed: bool
) -> Product:
    """The product of *x1* and *x2*; raises OpError unless their shapes fit each other."""
    a, b = logical_shape(x1, packed), logical_shape(x2, packed)
    for operand in (x1, x2):
        contract.require(
            0 not in operand.shape,
            f"{operand.name} must not be empty, not of shape {operand.shape}; leave the call out",
        )
    contract.require(
        a[-1] == b[-2],
        f"x2 must have as many rows as x1 has columns, {a[-1]}, not {b[-2]}; "
        f"x1 is (m, k), x2 is (k, n)",
    )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        contract.fail(
            f"the batch dimensions of x1 and x2 must broadcast, not {a[:-2]} and {b[:-2]}; "
            f"make them equal, or 1"
        )
    return Product(
        *(a[-2], a[-1], b[-1], element, batch, a[:-2], b[:-2]),
        transposed_a=x1.spec.transposed,
        transposed_b=x2.spec.transposed,
        fractal_b=x2.spec.layout == "FRACTAL_NZ",
    )


def as_fractals(operand: Operand) -> Operand:
    """The same matrix as FRACTAL_NZ of its transpose, as aclnn turns weights for arch 2002."""
    if operand.spec.layout == "FRACTAL_NZ":
        return operand
    spec = replace(operand.spec, layout="FRACTAL_NZ", transposed=True)
    if operand.array is None:
        return Operand(operand.name, spec)
    lying = operand.array.swapaxes(-1, -2)
    storage = to_fractals(lying, NZ, (FRACTAL_ROWS, c0(operand.element)))
    return Operand(operand.name, spec, storage)
