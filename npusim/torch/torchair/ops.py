"""`torchair.ops`: functions that graphs can call in addition to the operators of torch_npu."""

from __future__ import annotations

from typing import Any

from npusim.torch.operator_names import named
from npusim.torch.refusals import refusal

__all__ = ["npu_create_tagged_event", "npu_print"]


def npu_print(*args: object, summarize_size: int = 3, tensor_detail: bool = False) -> None:  # noqa: ARG001
    """Print *args*; for tensors, their values."""
    print(*args)


npu_create_tagged_event = refusal("torchair.ops", "npu_create_tagged_event")


def __getattr__(name: str) -> Any:
    """An operator of torch_npu under its second name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return named(name)
