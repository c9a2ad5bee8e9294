"""matmul on whole arrays in plain numpy: the oracle for every tiled run.

For products with split k, fp32 sums of chunks are added one after the other (ops-nn@e5c3fa9
matmul/mat_mul_v3/op_kernel: mat_mul_sc_splitk_kernel.h, mat_mul_deterministic_splitk_kernel.h).
Each chunk's sum starts from zero, the first one's from the bias; each addition is rounded in fp32
to nearest even.
"""

from __future__ import annotations

import numpy as np

from npusim import devices
from npusim.data.dtypes import Array
from npusim.data.few_rows import few_rows_product
from npusim.data.integers import ceil_div
from npusim.data.product import CubeOrder
from npusim.ops import _vocabulary as ops
from npusim.ops._matmul_oracle import cube_product
from npusim.ops.matmul import k_split
from npusim.ops.matmul.check import SUPPORT, Problem, check
from npusim.ops.matmul.traits import Chip

DEFAULT = "ascend910b2"
"""The chip that chooses a kernel if none is given: an Atlas A2 with 24 cube cores."""


def oracle(given: ops.Given) -> Array:
    """`x1 (..., m, k) @ x2 (..., k, n) + bias (n,)`, batches broadcast, in the type of x1.

    x2 may be a Tensor of any layout; output_dtype "float32" omits the last rounding.
    """
    spec = given.spec or devices.load(DEFAULT)
    p = check(ops.Contract("matmul", spec, arguments=given.arguments, support=SUPPORT))
    a, b = np.asarray(given.x1), np.asarray(given.x2)
    if p.traits.matrices == 1:
        a, b = a.reshape(-1, a.shape[-1]), b.reshape(b.shape[-2:])
    total = _sums(p, Chip.of(spec), (a, b, given.bias, given.cube_order))
    total = total.reshape(p.output.shape)
    return total if p.traits.is_wide else given.rounded(total, a.dtype)


Call = tuple[Array, Array, Array | None, CubeOrder]
"""Operands, bias and order of the cube."""


def _sums(p: Problem, chip: Chip, call: Call) -> Array:
    """The sums of the template: `(..., m, n)` in fp32."""
    match p.choice.template:
        case "al1_split_k":
            return in_chunks(*call, k_split.resident_tiles(p.traits, chip).chunk_k)
        case "single_core_split_k":
            return in_chunks(*call, k_split.single_core_chunk_k(p.traits, chip))
        case "deterministic_split_k":
            return in_runs(*call, k_split.STRIP, k_split.cores_along_k(p.traits, chip))
    return cube_product(*call)


def in_chunks(
    a: Array, b: Array, bias: Array | None, order: CubeOrder, chunk_k: int, first_k: int = 0
) -> Array:
    """`a (m, k) @ b (k, n)` in fp32: the chunks of one core, *chunk_k* of k each, in order.

    They are at *first_k* of the whole product, which decides whether the first one includes the
    bias.
    """
    total = np.zeros((a.shape[-2], b.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[-1], chunk_k):
            part = slice(start, start + chunk_k)
            begin = bias if first_k + start == 0 else None
            chunk = cube_product(a[..., part], b[..., part, :], begin, order)
            total = total + chunk if start else chunk
    return total


def in_runs(
    a: Array, b: Array, bias: Array | None, order: CubeOrder, chunk_k: int, cores: int
) -> Array:
    """The same by *cores* with consecutive chunks each, the first ones with one more.

    The cores' sums are added in core order.
    """
    each, more = divmod(ceil_div(a.shape[-1], chunk_k), cores)
    total, first = np.zeros((a.shape[-2], b.shape[-1]), np.float32), 0
    for core in range(cores):
        last = first + (each + (core < more)) * chunk_k
        run = in_chunks(a[..., first:last], b[..., first:last, :], bias, order, chunk_k, first)
        with np.errstate(all="ignore"):
            total = total + run if core else run
        first = last
    return total


MOST_AT_ONCE = 2**20
"""Largest number of products that are summed in few calls of numpy; beyond it micro-ops are as fast
(measured)."""
CUT_K = ("al1_split_k", "single_core_split_k", "deterministic_split_k")
"""Templates whose sums are of parts of k."""


def at_once(given: ops.Given, p: Problem, plan: ops.Plan) -> Array | None:
    """The same for small calls of templates that sum k in ascending order."""
    a, b = np.asarray(given.x1), np.asarray(given.x2)
    is_small = p.output.size * a.shape[-1] <= MOST_AT_ONCE
    if plan.template in CUT_K or not is_small:
        return None
    total = few_rows_product(a, b, given.bias, given.cube_order)
    return total if p.traits.is_wide else given.rounded(total, a.dtype)
