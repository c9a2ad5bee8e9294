"""Small kernels that show one thing each: variants of kernels whose times the vendor publishes.

They implement no operator of torch_npu. Each module writes one family with the builder;
``examples/micro.py`` compares their times with the published ones.
"""

from __future__ import annotations

from npusim.kernel.launch import Kernel
from npusim.micro.launch import compute, task_us, time

__all__ = ["Kernel", "compute", "task_us", "time"]
