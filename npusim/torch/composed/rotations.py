"""Rotary embedding with several kinds of positions, by npu_rotary_mul.

Source: op-plugin@517f2e7, the document torch_npu-npu_mrope.md.
"""

from __future__ import annotations

import torch

__all__ = ["mrope"]


def mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key, rotated by one position for each token, or by a position of each kind."""
    for name, came, modes in (
        ("rotary_mode", rotary_mode, ("half", "interleave")),
        ("cache_mode", cache_mode, ("default", "interleave")),
    ):
        if came not in modes:
            raise RuntimeError(
                f"npu_mrope: {name} only support {' or '.join(modes)}, not {came}; choose one"
            )
    tokens = positions.shape[-1]
    found = cos_sin_cache.index_select(0, positions.flatten()).reshape(
        -1, tokens, cos_sin_cache.shape[-1]
    )
    tables = [_mixed(x, mrope_section, cache_mode) for x in found.chunk(2, -1)]
    is_half = rotary_mode != "interleave"
    cos, sin = (
        torch.cat([x, x], -1) if is_half else x.repeat_interleave(2, -1)
        for x in (table.to(query.dtype)[None, :, None] for table in tables)
    )
    mode, turned = "half" if is_half else "interleave", cos.shape[-1]
    results = []
    for tensor in (query, key):
        heads = tensor.reshape(1, tokens, -1, head_size)
        part = torch.ops.npu.npu_rotary_mul(heads[..., :turned].contiguous(), cos, sin, mode)
        whole = torch.cat([part, heads[..., turned:]], -1) if turned < head_size else part
        results.append(whole.reshape(tensor.shape))
    return results[0], results[1]


def _mixed(table: torch.Tensor, sections: list[int] | None, mode: str | None) -> torch.Tensor:
    """Select the kind of each column of *table* `(kinds, tokens, columns)`: `(tokens, columns)`."""
    if table.shape[0] == 1 or not sections:
        return table[0]
    if mode != "interleave":
        parts = table.split(list(sections), -1)
        return torch.cat([part[kind] for kind, part in enumerate(parts)], -1)
    found = table[0].clone()
    for kind in (1, 2):
        columns = slice(kind, sections[1] * 3, 3)
        found[:, columns] = table[kind, :, columns]
    return found
