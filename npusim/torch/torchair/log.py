"""`torchair.core.utils`: the logger, whose level scripts set."""

from __future__ import annotations

import logging

__all__ = ["logger"]

logger = logging.getLogger("torchair")
