"""How FAI splits a call: every cube core of the chip with its vector cores, and their workspaces.

Sources: see :mod:`npusim.ops._attention.fai`.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.kernel.views import GmView
from npusim.ops import _protocol
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fai.split import Work, work_of
from npusim.ops._attention.fai.tasks import TASK_ROWS, TILE

__all__ = ["SLOTS", "Plan", "Workspaces", "tile"]

SLOTS = 3
"""Of scores, of probabilities and of products, for each group of cores."""
PRODUCT_COLUMNS = 128
"""Heads of more columns pass through a workspace more, between tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Who does what, beside the workspaces."""

    work: Work


@dataclass(frozen=True, slots=True)
class Workspaces:
    """What cube and vector cores of a group exchange, as views of slot *index*."""

    a: Attention

    def scores(self, index: int, rows: int, keys: int) -> GmView:
        """fp32 `(rows, keys)`."""
        every = GmView.of("scores", FLOAT32, SLOTS * TASK_ROWS, TILE)
        return self._slot(every, index)[:rows, :keys]

    def probabilities(self, index: int, rows: int, keys: int) -> GmView:
        """`(rows, keys)` of the type of the query."""
        every = GmView.of("probabilities", self.a.element, SLOTS * TASK_ROWS, TILE)
        return self._slot(every, index)[:rows, :keys]

    def products(self, index: int, rows: int) -> GmView:
        """fp32 `(rows, columns of a head)`."""
        size, first = self.a.head_size, index % SLOTS * FLOAT32.nbytes(TASK_ROWS * TILE)
        return GmView("products", FLOAT32, rows, size, size, first)

    def updated(self, rows: int) -> GmView:
        """fp32 `(rows, columns of a head)`: sums between tiles, where a core cannot keep them."""
        return GmView.of("updated", FLOAT32, rows, self.a.head_size)

    @staticmethod
    def _slot(every: GmView, index: int) -> GmView:
        first = index % SLOTS * TASK_ROWS
        return every[first : first + TASK_ROWS, :]

    @property
    def group_bytes(self) -> dict[str, int]:
        """Name -> bytes of a group."""
        elements = SLOTS * TASK_ROWS * TILE
        found = {
            "scores": FLOAT32.nbytes(elements),
            "probabilities": self.a.element.nbytes(elements),
            "products": FLOAT32.nbytes(elements),
        }
        if self.a.head_size > PRODUCT_COLUMNS:
            found["updated"] = FLOAT32.nbytes(TASK_ROWS * self.a.head_size)
        return found


def tile(spec: DeviceSpec, a: Attention, template: str, reason: str) -> Plan:
    """All cores of *spec* start, also those that no task is for; of FAI-FD those with work."""
    work = work_of(a, spec.cores["aic"].count, template)
    groups = len(work.tasks)
    workspaces = {name: groups * nbytes for name, nbytes in Workspaces(a).group_bytes.items()}
    if work.nodes:
        rows = work.pieces * TASK_ROWS
        workspaces["outputs_of_pieces"] = FLOAT32.nbytes(rows * a.head_size)
        workspaces["sums_of_pieces"] = FLOAT32.nbytes(rows)
    return Plan(
        template=template,
        reason=reason,
        block_dim=groups,
        is_mix=True,
        workspaces=workspaces,
        work=work,
    )
