"""What npu_transpose_batchmatmul accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT64, UINT64
from npusim.data.errors import Code, shown
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.kernel import Product
from npusim.ops import _vocabulary as ops
from npusim.ops._operands import fixpipe_words
from npusim.ops._vocabulary import A2_A3, Operands, Row, listed

Order = tuple[int, ...]
"""Which axis of a tensor is which of the product."""
PLAIN, TURNED, SWAPPED = (0, 1, 2), (1, 0, 2), (0, 2, 1)
LARGEST = 65535
"""The largest N, B, B * N with a scale, and row of input that holds all heads."""

SUPPORT = tuple(
    Row(
        on=A2_A3,
        input=Operands((dtype,), ranks=(3, 3)),
        weight=Operands((dtype,), LAYOUTS if dtype is not FLOAT32 else ("ND",), ranks=(3, 3)),
        scale=(INT64, UINT64) if dtype is FLOAT16 else Operands(presence="absent"),
    )
    for dtype in (FLOAT16, BFLOAT16, FLOAT32)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    input: Operand
    weight: Operand
    scale: Operand | None
    """uint64 words, one for each head and column."""
    product: Product
    """The product of all heads: (B, M, K) by (B, K, N)."""
    heads_inside: bool
    """Whether a row of input holds the k of all heads, one after the other."""
    slices: int
    """The number of parts into which the output splits the heads."""

    bias: None = None
    """Always None; the code for tiles reads it."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, w = contract.operand("input"), contract.matrix("weight")
    if w.spec.layout == "ND":
        # torch_npu makes a view contiguous.
        w = replace(w, spec=replace(w.spec, transposed=False))
    contract.require_filled(x, w)
    contract.optional("bias")
    of_x = _order(contract, "perm_x1", (PLAIN, TURNED), PLAIN)
    of_w = _order(contract, "perm_x2", (PLAIN, SWAPPED), PLAIN)
    _order(contract, "perm_y", (TURNED,), TURNED)
    product = _product(contract, x, w, of_x, of_w)
    slices = _slices(contract, product.matrices)
    words = _words(contract, product, slices)
    _check_kernel(contract, product, of_x, w, plain=words is None and slices == 1)
    m, heads, n = product.m, product.matrices, product.n
    shape = (m, heads, n) if slices == 1 else (slices, m, heads // slices * n)
    output = TensorSpec(shape, x.element.name)
    if words is not None:
        output = TensorSpec((m, 1, heads * n), "int8")
    return Problem(
        inputs=ops.present(x, w, words),
        outputs={"output": output},
        input=x,
        weight=w,
        scale=words,
        product=product,
        heads_inside=of_x == TURNED,
        slices=slices,
    )


def _order(contract: ops.Contract, name: str, orders: tuple[Order, ...], default: Order) -> Order:
    """The argument called *name* as one of *orders*."""
    value = contract.value(name)
    if value is None:
        return default
    known = [order for order in orders if tuple(value) == tuple(order)]
    if not known:
        wanted = listed(tuple(str(order) for order in orders))
        remedy = "permute the tensor first" if len(orders) > 1 else f"pass {orders[0]}"
        contract.fail(f"{name} must be {wanted}, not {shown(value)}; {remedy}")
    return known[0]


def _product(contract: ops.Contract, x: Operand, w: Operand, of_x: Order, of_w: Order) -> Product:
    """The product of all heads; raises OpError unless the shapes match."""
    heads, m, k = (x.shape[axis] for axis in of_x)
    heads_w, k_w, n = (w.shape[axis] for axis in of_w)
    for name, axis, size, wanted in (("heads", of_w[0], heads_w, heads), ("k", of_w[1], k_w, k)):
        contract.require(
            size == wanted,
            f"dimension {axis} of weight must be {name} of input, {wanted}, not {size}; pass input "
            f"as {_named(of_x, 'BMK')} and weight as {_named(of_w, 'BKN')}",
        )
    is_nz = w.spec.layout == "FRACTAL_NZ"
    contract.require(
        not is_nz or (of_x == TURNED and of_w == PLAIN and not w.spec.transposed),
        f"weight in FRACTAL_NZ must come as (B, K, N), with perm_x1 {TURNED} and perm_x2 {PLAIN}, "
        f"not with {of_x} and {of_w}{', transposed' if w.spec.transposed else ''}; pass it through "
        f"npu_format_cast(..., 2)",
    )
    for name, size in (("N", n), ("the number of heads", heads)):
        contract.require(
            size <= LARGEST, f"{name} must be at most {LARGEST}, not {size}; split the call"
        )
    if k % 16 or n % 16:
        contract.warn(f"K and N must be multiples of 16 by the document, not {k} and {n}")
    return Product(
        *(m, k, n, x.element, (heads,), (heads,), (heads,)),
        transposed_a=False,
        transposed_b=of_w == SWAPPED,
        fractal_b=is_nz,
    )


def _named(order: Order, names: str) -> str:
    """The shape of a tensor whose axes *names* are those of *order*."""
    places = sorted(zip(order, names, strict=True))
    return f"({', '.join(name for _, name in places)})"


def _slices(contract: ops.Contract, heads: int) -> int:
    count = contract.integer("batch_split_factor")
    contract.require(
        count >= 1 and heads % count == 0,
        f"batch_split_factor must divide the number of heads, {heads}, not be {count}; pass 1",
    )
    return count


def _words(contract: ops.Contract, product: Product, slices: int) -> Operand | None:
    """The parameters of the fixpipe, one for each head and column."""
    words = contract.optional("scale")
    if words is None:
        return None
    columns = product.matrices * product.n
    remedy = "reshape it" if words.spec.size == columns else "pass as many"
    what = ", a word for each head and column"
    contract.require_shape(words, (columns,), when=what, remedy=remedy)
    contract.require(
        slices == 1, f"batch_split_factor must be 1 with a scale, not {slices}; pass 1"
    )
    for name, size in (("B * N", columns), ("B * K", product.matrices * product.k)):
        contract.require(
            size <= LARGEST,
            f"{name} must be at most {LARGEST} with a scale, not {size}; split the call",
        )
    return fixpipe_words(contract, words, INT8)


def _check_kernel(
    contract: ops.Contract, p: Product, of_x: Order, w: Operand, *, plain: bool
) -> None:
    """Refuse what the vendor's other kernel takes, which is for rows of all heads."""
    if of_x != TURNED:
        return
    row = p.matrices * p.k
    why = "since the kernel PpMatmulEinSum, which takes such calls, is not simulated"
    contract.require(
        not plain or p.element is not FLOAT32,
        f"perm_x1 must be {PLAIN} with float32, not {TURNED}, {why}; permute input",
        Code.UNSUPPORTED,
    )
    contract.require(
        not plain or not p.transposed_b,
        f"perm_x2 must be {PLAIN} with perm_x1 {TURNED}, not {SWAPPED}, {why}; transpose weight",
        Code.UNSUPPORTED,
    )
    remedy = f"permute input, and pass perm_x1={PLAIN}"
    if w.spec.layout == "FRACTAL_NZ":
        remedy = "split the call"
    contract.require(
        row <= LARGEST,
        f"a row of input, B * K, must have at most {LARGEST} elements, not {row}"
        f"{', ' + why if plain else ''}; {remedy}",
        Code.UNSUPPORTED if plain else Code.INVALID_PARAMETER,
    )
