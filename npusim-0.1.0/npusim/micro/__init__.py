"""Small kernels that show one thing each: variants of what the vendor publishes times of.

No operator of torch_npu is behind them. Each module writes one family with the builder;
``examples/micro.py`` holds their times against the published ones.
"""

from __future__ import annotations

from npusim.kernel.launch import Kernel
from npusim.micro.launch import compute, task_us, time

__all__ = ["Kernel", "compute", "task_us", "time"]
