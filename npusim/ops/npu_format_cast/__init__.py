"""npu_format_cast: a matrix goes from ND to FRACTAL_NZ, or back.

.. code-block:: text

    ND           (..., m, n)                 row after row
    FRACTAL_NZ   (..., n1, m1, 16, C0)       n1 = ceil(n / C0), m1 = ceil(m / 16), C0 in 32 bytes

What fills the edges is zero (asc-devkit, docs/zh, 关键分形格式详解.md). acl_format is 2 for ND and
29 for FRACTAL_NZ (acl_base.h, aclFormat); their names are accepted beside the numbers. A tensor
that is in the format already comes back as it is, and no kernel runs.

The vendor's kernel is TransData, which is closed; the one here does what its name says with
the micro-ops that there are: rows into the unified buffer, block copies there, fractals out. Its
split over cores and buffers is assumed, and so is that rows lie there without a gap, whose blocks
one below the other then meet in a group of banks. A transposed view of an ND array is made
contiguous first, by a kernel of its own that is not timed; one of a FRACTAL_NZ tensor keeps its
memory's order.

Accepted are two to six dimensions (those of the matrix products' weights, ops-nn) of float16,
float32, int8, int32 and, but for 310P, bfloat16. Elements below a byte come packed in int32.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchArguments, TorchFunction
from npusim.ops.npu_format_cast.contract import FORMATS, SUPPORT, Problem, check
from npusim.ops.npu_format_cast.kernel import build
from npusim.ops.npu_format_cast.reference import oracle
from npusim.ops.npu_format_cast.tiling import Plan, tile

__all__ = ["OPERATOR", "Plan", "Problem", "build", "check", "oracle", "tile"]


def _is_done(given: TorchArguments) -> bool:
    return bool(FORMATS.get(given["acl_format"]) == given["x"].layout)


TORCH = TorchFunction(
    schema="npu_format_cast(Tensor self, int acl_format, int? customize_dtype=None, "
    "int? input_dtype=None) -> Tensor",
    # Assumed.
    aclnn=lambda _: "aclnnNpuFormatCast",
    outputs=lambda given, _: ((given["x"].shape, given["x"].dtype),),
    names={"self": "x"},
    absent=("customize_dtype", "input_dtype"),
    is_done=_is_done,
)
IN_PLACE = replace(
    TORCH,
    schema="npu_format_cast_(Tensor(a!) self, int acl_format) -> Tensor(a!)",
    absent=(),
)


OPERATOR = Operator(
    kernel_type="TransData",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH, IN_PLACE),
)
