"""How npu_apply_rotary_pos_emb is split over cores and buffers, and which template runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from npusim.data.dtypes import BFLOAT16
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops.npu_apply_rotary_pos_emb.contract import Problem

__all__ = ["Plan", "Template", "tile"]

Template = Literal["small", "ab", "ab_cast"]
SMALL, AB, AB_CAST = get_args(Template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has tokens of its own and takes all heads of a few at a time."""

    template: Template
    tokens_per_core: int
    loaded_tokens: int
    """Tokens that are loaded and stored together."""
    computed_tokens: int
    """Of them, those that are computed together."""
    depth: int
    """Buffers of what is loaded."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Tokens are dealt out evenly; the buffers decide how many are taken at a time.

    ops-transformer@c29bc10 posembedding/apply_rotary_pos_emb/op_host. Assumed: what its sums of
    bytes name, that is which of them a token takes twice for double buffers.
    """
    cores = len(spec.vector_cores)
    tokens = ceil_div(p.tokens, cores)
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    used = ceil_div(p.tokens, tokens)
    if tokens == 1 and p.alone_bytes <= ub_bytes:
        return Plan(
            block_dim=used,
            template=SMALL,
            reason="a token a core, all of whose heads fit the buffer",
            tokens_per_core=1,
            loaded_tokens=1,
            computed_tokens=1,
            depth=1,
        )
    computed = min(tokens, ub_bytes // (p.moved_bytes + p.computed_bytes))
    spare = 0
    if p.element is not BFLOAT16:
        left_bytes = ub_bytes - computed * (p.moved_bytes + p.computed_bytes)
        spare = left_bytes // p.moved_bytes
    return Plan(
        block_dim=used,
        template=AB if spare else AB_CAST,
        reason="the buffer holds more tokens than are computed together"
        if spare
        else "the buffer holds no more tokens than are computed together",
        tokens_per_core=tokens,
        loaded_tokens=min(tokens, computed + spare),
        computed_tokens=computed,
        depth=2,
    )
