"""Values that are known where shapes alone are simulated: whole numbers that a script decides by.

Indices, counts, masks and places are small and come of shapes and of each other. They have memory,
and what torch computes of nothing but such tensors is computed. So the experts of a model are
chosen as a distribution says, uniform unless another is given, and all that follows from it is
known: which tokens an expert gets, and how many. A value that comes of weights or activations is
unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

__all__ = ["choose", "chosen", "forget", "is_backed", "is_known", "learn", "may_be_known", "own"]

KNOWN_TYPES = (torch.int64, torch.int32, torch.bool, torch.uint8, torch.int8, torch.int16)
MOST_ELEMENTS = 1 << 22
"""A larger tensor has no memory, and its values are not known."""
MOST_EXPERTS = 1024
"""What chooses among more is no router: its choice is not known."""

_storages: dict[int, bool] = {}
"""Storage that has memory -> whether its values are known."""
_shares: list[tuple[float, ...]] = [()]
"""How often experts are chosen; uniform where there is nothing, or not as many."""


def choose(shares: Sequence[float]) -> None:
    """Let routers choose experts as often as *shares* say, relative to each other; () is evenly."""
    _shares[:] = [tuple(shares)]


def may_be_known(shape: Iterable[int], dtype: torch.dtype) -> bool:
    """Whether a tensor of that shape is given memory, so that its values can be known."""
    return dtype in KNOWN_TYPES and torch.Size(shape).numel() <= MOST_ELEMENTS


def own(tensor: torch.Tensor) -> None:
    """*tensor* on npu has memory of its own, whose values are not known yet."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in _storages:
        weakref.finalize(storage, _storages.pop, key, None)
    _storages[key] = False


def is_backed(tensor: torch.Tensor) -> bool:
    """Whether there is memory behind *tensor*."""
    return tensor.untyped_storage()._cdata in _storages


def learn(found: object) -> None:
    """The values of all tensors of *found* that have memory are known from here on."""
    _mark(found, True)


def forget(found: object) -> None:
    """They are not."""
    _mark(found, False)


def _mark(found: object, is_known: bool) -> None:
    for leaf in tree_leaves(found):
        if isinstance(leaf, torch.Tensor) and leaf.is_npu:
            key = leaf.untyped_storage()._cdata
            if key in _storages:
                _storages[key] = is_known


def is_known(found: object) -> bool:
    """Whether there are tensors on npu in *found*, and the values of all are known."""
    tensors = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.is_npu]
    return bool(tensors) and all(_storages.get(x.untyped_storage()._cdata, False) for x in tensors)


def chosen(shape: Sequence[int], experts: int) -> torch.Tensor | None:
    """Which of *experts* a router chooses for each token, `(..., k)`; None where it is no router.

    Each takes its turn as often as its share says, and no token the same expert twice.
    """
    count, k = torch.Size(shape[:-1]).numel(), shape[-1]
    if not 0 < k <= experts <= MOST_EXPERTS:
        return None
    shares = _shares[0] if len(_shares[0]) == experts else (1.0,) * experts
    weights = np.array(shares) / sum(shares)
    taken, rows = np.zeros(experts), np.empty((count, k), np.int64)
    for row in range(count):
        # Those that are farthest behind their share of what has been chosen so far.
        behind = weights * (row + 1) * k - taken
        rows[row] = np.argsort(-behind, kind="stable")[:k]
        taken[rows[row]] += 1
    return torch.from_numpy(rows.reshape(tuple(shape)))
