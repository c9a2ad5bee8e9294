"""What npu_apply_rotary_pos_emb accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.tensor import Operand
from npusim.ops import _protocol
from npusim.ops._contract import Contract, listed
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, alike

__all__ = ["SUPPORT", "Problem", "check"]

WIDTHS = (64, 128)
"""Of vectors: 128 in ops-transformer@c29bc10, 64 too in its successor @05c401f9."""
LAYOUTS = {"BSND": 4, "TND": 3}
"""Layout -> dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: to the kernel query is `(tokens, query_heads, width)`, key alike."""

    element: DType
    tokens: int
    query_heads: int
    key_heads: int
    width: int

    @property
    def heads(self) -> int:
        """Of query and key."""
        return self.query_heads + self.key_heads

    @property
    def computed_in(self) -> DType:
        """bfloat16 is widened."""
        return FLOAT32 if self.element is BFLOAT16 else self.element

    @property
    def moved_bytes(self) -> int:
        """What a token takes of the buffer for copies: its heads come in twice, for double buffers,
        and leave once, its cosines and sines come in twice."""
        return self.element.nbytes((3 * self.heads + 4) * self.width)

    @property
    def computed_bytes(self) -> int:
        """What a token takes besides: its heads twice, and widened cosines and sines."""
        lines = 2 if self.element is BFLOAT16 else 0
        return self.computed_in.nbytes((2 * self.heads + lines) * self.width)

    @property
    def alone_bytes(self) -> int:
        """What one token takes that shares the buffer with none, as the vendor's tiling counts."""
        lines = self.element.nbytes(2 * self.width)
        return self.computed_in.nbytes(2 * self.heads * self.width) + lines + self.computed_bytes


TENSORS = ("query", "key", "cos", "sin")
ATTRIBUTES: dict[str, Any] = {"layout": tuple(LAYOUTS), "rotary_mode": ("half",)}

SUPPORT = (
    *alike((FLOAT16, BFLOAT16, FLOAT32), *TENSORS, on=A2_A3, **ATTRIBUTES),
    *alike((FLOAT16, FLOAT32), *TENSORS, on=ATLAS_INFERENCE, **ATTRIBUTES),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    spec = contract.spec
    q, k, c, s = map(contract.operand, TENSORS)
    layout = contract.choice("layout")
    contract.choice("rotary_mode")
    for operand in (q, k, c, s):
        contract.require(
            len(operand.shape) == LAYOUTS[layout],
            f"{operand.name} must have {LAYOUTS[layout]} dimensions in layout {layout}, not "
            f"{len(operand.shape)}; reshape it",
        )
    contract.require(
        q.shape[-1] in WIDTHS,
        f"query must have a last dimension of {listed(tuple(map(str, WIDTHS)))}, not "
        f"{q.shape[-1]}; pad or cut it, or use npu_rotary_mul",
    )
    _check_shapes(contract, q, k, (c, s))
    problem = Problem(
        inputs=(q, k, c, s),
        outputs={"query": q.spec, "key": k.spec},
        element=q.element,
        tokens=prod(q.shape[:-2]),
        query_heads=q.shape[-2],
        key_heads=k.shape[-2],
        width=q.shape[-1],
    )
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    need_bytes = problem.moved_bytes + problem.computed_bytes
    if problem.tokens <= len(spec.vector_cores):
        need_bytes = min(need_bytes, problem.alone_bytes)
    contract.require(
        need_bytes <= ub_bytes,
        f"query and key must have so few heads that a token's {problem.heads} fit, with room to "
        f"work, into the {ub_bytes} bytes of the unified buffer, not need {need_bytes}; split the "
        f"heads over several calls",
    )
    return problem


def _check_shapes(
    contract: Contract, q: Operand, k: Operand, turns: tuple[Operand, Operand]
) -> None:
    """Tokens and widths must agree, and cos and sin have one head."""
    contract.require(
        q.spec.size > 0 and k.spec.size > 0,
        f"query and key must have elements, not shapes {q.shape} and {k.shape}; leave the call out",
    )
    contract.require(
        (k.shape[:-2], k.shape[-1]) == (q.shape[:-2], q.shape[-1]),
        f"key must have the shape of query but for the heads, {q.shape}, not {k.shape}; "
        f"pass the same tokens",
    )
    wanted = (*q.shape[:-2], 1, q.shape[-1])
    for operand in turns:
        contract.require(
            operand.shape == wanted,
            f"{operand.name} must have shape {wanted}, not {operand.shape}; "
            f"pass a line for each token",
        )
