"""npusim: Huawei Ascend AI cores in Python: which bits come out, how long it takes, and why."""

from npusim import devices, ops
from npusim.data.errors import Code, DocumentWarning, OpError
from npusim.data.tensor import Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import Kernel
from npusim.run import Run, run
from npusim.trace import Span, Trace

__all__ = [
    "Code",
    "DeviceSpec",
    "DocumentWarning",
    "Kernel",
    "OpError",
    "Run",
    "Span",
    "Tensor",
    "TensorSpec",
    "Trace",
    "devices",
    "ops",
    "run",
]
