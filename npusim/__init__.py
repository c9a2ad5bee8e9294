"""npusim: Huawei Ascend AI cores in Python: which bits come out, how long it takes, and why."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

# Eager, since a later import of the package would put itself in the place of its function.
from npusim.run import run

if TYPE_CHECKING:
    from npusim import devices, ops
    from npusim.data.errors import Code, DocumentWarning, OpError, SlowEngineWarning
    from npusim.data.tensor import Tensor, TensorSpec
    from npusim.devices.schema import DeviceSpec
    from npusim.explain.kernel_comparison import compare
    from npusim.kernel.launch import Kernel
    from npusim.run.card import card
    from npusim.run.runs import Run
    from npusim.sweeps import sweep
    from npusim.trace import Span, Trace

__all__ = [
    "Code",
    "DeviceSpec",
    "DocumentWarning",
    "Kernel",
    "OpError",
    "Run",
    "SlowEngineWarning",
    "Span",
    "Tensor",
    "TensorSpec",
    "Trace",
    "card",
    "compare",
    "devices",
    "ops",
    "run",
    "sweep",
]

HOMES = {
    "Code": "npusim.data.errors",
    "DeviceSpec": "npusim.devices.schema",
    "DocumentWarning": "npusim.data.errors",
    "Kernel": "npusim.kernel.launch",
    "OpError": "npusim.data.errors",
    "Run": "npusim.run.runs",
    "SlowEngineWarning": "npusim.data.errors",
    "Span": "npusim.trace",
    "Tensor": "npusim.data.tensor",
    "TensorSpec": "npusim.data.tensor",
    "Trace": "npusim.trace",
    "card": "npusim.run.card",
    "compare": "npusim.explain.kernel_comparison",
    "sweep": "npusim.sweeps",
}
"""Public name -> the module that defines it, imported when the name is first used."""

if not TYPE_CHECKING:  # mypy would otherwise accept any name

    def __getattr__(name: str) -> Any:
        """The public *name*, or a subpackage, imported on first access (PEP 562)."""
        if name in HOMES:
            return getattr(import_module(HOMES[name]), name)
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The public names, including those not imported yet."""
        return sorted({*globals(), *__all__})
