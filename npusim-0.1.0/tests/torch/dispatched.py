"""What torch's dispatcher hands to the card, held against what the clock counts.

Torch itself reports each operation, so that one which nobody thought of is among them.
"""

from __future__ import annotations

from typing import Any

from simulated_card import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npusim.torch.clock import clock

__all__ = ["Dispatched"]

FREE = {
    "aten::empty": "it allocates",
    "aten::empty_like": "it allocates",
    "aten::empty_permuted": "it allocates",
    "aten::empty_strided": "it allocates",
    "aten::new_empty": "it allocates",
    "aten::new_empty_strided": "it allocates",
    "aten::resize_": "it allocates",
    "aten::resize_as_": "it allocates",
    "aten::set_": "it changes what a tensor looks at",
    "aten::_unsafe_view": "it looks at the same memory",
    "aten::_reshape_alias": "it looks at the same memory",
    "aten::squeeze_": "it looks at the same memory",
    "aten::t_": "it looks at the same memory",
    "aten::transpose_": "it looks at the same memory",
    "aten::unsafe_split": "it looks at the same memory",
    "aten::unsafe_split_with_sizes": "it looks at the same memory",
    "aten::unsqueeze_": "it looks at the same memory",
    "aten::lift_fresh": "it looks at the same memory",
    "aten::record_stream": "it says who uses the memory",
}
"""Operations that move nothing on the card -> why."""


class Dispatched(TorchDispatchMode):
    """Collects what writes elements on npu and is neither timed nor reported as not timed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.uncounted: set[str] = set()

    def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = clock.kernels + sum(clock.not_timed.values())
        found = op(*args, **(kwargs or {}))
        is_counted = clock.kernels + sum(clock.not_timed.values()) > before
        if not is_counted and self._writes(op, (args, kwargs), found):
            self.uncounted.add(str(op))
        self.seen.add(str(op))
        return found

    def _writes(self, op: Any, given: Any, found: Any) -> bool:
        """Whether *op* leaves new elements on the card, from what is there or from nothing."""
        schema = op._schema
        is_view = any(out.alias_info and not out.alias_info.is_write for out in schema.returns)
        if is_view or schema.name in FREE:
            return False
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        if any(not tensor.is_npu and tensor.dim() for tensor in tensors):
            # From the host: a transfer.
            return False
        outputs = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        return any(out.is_npu and out.numel() for out in outputs)
