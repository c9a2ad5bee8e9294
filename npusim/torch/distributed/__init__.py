"""`torch.distributed` with the backend hccl, on simulated cards.

Each rank is a process with one card, as torchrun starts them::

    torchrun --nproc-per-node 2 -m npusim.torch script.py

Bytes pass between the processes by gloo, and with them simulated times. Ranks of one server are
those that LOCAL_WORLD_SIZE counts, or as many as the links of the chip join.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from npusim.torch.distributed.group import HcclGroup

__all__ = ["is_hccl_available", "register"]

BACKEND = "hccl"


def is_hccl_available() -> bool:
    """Whether there is the backend hccl."""
    return True


def register() -> None:
    """Let torch know the backend; called once by `install`."""
    if not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, _group, extended_api=True, devices=["npu"])
    dist.is_hccl_available = is_hccl_available


def _group(options: Any, _: object) -> HcclGroup:
    """The group that torch asks for."""
    from npusim.torch import card
    from npusim.torch.distributed.group import HcclGroup
    from npusim.torch.distributed.transport import Processes

    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    server_cards = int(text) if text.isdecimal() and int(text) else card.spec().links.cards
    transport = Processes(options.store, rank, size, options.timeout)
    return HcclGroup(transport, rank, ranks, str(options.group_id), server_cards)
