"""`torch_npu._C._distributed_c10d`: the process group by its name in C++."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from torch._C._distributed_c10d import Backend

from npusim.torch import distributed
from npusim.torch.refusals import others_of

__all__ = ["ProcessGroupHCCL"]

_TIMEOUT = timedelta(minutes=30)
"""Assumed."""


class ProcessGroupHCCL:
    """A group of the ranks that share *store*; constructing it returns the group that
    `init_process_group` would."""

    class Options(Backend.Options):
        """The options of a group; none of them changes a simulated time."""

        def __init__(self) -> None:
            super().__init__(distributed.BACKEND, _TIMEOUT)
            self.op_timeout = _TIMEOUT
            self.is_high_priority_stream = False
            self.global_ranks_in_group: list[int] = []
            self.hccl_config: dict[str, object] = {}
            self.group_id = ""

    def __new__(cls, store: object, rank: int, size: int, options: Any = None) -> Any:
        """The group, in which this process is *rank* of *size*."""
        given = options or cls.Options()
        asked = SimpleNamespace(
            store=store,
            group_rank=rank,
            group_size=size,
            global_ranks_in_group=given.global_ranks_in_group,
            group_id=given.group_id,
            timeout=given._timeout,
        )
        return distributed.group(asked, given)


__getattr__ = others_of("torch_npu._C._distributed_c10d")
