"""Ascend C kernels on npu tensors, for custom operators inside a model."""

from __future__ import annotations

import torch

from npusim.ascendc import AscendCError, SourceLaunch
from npusim.torch import card
from npusim.torch.formats import ND
from npusim.torch.relabel import overwrite, to_host, to_npu
from npusim.torch.values import argument, result

__all__ = ["launch"]


def launch(kernel: SourceLaunch, *args: object) -> None:
    """Run *kernel* on the card. *args* are those of the C++ function; pointers are npu tensors or
    lists of them.

    Tensors that it stores to are written in place. Advances the clock. Raises AscendCError.
    """
    names = [each.name for each in kernel.parameters]
    if len(args) != len(names):
        raise AscendCError(
            f"{kernel.name}: a launch must have the arguments {', '.join(names)}, not {len(args)} "
            f"of them; pass each"
        )
    tensors: dict[str, torch.Tensor] = {}

    def on_host(name: str, value: object) -> object:
        if isinstance(value, list | tuple):
            return [on_host(f"{name}[{number}]", each) for number, each in enumerate(value)]
        if not isinstance(value, torch.Tensor):
            return value
        if value.device.type != "npu":
            raise AscendCError(
                f"{kernel.name}: {name} must lie on the npu, not on the {value.device.type}; move "
                f"it with .npu()"
            )
        tensors[name] = value
        return argument(kernel.name, name, to_host(value), ND)

    given = {name: on_host(name, value) for name, value in zip(names, args, strict=True)}
    run = card.run(kernel, **given)
    for name, found in run.outputs.items():
        overwrite(tensors[name], to_npu(result(found)))
