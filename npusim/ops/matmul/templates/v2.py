"""The template v2: MatMulV2, whose program is that of base; only its tiles differ.

They are closed, but for those of base where nothing else is known.
"""

from __future__ import annotations

from npusim.ops.matmul.templates.base import tile
from npusim.ops.matmul.templates.whole_k import build

__all__ = ["build", "tile"]
