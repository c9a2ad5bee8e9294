"""`torch.npu.FloatTensor` and similar types: older names for tensors of one dtype on the card."""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}

__all__ = [f"{name}Tensor" for name in _DTYPES]


class _LegacyType(type):
    """A metaclass by which all npu tensors of one dtype count as instances of the class."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_npu and (instance.dtype == cls.dtype)
        )

    def __call__(cls, *args: object) -> torch.Tensor:
        """Make a tensor: empty, of a shape given as integers, or from a list of values."""
        if len(args) == 1 and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device="npu")
        return torch.empty(args or (0,), dtype=cls.dtype, device="npu")


def __getattr__(name: str) -> Any:
    dtype = _DTYPES.get(name.removesuffix("Tensor"))
    if dtype is None or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _LegacyType(name, (), {"dtype": dtype, "__module__": "torch.npu"})
    return found
