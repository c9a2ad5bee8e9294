"""Sparse tensors on npu: indices and values are on the card, and the host computes with them.

torch makes them for sparse gradients. Queries, and access to the parts, use torch's code for CPU
tensors, which does not read the memory. All other operations run on the same tensor on the host,
and count as not timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.errors import not_modelled
from npusim.torch.relabel import to_host, to_npu

__all__ = ["register"]

KEY = "SparsePrivateUse1"
_libraries: list[torch.library.Library] = []
"""Registrations live as long as their library."""

_OF_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
PARTS = (
    *("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
    *("sparse_dim", "dense_dim", "_dimI", "_dimV", "_nnz", "is_coalesced", "_coalesced_"),
    *("_indices", "_values", "indices", "values"),
)
"""Operations that make a sparse tensor from its parts, or access them."""


def register() -> None:
    """Register the operations on sparse npu tensors in torch."""
    everything, parts = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _libraries.extend((everything, parts))
    everything.fallback(_fallback, KEY)
    for name in PARTS:
        redispatch = getattr(torch.ops.aten, name).default.redispatch
        parts.impl(name, partial(redispatch, _OF_HOST), KEY)


def _fallback(op: Any, *args: object, **kwargs: object) -> object:
    """Run *op* on the host; at least one of its tensors is sparse and on npu."""
    written = zip(op._schema.arguments, args, strict=False)
    if not card.computes_values() or any(each.is_write and _is_sparse(x) for each, x in written):
        raise not_modelled(str(op), "write to a sparse tensor, nor need its shape alone")
    given: dict[int, torch.Tensor] = {}

    def down(value: object) -> object:
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == "npu" else value
        if not isinstance(value, torch.Tensor) or not value.is_npu:
            return value
        low = _lowered(value) if _is_sparse(value) else to_host(value)
        given[id(low)] = value
        return low

    def up(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in given:
            return given[id(value)]
        return _raised(value) if value.layout is torch.sparse_coo else to_npu(value)

    low, named = tree_map(down, (list(args), kwargs))
    try:
        result = op(*low, **named)
    except NotImplementedError as error:
        if not str(error).startswith("Could not run"):
            raise
        raise not_modelled(
            str(op), "take a sparse tensor, since that of the CPU does not"
        ) from None
    found = tree_map(up, result)
    clock.host(str(op), True)
    return found


def _is_sparse(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def _lowered(x: torch.Tensor) -> torch.Tensor:
    """The sparse npu tensor *x* on the host, over the same memory."""
    return torch.sparse_coo_tensor(
        to_host(x._indices()),
        to_host(x._values()),
        x.shape,
        is_coalesced=x.is_coalesced(),
        check_invariants=False,
    )


def _raised(x: torch.Tensor) -> torch.Tensor:
    """The sparse host tensor *x* on npu, over the same memory."""
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        x.sparse_dim(), x.dense_dim(), x.shape, to_npu(x._indices()), to_npu(x._values()),
        dtype=x.dtype, layout=torch.sparse_coo, device=torch.device("npu"),
        is_coalesced=x.is_coalesced(),
    )  # fmt: skip
