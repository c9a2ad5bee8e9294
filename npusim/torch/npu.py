"""`torch.npu`, also `torch_npu.npu`: the card as scripts ask for it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npusim.torch import amp, card, streams
from npusim.torch.errors import invalid_device
from npusim.torch.memory import memory
from npusim.torch.streams import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Event", "Generator", "Stream", "amp", "config", "device", "get_device_name", "stream"]

stream = streams.StreamContext


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """The type of a class that torch's own generators are instances of, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """Random numbers for the card: those of the CPU, of the same seed."""

    def __new__(cls, device: Any = "cpu") -> Any:
        on_host = torch.device(device).type == "npu"
        return super().__new__(cls, "cpu" if on_host else device)


# ---- the device ----


@dataclass(frozen=True, slots=True)
class Properties:
    """What `get_device_properties` returns."""

    name: str
    total_memory: int
    """Bytes."""
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int
    """Bytes."""


class device:  # noqa: N801
    """`with torch.npu.device(0)`: there is one card, so nothing changes."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing is left to do."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """One card."""
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    """Choose the one card there is."""
    _index(device)


def get_device_name(device: Any = None) -> str:
    """The name of the chip, for example Ascend910B2."""
    _index(device)
    return card.name()


def get_device_properties(device: Any = None) -> Properties:
    """The chip's name, memory and cores."""
    _index(device)
    spec = card.spec()
    counts = {
        pipe: sum(core.count for core in spec.cores.values() if pipe in core.pipes)
        for pipe in ("cube", "vector")
    }
    return Properties(
        name=card.name(),
        total_memory=spec.gm.capacity_bytes,
        cube_core_num=counts["cube"],
        vector_core_num=counts["vector"],
        L2_cache_size=spec.l2.capacity_bytes,
    )


def synchronize(device: Any = None) -> None:
    """Wait for the card; every kernel has ended when its call returns."""
    _index(device)


def current_stream(device: Any = None) -> Stream:
    _index(device)
    return streams.current_stream()


def default_stream(device: Any = None) -> Stream:
    _index(device)
    return streams.default_stream()


def set_stream(stream: Stream) -> None:
    """Make *stream* the current one."""
    streams.set_current(stream)


# ---- memory, in bytes ----


def memory_allocated(device: Any = None) -> int:
    """What living tensors take, in the allocator's blocks."""
    _index(device)
    return memory.allocated_bytes


def max_memory_allocated(device: Any = None) -> int:
    """The most that was allocated at a time."""
    _index(device)
    return memory.peak_bytes


def memory_reserved(device: Any = None) -> int:
    """As allocated: nothing is kept for later use."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    """As allocated: nothing is kept for later use."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Count the peak from now on."""
    _index(device)
    memory.peak_bytes = memory.allocated_bytes


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free bytes, and all bytes."""
    total = get_device_properties(device).total_memory
    return total - memory.allocated_bytes, total


def empty_cache() -> None:
    """Nothing is kept for later use."""


# ---- random numbers ----


def manual_seed(seed: int) -> None:
    """Seed the generator, which the card shares with the CPU."""
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """`torch.manual_seed` calls this after it has seeded the CPU."""


def seed() -> None:
    """Seed the generator with a number from the system."""
    torch.default_generator.seed()


def initial_seed() -> int:
    return int(torch.default_generator.initial_seed())


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """The state of the generator, a CPU tensor of bytes."""
    _index(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    _index(device)
    torch.set_rng_state(new_state)


# ---- settings ----


@dataclass(slots=True)
class Config:
    """`torch.npu.config`."""

    allow_internal_format: bool = True
    """Accepted either way: a weight lies in FRACTAL_NZ where a script casts it, nowhere else."""


config = Config()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Whether the cube takes bfloat16: not on Atlas inference products."""
    return card.spec().series != "Atlas inference"


def set_compile_mode(jit_compile: bool = False) -> None:
    """Accepted: here no kernel is ever compiled."""


@contextmanager
def device_of(tensor: torch.Tensor) -> Iterator[None]:  # noqa: ARG001
    """The device of *tensor*: there is one card, so nothing changes."""
    yield


def _index(device: Any) -> int:
    """The number of *device*: None, a number, or what `torch.device` takes. Only 0 exists."""
    if device is None:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1):
        raise invalid_device(f"npu:{index}")
    return 0


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'torch.npu' has no attribute {name!r}\nnpusim.torch: torch.npu.{name} must be "
        "modelled, but is not; do without it"
    )
