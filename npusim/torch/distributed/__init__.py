"""`torch.distributed` with the backend hccl, on simulated cards; also `torch_npu.distributed`.

Each rank is a process with one card, as torchrun starts them::

    torchrun --nproc-per-node 2 -m npusim.torch script.py

The processes exchange bytes and simulated times through gloo. Ranks can also be threads of one
process, as in a notebook or a test::

    def step(rank):
        torch.distributed.init_process_group("hccl")
        ...

    npusim.torch.distributed.run(step, ranks=4)

The number of ranks in a server is LOCAL_WORLD_SIZE, or the number of chips that the links connect.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from npusim.torch.refusals import others_of

if TYPE_CHECKING:
    from npusim.torch.distributed.group import HcclGroup

__all__ = ["is_hccl_available", "register", "run"]

BACKEND = "hccl"


def is_hccl_available() -> bool:
    """Whether the backend hccl is available."""
    return True


def register() -> None:
    """Register the backend in torch; called once by `install`."""
    if not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, group, extended_api=True, devices=["npu"])
    dist.is_hccl_available = is_hccl_available


def run(function: Callable[..., object], ranks: int, *args: object) -> list[object]:
    """Call *function* with the rank and *args* on each of *ranks* cards, and return the results.

    The ranks are threads that run in turn, each with a clock that starts at 0; groups must have the
    backend hccl. Raises ValueError for a number of ranks that the links do not connect, and
    re-raises the error of the first rank that fails.
    """
    from npusim import collectives
    from npusim.torch import card
    from npusim.torch.distributed.ranks import running, threads

    if running() is not None:
        raise RuntimeError(
            "npusim.torch.distributed: run must be called outside of the ranks of another run, not "
            "within one; call it before or after"
        )
    collectives.estimate("all_reduce", 0, ranks, card.spec())
    return threads(function, ranks, args)


def group(options: Any, _: object) -> HcclGroup:
    """Create the group for torch."""
    from npusim.torch import card
    from npusim.torch.distributed.group import HcclGroup
    from npusim.torch.distributed.host import HostToo
    from npusim.torch.distributed.ranks import Threads, running
    from npusim.torch.distributed.transport import Processes

    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    server_cards = int(text) if text.isdecimal() and int(text) else card.spec().links.cards
    name = str(options.group_id)
    if (turns := running()) is not None:
        threads = Threads(turns, (name, *ranks), rank, size)
        return HcclGroup(threads, rank, ranks, name, server_cards)
    processes = Processes(options.store, rank, size, options.timeout)
    return HostToo(processes, rank, ranks, name, server_cards).use(processes.gloo)


__getattr__ = others_of("torch_npu.distributed")
