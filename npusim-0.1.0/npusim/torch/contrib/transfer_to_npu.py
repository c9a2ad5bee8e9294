"""`torch_npu.contrib.transfer_to_npu`: scripts written for CUDA, on the card.

Importing it turns "cuda" into "npu" wherever a torch function is given it as a device, `.cuda()`
into `.npu()`, and `torch.cuda` into `torch.npu`. What `torch.npu` lacks of `torch.cuda` is refused
with a name that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from npusim.torch import amp, npu
from npusim.torch.graphs import NPUGraph

__all__: list[str] = []


def _on_npu(value: object) -> object:
    """*value* with npu in the place of cuda, if it names a device."""
    if isinstance(value, torch.device):
        return torch.device("npu", value.index) if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "npu" + value[len("cuda") :]
    return value


class _CudaIsNpu(TorchFunctionMode):
    """Devices of torch functions."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = {name: _on_npu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_on_npu, args), **named)


def _mapped(call: Callable[..., object]) -> Callable[..., object]:
    """*call*, which is no function of torch's dispatcher, with npu for cuda."""

    @functools.wraps(call)
    def mapped(*args: object, **kwargs: object) -> object:
        named = {name: _on_npu(value) for name, value in kwargs.items()}
        return call(*map(_on_npu, args), **named)

    return mapped


class _Cuda(ModuleType):
    """`torch.cuda` by the functions of `torch.npu`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(npu, _NAMES.get(name, name))
        return _mapped(found) if callable(found) and not isinstance(found, type) else found


_NAMES = {"DoubleTensor": "FloatTensor"}
"""Names of torch.cuda -> those of torch.npu (as the same module of torch_npu 2.14.0 has it)."""

_AUTOCAST = torch.amp.autocast_mode.autocast


def _install() -> None:
    cuda: Any = _Cuda("torch.cuda")
    cuda.CUDAGraph = NPUGraph
    cuda.amp = amp
    torch.cuda = cuda
    torch.Tensor.cuda = torch.Tensor.npu
    torch.nn.Module.cuda = torch.nn.Module.npu
    torch.Tensor.is_cuda = property(lambda tensor: tensor.is_npu)
    torch.Generator.__new__ = staticmethod(_mapped(torch.Generator.__new__))
    _AUTOCAST.__init__ = _mapped(_AUTOCAST.__init__)
    torch.load = _mapped(torch.load)
    torch.set_default_device = _mapped(torch.set_default_device)
    _CudaIsNpu().__enter__()


_install()
