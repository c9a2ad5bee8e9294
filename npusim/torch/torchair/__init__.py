"""`torchair`: graph mode, in which a compiled model runs with one launch."""

from __future__ import annotations

from npusim.torch.refusals import others_of
from npusim.torch.torchair import experimental, inference, ops, scope
from npusim.torch.torchair.compiler_config import CompilerConfig
from npusim.torch.torchair.graph import get_npu_backend
from npusim.torch.torchair.internal_format import use_internal_format_weight
from npusim.torch.torchair.log import logger

__all__ = [
    "CompilerConfig",
    "experimental",
    "get_npu_backend",
    "inference",
    "logger",
    "ops",
    "scope",
    "use_internal_format_weight",
]

__getattr__ = others_of("torchair")
