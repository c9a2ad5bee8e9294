"""Random numbers of the card: a seed, and an offset that each random operation advances.

As with the card's Philox generator, seed and offset determine the numbers (Ascend/pytorch@9e73e70,
NPUGeneratorImpl.cpp). The numbers themselves come from torch's generator for the CPU: the first
ones after a seed are the same as on the CPU. The states of both generators are separate.

During capture of a graph, offsets count from 0; a replay adds the current offset of the generator.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch

from npusim.torch import numbering
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
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

OFFSET_STEP = 12
"""How far a random operation advances the offset: op-plugin asks for 10
(LEGACY_RAND_COUNTER_OFFSET), and the generator rounds that up to a multiple of 4."""
MULTIPLE = 4
"""Offsets are multiples of this."""
DEFAULT_SEED = 67280421310721
"""Seed of a generator that has not been seeded (default_rng_seed_val of torch)."""
WORDS = 8
"""Bytes of the seed in a state, and of the offset that follows it."""


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    """A metaclass by which torch's own generators count as instances of the class, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_AnyGenerator):
    """`torch.Generator`, which returns a generator of the card for an npu device."""

    def __new__(cls, device: object = "cpu") -> Any:
        if torch.device(device).type != "npu":
            return super().__new__(cls, device)
        device_number(device)
        return CardGenerator()


class CardGenerator(torch._C.Generator):
    """A generator of the card. Operations on the host use it as a CPU generator, which is reseeded
    before each of them."""

    def __new__(cls) -> CardGenerator:
        own: CardGenerator = super().__new__(cls, "cpu")
        return own

    def __init__(self) -> None:
        self._seed, self._offset, self._base = DEFAULT_SEED, 0, 0
        _of_card[self._cdata] = self

    @property
    def device(self) -> torch.device:
        return torch.device("npu", numbering.current())

    def initial_seed(self) -> int:
        return self._seed

    def manual_seed(self, seed: int) -> CardGenerator:
        seed = int(seed) % 2**64
        self._enter_capture()
        if _captures and seed != self._seed:
            raise RuntimeError(
                "NPUGeneratorImpl::set_current_seed can be called during stream capture only if "
                "new seed is the same as the original seed.\n"
                f"torch.npu.graph: the seed must stay {self._seed} in a capture, not become "
                f"{seed}; seed the generator before it"
            )
        self._seed = seed
        if not _captures:
            self._offset = 0
        return self

    def seed(self) -> int:
        """Seed it with a random number from the operating system."""
        return self.manual_seed(secrets.randbits(63)).initial_seed()

    def get_offset(self) -> int:
        self._enter_capture()
        return self._offset - self._base

    def set_offset(self, offset: int) -> None:
        """Set the offset; if this is captured, each replay of the graph sets it again."""
        if offset % MULTIPLE:
            raise RuntimeError(
                f"offset must be a multiple of {MULTIPLE}\n"
                f"torch.Generator: an offset must be a multiple of {MULTIPLE}, not {offset}; "
                "take one of get_offset()"
            )
        self._enter_capture()
        self._offset = self._base + offset
        if _captures:
            _captures[-1].note("set_offset", lambda: self.set_offset(offset))

    def get_state(self) -> torch.Tensor:
        """Seed and offset, as bytes on the CPU."""
        both = self._seed.to_bytes(WORDS, "little") + self.get_offset().to_bytes(WORDS, "little")
        return torch.tensor([*both], dtype=torch.uint8, device="cpu")

    def set_state(self, state: torch.Tensor) -> CardGenerator:
        is_state = state.dtype == torch.uint8 and state.is_cpu
        if not is_state or state.numel() not in (WORDS, 2 * WORDS):
            raise RuntimeError(
                "RNG state is wrong size\n"
                f"torch.Generator: a state of the card's must be {2 * WORDS} bytes on the CPU, not "
                f"{state.numel()} of {state.dtype} on {state.device.type}; take one of get_state()"
            )
        both = bytes(state.tolist())
        self.manual_seed(int.from_bytes(both[:WORDS], "little"))
        self.set_offset(int.from_bytes(both[WORDS:], "little"))
        return self

    def clone_state(self) -> CardGenerator:
        return CardGenerator().set_state(self.get_state())

    def next_place(self) -> tuple[int, int]:
        """Seed and offset for a random operation; advances the offset."""
        self._enter_capture()
        self._offset += OFFSET_STEP
        return self._seed, self._offset - OFFSET_STEP

    def replaying(self) -> None:
        """Begin a replay: captured offsets count from the current one."""
        self._base = self._offset

    def replayed(self) -> None:
        """End a replay."""
        self._base = 0

    def captured(self, offset: int) -> None:
        """End a capture, which consumes no random numbers: restore *offset*."""
        self._offset = offset

    def _enter_capture(self) -> None:
        if _captures and self not in _captures[-1].offsets:
            _captures[-1].offsets[self] = self._offset
            self._offset = 0


_of_card: WeakValueDictionary[int, CardGenerator] = WeakValueDictionary()
"""Address of the C++ generator -> the generator of the card. torch's calls pass on another Python
object for the same C++ generator."""


class Capture:
    """The generators that a graph draws from during its capture."""

    def __init__(self, note: Callable[[str, Callable[[], object]], None]) -> None:
        self.note = note
        """Records a call, which each replay of the graph repeats."""
        self.offsets: dict[CardGenerator, int] = {}
        """Generator -> its offset before the capture."""

    def begin(self) -> None:
        _captures.append(self)

    def end(self) -> None:
        _captures.remove(self)
        for own, offset in self.offsets.items():
            own.captured(offset)


_captures: list[Capture] = []
"""The capture under way, if there is one."""


def is_captured() -> bool:
    """Whether a capture is under way."""
    return bool(_captures)


@contextlib.contextmanager
def replay(generators: Iterable[CardGenerator]) -> Iterator[None]:
    """Replay a graph that draws from *generators*: new numbers, from their current offsets."""
    for own in generators:
        own.replaying()
    try:
        yield
    finally:
        for own in generators:
            own.replayed()


def place(seed: int, offset: int) -> int:
    """The seed of the CPU generator that produces the numbers at *offset*."""
    return (seed + offset * 0x9E3779B1) % 2**63


default_generators = (CardGenerator(),)
"""The default generator of each card; there is one card."""


def normal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`normal_`, also for integers, which the CPU does not support: float32 draws, truncated."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.normal_(*args, **kwargs)
    drawn = torch.empty(tensor.shape, dtype=torch.float32).normal_(*args, **kwargs)
    return tensor.copy_(drawn)


def drawing(op: torch._ops.OpOverload, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap *run* of *op* on the host: if the operation is random, it draws from the card's
    generator."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return run

    def draw(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch._C.Generator)]
        own = _of_card.get(given[0]._cdata) if given else default_generators[0]
        if own is None:
            raise RuntimeError(
                "Expected a 'npu' device type for generator but found 'cpu'\n"
                "torch.Generator: what is drawn on npu must come of a generator of npu, not of the "
                'CPU; make it with torch.Generator(device="npu")'
            )
        # Without a generator, a host operation uses the CPU's default one: restore its state after.
        drawn: torch._C.Generator = own if given else torch.default_generator
        before = drawn.get_state() if not given else None
        torch._C.Generator.manual_seed(drawn, place(*own.next_place()))
        try:
            return run(*args, **kwargs)
        finally:
            if before is not None:
                drawn.set_state(before)

    return draw


# ---- functions of torch.npu ----


def _get_generator(device: object) -> CardGenerator:
    device_number(device)
    return default_generators[0]


def manual_seed(seed: int) -> None:
    """Seed the generator of the card."""
    default_generators[0].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards; `torch.manual_seed` calls this after it seeds the CPU."""
    manual_seed(seed)


def seed() -> None:
    """Seed the generator with a random number from the operating system."""
    default_generators[0].seed()


def initial_seed() -> int:
    return default_generators[0].initial_seed()


def get_rng_state(device: object = "npu") -> torch.Tensor:
    """The state of the generator, a CPU tensor of bytes."""
    return _get_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: object = "npu") -> None:
    _get_generator(device).set_state(new_state)


def seed_all() -> None:
    """Seed the generators of all cards with a random number from the operating system."""
    seed()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of the generators of all cards; there is one card."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for number, state in enumerate(new_states):
        set_rng_state(state, number)
