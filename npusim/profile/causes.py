"""Why a kernel is slower than it should be, as far as a profile shows it."""

from __future__ import annotations

from npusim.profile.kernels import Kernel
from npusim.profile.predictions import Prediction

__all__ = ["cause_of"]

WAITS = 0.25
"""A share of its time in which no core was busy, from which on waiting is the cause, assumed."""
EXPLAINS = 0.25
"""What another layout would save is a cause where it is such a share of what was lost, assumed."""


def cause_of(kernel: Kernel, found: Prediction) -> str:
    """The likely cause of a *kernel* that took longer than its upper bound."""
    if kernel.busy_us is not None:
        idle_us = kernel.time_us - kernel.busy_us - found.launch_us
        if idle_us > WAITS * kernel.time_us:
            return f"waiting: its cores were busy for {kernel.busy_us:.1f} us of it"
    if kernel.blocks is not None and kernel.blocks != found.blocks:
        simulated = f"npusim's {_named(found)} has {found.blocks}"
        return f"template: {kernel.blocks} blocks, where {simulated}"
    if found.kernel_type != kernel.type and not kernel.type.startswith(found.kernel_type):
        return f"template: {kernel.type}, where npusim's rules choose {found.kernel_type}"
    if found.better is not None:
        layout, time_us = found.better
        if found.cold_us - time_us > EXPLAINS * (kernel.time_us - found.cold_us):
            return f"ND weight: {time_us:.1f} us are simulated with {layout}"
    return "unknown: another busy stream or card, a lower clock, or another release of CANN"


def _named(found: Prediction) -> str:
    return found.kernel_type if found.template is None else f"template {found.template}"
