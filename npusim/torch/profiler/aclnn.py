"""The aclnn function that torch_npu calls for an operation; kernels are named after it.

Operators of torch_npu declare it themselves. For torch's own operations: matmul_kernels and copies
from op-plugin@517f2e7 (mm, bmm, addmm; CopyKernelOpApi.cpp), scalars as second operand from
examples of msprof-analyze 26.2.0 (aclnnSubs, aclnnDivs, aclnnEqScalar). Others are assumed to have
the name of the operation, with Inplace before it if they are in place.
"""

from __future__ import annotations

from npusim import ops
from npusim.exports.kernel_names import api_of
from npusim.run.result import Result

__all__ = ["api"]

NAMED = {
    "_copy_from": "InplaceCopy",
    "_copy_from_and_resize": "InplaceCopy",
    "_log_softmax": "LogSoftmax",
    "_softmax": "Softmax",
    "_to_copy": "Cast",
    "bmm": "BatchMatMul",
    "clone": "InplaceCopy",
    "fill": "InplaceFillScalar",
    "fill_": "InplaceFillScalar",
    "mv": "Mv",
    "sum": "ReduceSum",
    "where": "SWhere",
    "zero": "InplaceZero",
    "zero_": "InplaceZero",
}
"""Operation of aten -> the name after aclnn, if that is not the name of the operation."""
WITH_NUMBERS = ("add", "sub", "mul", "div")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def api(run: Result, operator: str) -> str:
    """The function of aclnn by which *operator*, `aten.add.Tensor`, launched that of *run*."""
    if not operator.startswith("aten.") or run.is_own_kernel or ops.load(run.op).torch:
        return api_of(run)
    _, packet, overload = operator.split(".", 2)
    if packet in NAMED:
        return f"aclnn{NAMED[packet]}"
    bare = packet.removesuffix("_")
    name = "".join(word.capitalize() for word in bare.split("_") if word)
    if bare in COMPARISONS:
        name += overload.partition("_")[0].capitalize()
    elif run.op == bare in WITH_NUMBERS and isinstance(run.arguments["other"], int | float):
        name += "s"
    return f"aclnn{'Inplace' if packet.endswith('_') else ''}{name}"
