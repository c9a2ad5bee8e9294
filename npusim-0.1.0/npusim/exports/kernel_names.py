"""What the vendor's profilers call a kernel that torch_npu launched.

In aclnnDivs_RealDivAiCore_RealDiv, these are the function of aclnn that torch_npu called, the one
within it that launches the kernel, and the type of the kernel, as in the examples of msprof-analyze
26.2.0 (advisor/*.ipynb: aclnnAbs_AbsAiCore_Abs, aclnnMatmul_TransData_TransData). Assumed: that the
middle one is the type and AiCore for what torch has itself and the type alone for what torch_npu
adds, and that kernels which no function of aclnn launches are called as their type.
"""

from __future__ import annotations

from npusim import ops
from npusim.run.result import Result

__all__ = ["api_of", "kernel_name"]

ACLNN = "aclnn"


def api_of(run: Result) -> str:
    """The function of aclnn whose kernel *run* is; of torch's own operations by their name here."""
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
