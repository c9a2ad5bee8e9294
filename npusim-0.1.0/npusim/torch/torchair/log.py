"""`torchair.core.utils`: the logger that scripts set the level of."""

from __future__ import annotations

import logging

__all__ = ["logger"]

logger = logging.getLogger("torchair")
