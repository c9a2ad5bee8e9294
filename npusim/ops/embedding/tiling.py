"""How indices are split over cores, and how rows pass the unified buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.embedding.contract import Problem

__all__ = ["Plan", "Template", "tile"]

Template = Literal["short", "short_table", "whole", "whole_table", "ragged", "pieces"]

KEPT_BYTES = 2048
"""Of the unified buffer, left alone (gather_v2.cc)."""
TABLE_BYTES = 100 * 1024
"""The longest table that a core keeps in its buffer (the same file)."""

REASONS: dict[Template, str] = {
    "short": "rows shorter than a block of 32 bytes",
    "short_table": "rows shorter than a block, of a table that the buffer holds",
    "whole": "rows of whole blocks",
    "whole_table": "rows of whole blocks, of a table that the buffer holds",
    "ragged": "rows that are no whole blocks",
    "pieces": "rows longer than half of the buffer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has indices of its own."""

    template: Template
    runs_of_core: tuple[tuple[range, ...], ...]
    """Of each core, the numbers of its indices."""
    indices_per_load: int
    rows_per_store: int
    piece_bytes: int
    """The most of a row that is copied at a time, whole blocks."""
    depth: int
    """Buffers for what is stored at a time."""

    @property
    def keeps_table(self) -> bool:
        """Whether each core loads the whole table first."""
        return self.template in ("short_table", "whole_table")


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Half of the buffer is for indices, half for rows; what is left over goes to the first cores.

    gather_v2.cc, modes 1 to 6. Modes 7 and 13, which keep the table in L1, do as 3 and 1 here
    (vector cores of A2 and A3 have no L1; of the AI cores of 310P it is assumed). Assumed: that
    rows shorter than a block are dealt out so that each core has a block of the result, and that
    rows which are stored one by one pass two buffers in turn where these fit.
    """
    template = _template(spec, p)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - KEPT_BYTES
    if template in ("short_table", "whole_table"):
        room -= TABLE_BYTES
    half_bytes = align_down(room // 2, BLOCK_BYTES)
    vector_cores = len(spec.vector_cores)
    runs: tuple[tuple[range, ...], ...]
    if p.row_bytes < BLOCK_BYTES:
        # Two cores must not store to one block.
        cores = max(1, min(vector_cores, p.count // ceil_div(BLOCK_BYTES, p.row_bytes)))
        runs = tuple((share(p.count, cores, core),) for core in range(cores))
    else:
        cores = min(vector_cores, p.count)
        runs = tuple(_runs(p.count, cores, core) for core in range(cores))
    is_one_by_one = template in ("ragged", "pieces")
    piece_bytes = min(half_bytes, align_up(p.row_bytes, BLOCK_BYTES))
    return Plan(
        block_dim=cores,
        template=template,
        reason=REASONS[template],
        runs_of_core=runs,
        indices_per_load=half_bytes // p.index_type.nbytes(1),
        rows_per_store=1 if is_one_by_one else half_bytes // p.row_bytes,
        piece_bytes=piece_bytes,
        depth=2 if template == "ragged" and 2 * piece_bytes <= half_bytes else 1,
    )


def _runs(count: int, cores: int, core: int) -> tuple[range, ...]:
    """As many indices for each core, and one of those that are left over for the first ones."""
    each, left = divmod(count, cores)
    last = cores * each + core
    return range(core * each, (core + 1) * each), range(last, last + (core < left))


def _template(spec: DeviceSpec, p: Problem) -> Template:
    is_small = p.table_bytes <= TABLE_BYTES
    half = (spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - KEPT_BYTES) // 2
    if p.row_bytes < BLOCK_BYTES:
        return "short_table" if is_small else "short"
    if p.row_bytes > align_down(half, BLOCK_BYTES):
        return "pieces"
    if p.row_bytes % BLOCK_BYTES:
        return "ragged"
    return "whole_table" if is_small else "whole"
