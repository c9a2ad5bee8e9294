"""Running an operator or a kernel of one's own: from a call to a Run."""

from __future__ import annotations

from npusim.run.call import run
from npusim.run.result import Output, Run

__all__ = ["Output", "Run", "run"]
