"""Running an operator or a kernel of one's own: from a call to a Run."""

from __future__ import annotations

from npusim.run.call import Output, Run, run

__all__ = ["Output", "Run", "run"]
