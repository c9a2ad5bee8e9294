"""How tokens are split over cores, and how they pass the unified buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops._kv_cache.contract import Problem

__all__ = ["Plan", "Template", "tile"]

Template = Literal["in_turn", "pieces", "nz_in_turn", "nz_pieces"]

MANY_TOKENS = 1000
"""From so many tokens on copies overlap (scatter_pa_kv_cache_tiling.cpp)."""
PIECE_BYTES = {"2201": 48 * 1024, "2002": 32 * 1024}
"""Architecture -> what is copied at a time where copies overlap (reshape_and_cache of
ascend-transformer-boost; 310P keeps room for the list of slots)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has a run of tokens."""

    template: Template
    tokens_of_core: tuple[int, ...]
    piece_bytes: int
    """The most that one copy moves."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """Tokens are dealt out evenly; few of them pass one after the other. None without tokens.

    ops-transformer@05c401f9 attention/scatter_pa_kv_cache/op_host, and ascend-transformer-boost
    @ddcc8b62 src/kernels/mixkernels/reshape_and_cache. Assumed: that tokens too long for the
    buffer pass as many ones do.
    """
    if not p.tokens:
        return None
    cores = min(p.tokens, len(spec.vector_cores))
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    sizes = [p.token_bytes(side) for side in p.sides]
    need_bytes = sum(sizes) if p.is_nz else max(sizes)
    whole = all(size % BLOCK_BYTES == 0 for size in sizes)
    in_turn = p.tokens < MANY_TOKENS and whole and need_bytes <= ub_bytes
    template: Template
    if p.is_nz:
        template = "nz_in_turn" if in_turn else "nz_pieces"
    else:
        template = "in_turn" if in_turn else "pieces"
    why = f"fewer than {MANY_TOKENS} tokens, of whole blocks, that fit the buffer"
    other = f"{MANY_TOKENS} tokens or more, or some that are no whole blocks or too long"
    return Plan(
        block_dim=cores,
        template=template,
        reason=why if in_turn else other,
        tokens_of_core=tuple(len(share(p.tokens, cores, core)) for core in range(cores)),
        piece_bytes=max(sizes) if in_turn else PIECE_BYTES[spec.arch],
    )
