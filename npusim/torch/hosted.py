"""torch_npu operators that torch computes on the host, each as one operation that is not timed."""

from __future__ import annotations

import torch

from npusim.ops import TorchFunction
from npusim.ops._torch import Gradient
from npusim.published import schemas
from npusim.torch.fallback import HostOp
from npusim.torch.gradients import autograd
from npusim.torch.host import GRADIENTS, OF_TORCH_NPU

__all__ = ["declared", "register"]


def declared() -> dict[str, TorchFunction]:
    """The functions of torch_npu that are defined here, by their names."""
    found = {}
    for schema in schemas():
        name = schema.partition("(")[0]
        if name in OF_TORCH_NPU:
            text = GRADIENTS.get(name)
            gradient = None if text is None else Gradient(text)
            found[name] = TorchFunction(
                schema=schema, aclnn=lambda _: "", outputs=lambda *_: (), gradient=gradient
            )
    return found


def register(library: torch.library.Library) -> None:
    """Define the operators; tensors without values use the same torch function."""
    for name, function in declared().items():
        library.define(function.schema)
        op = getattr(torch.ops.npu, name).default
        library.impl(name, HostOp(op, OF_TORCH_NPU[name]), "PrivateUse1")
        library.impl(name, OF_TORCH_NPU[name], "Meta")
        library.impl(name, autograd(function, op), "Autograd")
