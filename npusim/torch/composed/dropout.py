"""Dropout masks in the format of torch_npu: one bit for each element, set if the element is kept.

Seed and offset determine the bits, as with the card's Philox generator, but the bits come from
torch's generator for the CPU. Masks take no time: the card makes them on a separate stream, in
parallel to other kernels (op-plugin@517f2e7, FlashAttentionKernelNpuOpApi.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from npusim.data.errors import Code, OpError
from npusim.torch import card, generator, shapes
from npusim.torch.graphs import as_one_step, is_in_step
from npusim.torch.relabel import to_npu

__all__ = [
    "drawn",
    "dropout_with_add_softmax",
    "kept_bits",
    "mask_bytes",
    "npu_dropout",
    "npu_dropout_backward",
    "npu_dropout_gen_mask",
    "require_renewed",
    "unpacked",
]

MASK_UNIT = 128
"""The number of bits of a mask is a multiple of this."""


def mask_bytes(count: int) -> int:
    """Size in bytes of a mask of *count* elements."""
    return -(-count // MASK_UNIT) * MASK_UNIT // 8


def kept_bits(
    count: int, p: float, seed: int, offset: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of *count* elements are kept if each is dropped with probability *p*."""
    own = torch._C.Generator()
    own.manual_seed(generator.place(seed, offset))
    return np.asarray((torch.rand(count, generator=own) >= p).numpy())


def npu_dropout_gen_mask(
    input: torch.Tensor,
    size: Sequence[int],
    p: float,
    seed: int,
    offset: int,
    *,
    parallel: bool | None = True,  # noqa: ARG001
    sync: bool | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """A mask for a tensor of *size*: eight bits to a byte, lowest bit first."""
    count = prod(size)
    if not card.computes_values():
        return shapes.like(torch.empty(mask_bytes(count), dtype=torch.uint8, device="meta"))
    bits = np.packbits(kept_bits(count, p, seed, offset), bitorder="little")
    found = torch.zeros(mask_bytes(count), dtype=torch.uint8)
    found[: bits.size] = torch.from_numpy(bits)
    return to_npu(found) if input.is_npu else found


def unpacked(bits: torch.Tensor, count: int) -> torch.Tensor:
    """The first *count* bits of a dropout mask, as bool."""
    places = 2 ** torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.reshape(-1)[:, None] & places).ne(0).reshape(-1)[:count]


def npu_dropout(self: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Drop elements with probability *p*, scale the others, and return the mask as well.

    A card's kernel, DropoutDoMask, is not simulated: the mask is unpacked, and a product follows.
    """

    def drop() -> tuple[torch.Tensor, ...]:
        seed, offset = generator.default_generators[0].next_place()
        mask = npu_dropout_gen_mask(self, self.shape, p, seed % 2**63, offset)
        return npu_dropout_backward(self, mask, p), mask

    found, mask = as_one_step("_npu_dropout", drop)
    return found, mask


def npu_dropout_backward(
    grad_output: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Keep the elements of a *mask* for probability *scale*, divided by 1 - *scale*."""
    kept = unpacked(mask, grad_output.numel()).reshape(grad_output.shape)
    share = 1 / (1 - scale) if scale < 1 else 0.0
    return grad_output * kept.to(grad_output.dtype) * share


def require_renewed() -> None:
    """Raise OpError during capture of a graph, except by what it records as one step.

    Each replay runs such a step anew, with another seed and offset. The gradient uses those of
    forward, but a replayed graph would not renew integers for it. A card therefore refuses all
    versions but npu_fusion_attention_v3, where they are tensors (NPUGeneratorImpl.cpp,
    philox_engine_inputs).
    """
    if generator.is_captured() and not is_in_step():
        raise OpError(
            Code.UNSUPPORTED,
            "npu_fusion_attention: keep_prob must be 1 while a graph is captured, but is less; "
            "call npu_fusion_attention_v3 and npu_fusion_attention_grad_v3",
        )


def drawn() -> tuple[int, int]:
    """Seed and offset of the next mask, from the card's generator."""
    require_renewed()
    seed, offset = generator.default_generators[0].next_place()
    # The schema passes the seed as a signed integer of 64 bits.
    return seed % 2**63, offset


def dropout_with_add_softmax(
    input: torch.Tensor, x1: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mask, the softmax of `x1 + alpha * input` along *dim*, and its dropout with probability
    *prob* of zero."""
    shares = torch.softmax(x1.float() + alpha * input.float(), dim).to(x1.dtype)
    dropped, mask = npu_dropout(shares, prob)
    return mask, shares, dropped
