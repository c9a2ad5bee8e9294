"""`torch.npu.npugraph_ex`: graph mode with graphs of `torch.npu`; here both run as one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npusim.torch.refusals import others_of
from npusim.torch.torchair import inference, scope
from npusim.torch.torchair.graph import get_npu_backend

__all__ = ["compile_fx", "inference", "scope"]


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[object] | None = None,
    options: dict[str, object] | None = None,  # noqa: ARG001
) -> Any:
    """Run *gm* as one launch. *options* are for features that are not simulated, without effect."""
    return get_npu_backend()(gm, example_inputs)


__getattr__ = others_of("torch_npu.npu.npugraph_ex")
