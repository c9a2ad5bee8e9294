"""`torch.npu`, also `torch_npu.npu`: the interface of scripts to the card."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from npusim.published import names
from npusim.torch import (
    allocator,
    amp,
    card,
    generator,
    graphs,
    legacy_types,
    marks,
    numbering,
    settings,
    streams,
)
from npusim.torch.clock import clock
from npusim.torch.errors import device_number, invalid_device
from npusim.torch.generator import Generator
from npusim.torch.refusals import others_of
from npusim.torch.settings import HF32, Config
from npusim.torch.streams import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Event", "Generator", "Stream", "amp", "config", "device", "get_device_name"]


# ---- the device ----


@dataclass(frozen=True, slots=True)
class Properties:
    """The result of `get_device_properties`."""

    name: str
    total_memory: int
    """Bytes."""
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int
    """Bytes."""


class device:  # noqa: N801
    """`with torch.npu.device(0)`: there is one card, so nothing changes."""

    def __init__(self, device: object) -> None:
        self.idx = device_number(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """Do nothing: the card is already initialised."""


_lazy_init, _initialized = init, True
"""Names that torch's own modules expect of a backend."""


def _lazy_call(call: Callable[[], object], **_: object) -> None:
    """Call *call* at once, since the card is already initialised."""
    call()


def _is_in_bad_fork() -> bool:
    return False


def _get_device_index(
    device: object,
    optional: bool = False,  # noqa: ARG001
    allow_cpu: bool = False,  # noqa: ARG001
) -> int:
    return device_number(device)


def device_count() -> int:
    """The number of processes that torchrun has started, or 1."""
    return numbering.count()


def current_device() -> int:
    return numbering.current()


def set_device(device: object) -> None:
    """Set the number of the card of this process, below :func:`device_count`."""
    number = device if isinstance(device, int) else torch.device(device).index or 0
    if not -1 <= number < numbering.count():
        raise invalid_device(f"npu:{number}")
    if number >= 0:
        numbering.choose(number)


def get_device_name(device: object = None) -> str:
    """The name of the chip, for example Ascend910B2."""
    device_number(device)
    return card.name()


SOC_VERSIONS = {
    f"Ascend{name}": first + place
    for first, chips in (
        (200, "310P1 310P2 310P3 310P4 310P5 310P7"),
        (220, "910B1 910B2 910B2C 910B3 910B4 910B4-1"),
        (250, "910_9391 910_9392 910_9381 910_9382 910_9372 910_9362 910_9363"),
    )
    for place, name in enumerate(chips.split())
}
"""Chip -> its number (Ascend/pytorch@9e73e70, csrc/core/npu/NpuVariables.h, SocVersion)."""


def get_soc_version() -> int:
    """The number of the chip, or -1 if it has none."""
    return SOC_VERSIONS.get(card.name(), -1)


CANN_VERSION = "9.1.0"
"""The version of the sources on which the kernels are based (ops-nn@e5c3fa9 version.cmake)."""


def get_cann_version(module: str = "CANN") -> str:  # noqa: ARG001
    """The version of CANN, which is the same for all its modules."""
    return CANN_VERSION


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:  # noqa: ARG001
    """Whether CANN is of *version* or newer."""
    own, other = (
        tuple(int(part) for part in re.findall(r"\d+", each)[:3])
        for each in (CANN_VERSION, version)
    )
    return own >= other


def is_support_inf_nan() -> bool:
    """Whether overflows become infinite: not on Atlas inference products, which saturate."""
    return card.spec().series != "Atlas inference"


def get_device_properties(device: object = None) -> Properties:
    """The chip's name, memory and cores."""
    device_number(device)
    spec = card.spec()
    counts = {
        pipe: sum(core.count for core in spec.cores.values() if pipe in core.pipes)
        for pipe in ("cube", "vector")
    }
    return Properties(
        name=card.name(),
        total_memory=card.memory_bytes(),
        cube_core_num=counts["cube"],
        vector_core_num=counts["vector"],
        L2_cache_size=spec.l2.capacity_bytes,
    )


def synchronize(device: object = None) -> None:
    """Wait until the card has finished all its work."""
    device_number(device)
    clock.wait()


# ---- settings ----

config = Config()
matmul, conv = HF32(allow_hf32=False), HF32(allow_hf32=True)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Whether the cube supports bfloat16: not on Atlas inference products."""
    return card.spec().series != "Atlas inference"


@contextmanager
def device_of(tensor: torch.Tensor) -> Iterator[None]:  # noqa: ARG001
    """The device of *tensor*: there is one card, so nothing changes."""
    yield


def is_autocast_enabled() -> bool:
    return bool(torch.is_autocast_enabled("npu"))


def set_autocast_enabled(enable: bool) -> None:
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype("npu", dtype)


def can_device_access_peer(device: object, peer_device: object) -> bool:
    """Whether one card can access another's memory: there is only one."""
    device_number(device)
    device_number(peer_device)
    return False


def get_device_capability(device: object = None) -> None:
    """None, as on a card: capabilities are a concept of CUDA."""
    device_number(device)


PARTS = (allocator, generator, graphs, legacy_types, marks, settings, streams)
__getattr__ = others_of("torch_npu.npu", *PARTS)


def __dir__() -> list[str]:
    parts = (name for part in PARTS for name in part.__all__)
    return sorted({*globals(), *parts, *names()["torch_npu.npu"]})
