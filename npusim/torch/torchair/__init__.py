"""`torchair`: graph mode, in which a compiled model is one launch."""

from __future__ import annotations

from npusim.torch.torchair import experimental
from npusim.torch.torchair.compiler_config import CompilerConfig
from npusim.torch.torchair.graph import get_npu_backend
from npusim.torch.torchair.log import logger

__all__ = ["CompilerConfig", "experimental", "get_npu_backend", "logger"]
