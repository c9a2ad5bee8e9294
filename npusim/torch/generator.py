"""Random numbers of the card: those of torch's generator for the CPU, of the same seed."""

from __future__ import annotations

import torch

from npusim.torch.errors import device_number

__all__ = [
    "Generator",
    "_get_generator",
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "next_offset",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """The type of a class that torch's own generators are instances of, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """A generator for the card."""

    def __new__(cls, device: object = "cpu") -> torch.Generator:
        on_host = torch.device(device).type == "npu"
        return super().__new__(cls, "cpu" if on_host else device)


default_generators = (torch.default_generator,)
"""Those of all cards, of which there is one."""


def _get_generator(device: object) -> torch.Generator:
    device_number(device)
    return default_generators[0]


OFFSET_STEP = 10
"""What an operator that draws moves the generator on by (op-plugin, FlashAttention's)."""
_offsets = [0]
"""How far it has been moved on since it was seeded."""


def manual_seed(seed: int) -> None:
    """Seed the generator, which the card shares with the CPU."""
    torch.default_generator.manual_seed(int(seed))
    _offsets[0] = 0


def manual_seed_all(seed: int) -> None:  # noqa: ARG001
    """`torch.manual_seed` calls this after it has seeded the CPU."""
    _offsets[0] = 0


def next_offset() -> int:
    """Where the generator stands for an operator that draws; it moves on."""
    _offsets[0] += OFFSET_STEP
    return _offsets[0] - OFFSET_STEP


def seed() -> None:
    """Seed the generator with a number from the system."""
    torch.default_generator.seed()


def initial_seed() -> int:
    return int(torch.default_generator.initial_seed())


def get_rng_state(device: object = "npu") -> torch.Tensor:
    """The state of the generator, a CPU tensor of bytes."""
    device_number(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: object = "npu") -> None:
    device_number(device)
    torch.set_rng_state(new_state)


def seed_all() -> None:
    """Seed the generator with a number from the system."""
    seed()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all cards' generators, of which there is one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for number, state in enumerate(new_states):
        set_rng_state(state, number)
