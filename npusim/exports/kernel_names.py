"""The names that the vendor's profilers give to kernels launched by torch_npu.

aclnnDivs_RealDivAiCore_RealDiv consists of the function of aclnn that torch_npu called, the
function within it that launches the kernel, and the type of the kernel, as in the examples of
msprof-analyze 26.2.0 (advisor/*.ipynb: aclnnAbs_AbsAiCore_Abs, aclnnMatmul_TransData_TransData).
Assumed: the middle part is the type with AiCore for operations of torch itself, and the type alone
for operations that torch_npu adds; a kernel that no function of aclnn launches is named by its
type.
"""

from __future__ import annotations

from npusim import ops
from npusim.run.result import Result

__all__ = ["api_of", "kernel_name"]

ACLNN = "aclnn"


def api_of(run: Result) -> str:
    """The function of aclnn that launches *run*; for operations of torch, by their name here."""
    functions = () if run.is_own_kernel else ops.load(run.op).torch
    if functions:
        return functions[0].aclnn(run.arguments)
    return ACLNN + "".join(word.capitalize() for word in run.op.split("_"))


def kernel_name(run: Result, api: str | None = None) -> str:
    """The name of the kernel of *run*, launched by the function *api* of aclnn."""
    kind = run.kernel_type or run.op
    if run.is_own_kernel:
        return kind
    api = api or api_of(run)
    launcher = kind if ops.load(run.op).torch or kind == "TransData" else f"{kind}AiCore"
    return f"{api}_{launcher}_{kind}" if api.startswith(ACLNN) else kind
