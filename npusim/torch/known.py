"""Values that are known where shapes alone are simulated: integers on which a script branches.

Indices, counts, masks and positions are small and are computed from shapes and from each other.
They have memory, and operations that read only such tensors are computed. The experts of a model
are chosen by a distribution, uniform by default, and everything that follows is known: which tokens
an expert gets, and how many. Values computed from weights or activations are unknown.
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
"""Most elements of a tensor with memory; the values of larger tensors are unknown."""
MOST_EXPERTS = 1024
"""Most experts of a router; a choice among more elements is unknown."""

_storages: dict[int, bool] = {}
"""Storage that has memory -> whether its values are known."""
_shares: list[tuple[float, ...]] = [()]
"""Relative frequencies of experts; uniform if empty, or if the number of experts differs."""


def choose(shares: Sequence[float]) -> None:
    """Set the relative frequencies with which routers choose experts; () is uniform."""
    _shares[:] = [tuple(shares)]


def may_be_known(shape: Iterable[int], dtype: torch.dtype) -> bool:
    """Whether a tensor of *shape* and *dtype* gets memory, so that its values can be known."""
    return dtype in KNOWN_TYPES and torch.Size(shape).numel() <= MOST_ELEMENTS


def own(tensor: torch.Tensor) -> None:
    """Record that *tensor* on npu has memory; its values are still unknown."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in _storages:
        weakref.finalize(storage, _storages.pop, key, None)
    _storages[key] = False


def is_backed(tensor: torch.Tensor) -> bool:
    """Whether *tensor* has memory."""
    return tensor.untyped_storage()._cdata in _storages


def learn(found: object) -> None:
    """Mark the values of all tensors in *found* that have memory as known."""
    _mark(found, True)


def forget(found: object) -> None:
    """Mark the values of all tensors in *found* as unknown."""
    _mark(found, False)


def _mark(found: object, is_known: bool) -> None:
    for leaf in tree_leaves(found):
        if isinstance(leaf, torch.Tensor) and leaf.is_npu:
            key = leaf.untyped_storage()._cdata
            if key in _storages:
                _storages[key] = is_known


def is_known(found: object) -> bool:
    """Whether *found* has npu tensors, and the values of all of them are known."""
    tensors = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.is_npu]
    return bool(tensors) and all(_storages.get(x.untyped_storage()._cdata, False) for x in tensors)


def chosen(shape: Sequence[int], experts: int) -> torch.Tensor | None:
    """The experts that a router chooses for each token, `(..., k)`; None if it is not a router.

    Experts are chosen in turn, with the given frequencies, and a token never gets one twice.
    """
    count, k = torch.Size(shape[:-1]).numel(), shape[-1]
    if not 0 < k <= experts <= MOST_EXPERTS:
        return None
    shares = _shares[0] if len(_shares[0]) == experts else (1.0,) * experts
    weights = np.array(shares) / sum(shares)
    taken, rows = np.zeros(experts), np.empty((count, k), np.int64)
    for row in range(count):
        # Choose the experts that are farthest below their share of the choices so far.
        behind = weights * (row + 1) * k - taken
        rows[row] = np.argsort(-behind, kind="stable")[:k]
        taken[rows[row]] += 1
    return torch.from_numpy(rows.reshape(tuple(shape)))
