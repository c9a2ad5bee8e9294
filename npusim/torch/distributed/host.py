"""A group with two backends, "cpu:gloo,npu:hccl": host tensors go through gloo, in zero time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from npusim.torch.distributed.group import HcclGroup

__all__ = ["HostToo"]

BY_GLOO = {
    **{name: name for name in ("allreduce", "allgather", "broadcast", "reduce", "gather")},
    **{name: name for name in ("scatter", "reduce_scatter", "alltoall", "send", "recv")},
    "recv_anysource": "recv_anysource",
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
}
"""Method of a group -> the method of gloo."""


class HostToo(HcclGroup):
    """A group that uses HCCL for tensors on the card, and gloo for those on the host."""

    def use(self, gloo: dist.ProcessGroupGloo) -> HostToo:
        """Use *gloo* for host tensors, if the script asks for that backend."""
        self._gloo = gloo
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        host = [torch.device("cpu")] if self._has_host() else []
        return [*host, *super()._device_types]

    def _has_host(self) -> bool:
        return "cpu:" in distributed_c10d._world.pg_backend_config.get(self, "")


def _either(name: str, by_gloo: str) -> Callable[..., object]:
    own = getattr(HcclGroup, name)

    def call(self: HostToo, *args: Any, **kwargs: Any) -> object:
        first = next(_tensors(args), None)
        if first is not None and not first.is_npu and self._has_host():
            return getattr(self._gloo, by_gloo)(*args, **kwargs)
        return own(self, *args, **kwargs)

    call.__doc__ = own.__doc__
    return call


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


for _name, _by_gloo in BY_GLOO.items():
    setattr(HostToo, _name, _either(_name, _by_gloo))
