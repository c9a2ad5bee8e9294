"""How the tokens of npu_moe_finalize_routing are split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import BFLOAT16, FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.ops import _protocol
from npusim.ops.npu_moe_finalize_routing.contract import Problem

__all__ = ["Plan", "tile"]

PING_PONG = 2
"""Buffers for the rows of experts, which are loaded ahead (ops-transformer,
moe_finalize_routing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has a run of tokens, of which as many are added up at a time as fit."""

    tokens_per_core: int
    tokens_per_tile: int
    columns: int
    """Of a row that are added up at a time: all of them, unless one row is too long."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Tokens evenly over the vector cores; a tile fills the unified buffer.

    ops-transformer@c29bc10 moe/moe_finalize_routing/op_host. Assumed: which buffers share the
    unified buffer, see :func:`_bytes`, and that the parts of a long row are as long as fit.
    """
    per_core = ceil_div(p.tokens, len(spec.vector_cores))
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    columns = p.width
    lanes = BLOCK_BYTES * 8 // p.element.bits
    if sum(_bytes(p, columns)) > room:
        each, once = _bytes(p, lanes)
        scales_bytes = _scale_bytes(p)
        per_block = each + once - scales_bytes - BLOCK_BYTES
        columns = align_down((room - scales_bytes - BLOCK_BYTES) // per_block * lanes, lanes)
    each, once = _bytes(p, columns)
    return Plan(
        block_dim=ceil_div(p.tokens, per_core),
        tokens_per_core=per_core,
        tokens_per_tile=min(per_core, max(1, (room - once) // each)),
        columns=columns,
    )


def _scale_bytes(p: Problem) -> int:
    """Of the scales of a token, as they come and as float32."""
    if "scales" not in p.names:
        return 0
    is_wide = p.element is BFLOAT16
    return p.element.nbytes(p.k) + (FLOAT32.nbytes(p.k) + BLOCK_BYTES if is_wide else 0)


def _bytes(p: Problem, columns: int) -> tuple[int, int]:
    """Bytes of the buffers with *columns*: for each token of a tile, and once.

    A token has its skips, its sum and its scales; rows and biases pass in turn. bfloat16 has its
    sum, its second skip and what passes as float32 too.
    """
    own_bytes = align_up(p.element.nbytes(columns), BLOCK_BYTES)
    is_wide = p.element is BFLOAT16
    wide_bytes = own_bytes * FLOAT32.bits // p.element.bits if is_wide else 0
    skips = sum(name in p.names for name in ("skip1", "skip2"))
    each = (1 + skips) * own_bytes + wide_bytes * (2 if skips == 2 else 1) + _scale_bytes(p)
    passing = 2 if "bias" in p.names else 1
    return each, passing * (PING_PONG * own_bytes + wide_bytes) + BLOCK_BYTES
