"""Shapes that npu_quant_matmul accepts."""

from __future__ import annotations

from npusim.data.dtypes import INT4, INT64, UINT64
from npusim.data.tensor import Operand
from npusim.kernel.product import Product
from npusim.ops._contract import Contract, listed
from npusim.ops._matrix import INT4_PER_INT32, unpacked_remedy

__all__ = ["LARGEST_INNER", "check_ranks", "check_vectors"]

LARGEST_INNER = 65535
"""Limit of k and of the last dimension in memory (torch_npu-npu_quant_matmul.md). It also keeps
k x 128 x 128 below 2^31, so that a sum without bias never overflows."""
LARGEST_RANK = 6


def check_ranks(contract: Contract, *matrices: Operand) -> None:
    """Two to six dimensions each."""
    for operand in matrices:
        rank = len(operand.shape)
        contract.require(
            rank <= LARGEST_RANK,
            f"{operand.name} must have two to {LARGEST_RANK} dimensions, not {rank}; reshape it",
        )


def check_vectors(
    contract: Contract,
    product: Product,
    scale: Operand,
    offset: Operand | None,
    bias: Operand | None,
    pertoken_scale: Operand | None,
) -> None:
    """The numbers of columns and rows: one for all, or one for each."""
    one_or_n = tuple(dict.fromkeys(((1,), (product.n,))))
    scales: tuple[tuple[int, ...], ...] = one_or_n
    if scale.element in (INT64, UINT64):
        scales = (*one_or_n, (1, product.n))
    biases: tuple[tuple[int, ...], ...] = ((product.n,),)
    if len(product.batch) == 1:
        biases = (*biases, (product.batch[0], 1, product.n))
    wanted = (
        (scale, scales, "pass one number, or one a column"),
        (offset, one_or_n, "pass one number, or one a column"),
        (bias, biases, "pass a number a column"),
        (pertoken_scale, ((product.m,),), "pass a number a row of x1"),
    )
    for operand, shapes, remedy in wanted:
        if operand is not None:
            known = listed(tuple(str(shape) for shape in shapes))
            if product.element is INT4 and operand.shape[-1:] == (product.n // INT4_PER_INT32,):
                remedy = unpacked_remedy("x2")
            contract.require(
                operand.shape in shapes,
                f"{operand.name} must have shape {known} for a product of {product.m} rows and "
                f"{product.n} columns, not {operand.shape}; {remedy}",
            )
