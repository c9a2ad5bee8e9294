"""Where kernel IFA finds things in global memory: as kernel FIA does, and digits of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.data.dtypes import INT32, DType
from npusim.kernel.views import GmView
from npusim.ops._attention.description import Antiquant, Scales
from npusim.ops._attention.fia.places import Memory
from npusim.ops._attention.fia.schedule import Tile
from npusim.ops._attention.ifa.digits import COUNT

__all__ = ["DigitMemory"]


@dataclass(frozen=True)
class DigitMemory(Memory):
    """The tensors and workspaces of a schedule; a row of a tile has a row for each digit."""

    names: ClassVar[tuple[str, ...]] = (*Memory.names, "digits")
    copies: ClassVar[int] = COUNT
    sum_type: ClassVar[DType] = INT32

    @property
    def antiquant(self) -> Antiquant:
        """How keys and values are quantised."""
        found = self.plan.rows.a.antiquant
        assert found is not None
        return found

    @property
    def factor(self) -> DType:
        return self.antiquant.element

    def scales(self, scales: Scales, tile: Tile) -> GmView:
        """Those of the columns of a head, of the keys of *tile*, or one."""
        request, head, *_ = tile.piece.row_tile
        counts = {"tensor": 1, "channel": self.width, "token": tile.keys}
        place = scales.place(request, head, tile.key, self.width)
        view = GmView.vector(scales.name, scales.dtype, counts[scales.per])
        return view.shifted_to(scales.dtype.nbytes(place))
