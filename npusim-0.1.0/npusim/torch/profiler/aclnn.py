"""Which function of aclnn torch_npu calls for an operation, by which kernels are named.

Of operators of torch_npu they say so themselves. Of torch's own operations: matmul_kernels and
copies by op-plugin@517f2e7 (mm, bmm, addmm; CopyKernelOpApi.cpp), numbers as second operand by
examples of msprof-analyze 26.2.0 (aclnnSubs, aclnnDivs, aclnnEqScalar). That others are called as
the operation is, in place with Inplace before it, is assumed.
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
"""Operation of aten -> what follows aclnn, where it is not its name."""
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
