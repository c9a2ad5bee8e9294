"""What recipes draw with: choices, sizes, shapes and tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np
from described import Drawn

__all__ = ["DEVICES", "RECIPES", "Arguments", "Draw", "Recipe", "recipe"]

Arguments = dict[str, Any]
T = TypeVar("T")
DEVICES = ("ascend910b2", "ascend910_9391", "ascend310p3")
LARGER = 6
"""How many times longer a dimension may be where only times are asked for."""
MOST_ELEMENTS = 1 << 16
"""Of a tensor that has values."""


class Draw:
    """A source of random arguments for one call."""

    def __init__(
        self, rng: np.random.Generator, number: int, device: str, only_times: bool
    ) -> None:
        self.rng = rng
        self.number = number
        """Which call of its operator this is."""
        self.device = device
        self.only_times = only_times
        """Whether tensors are given without values."""

    @property
    def is_old(self) -> bool:
        """Whether the chip is of Atlas inference."""
        return self.device == "ascend310p3"

    def chance(self, share: float) -> bool:
        """True in a *share* of all cases."""
        return bool(self.rng.random() < share)

    def pick(self, *options: T) -> T:
        """One of *options*."""
        return options[int(self.rng.integers(len(options)))]

    def in_turn(self, *options: T) -> T:
        """One of *options* after the other, from call to call, two calls each."""
        return options[self.number // 2 % len(options)]

    def integer(self, low: int, high: int) -> int:
        """From *low* to *high*, both included."""
        return int(self.rng.integers(low, high, endpoint=True))

    def real(self, low: float, high: float) -> float:
        """From *low* to *high*, in few digits."""
        return round(float(self.rng.uniform(low, high)), 3)

    def seed(self) -> int:
        """The seed of a tensor's values."""
        return self.integer(0, 2**32 - 1)

    def half(self) -> str:
        """A type of 16 bits that the chip has."""
        return "float16" if self.is_old else self.pick("float16", "bfloat16")

    def floating(self) -> str:
        """A float type that the chip has."""
        return self.pick("float16", "float32") if self.is_old else self.pick(
            "float16", "bfloat16", "float32"
        )  # fmt: skip

    def size(self, most: int = 200) -> int:
        """Small, a multiple of 16 or 32, or anything up to *most*, which is more for times."""
        most *= LARGER if self.only_times else 1
        match self.integer(0, 4):
            case 0:
                return self.integer(1, min(20, most))
            case 1:
                return 16 * self.integer(1, max(1, most // 16))
            case 2:
                return 32 * self.integer(1, max(1, most // 32))
            case _:
                return self.integer(1, most)

    def multiple(self, step: int, most: int) -> int:
        """A multiple of *step* up to *most*, which is more for times."""
        most *= LARGER if self.only_times else 1
        return step * self.integer(1, max(1, most // step))

    def shape(self, least: int = 1, most: int = 4, columns: int = 200) -> tuple[int, ...]:
        """Of *least* to *most* dimensions: the last one and another are longer than the others."""
        count = self.integer(least, most)
        shape = [self.integer(1, 3) for _ in range(count)]
        shape[self.integer(0, count - 1)] = self.size(90)
        shape[-1] = self.size(columns)
        while prod(shape) > MOST_ELEMENTS * (40 if self.only_times else 1):
            largest = shape.index(max(shape))
            shape[largest] = -(-shape[largest] // 2)
        return tuple(shape)

    def batch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The batches of two matrices, mostly none."""
        if self.chance(0.5):
            return (), ()
        return self.pick(
            ((2,), (2,)), ((3, 1), (2,)), ((2,), ()), ((), (3,)), ((1, 2), (2, 1)), ((2, 1), (2, 1))
        )  # fmt: skip

    def tensor(self, shape: tuple[int, ...], dtype: str, how: str = "normal", **more: Any) -> Drawn:
        """A tensor of random values, or its shape alone where only times are asked for."""
        if self.only_times:
            own = {name: more[name] for name in ("layout", "transposed") if name in more}
            return Drawn(shape, dtype, how="spec", **own)
        return self.known(shape, dtype, how, **more)

    def known(self, shape: tuple[int, ...], dtype: str, how: str = "normal", **more: Any) -> Drawn:
        """A tensor of random values in any case, since the kernel depends on them."""
        return Drawn(shape, dtype, how=how, seed=self.seed(), **more)

    def numbers(self, shape: tuple[int, ...], dtype: str, spread: float = 40) -> Drawn:
        """Floats, some of which are special in a quarter of the cases."""
        how = self.pick("normal", "normal", "special", "rows")
        return self.tensor(shape, dtype, how, high=spread)

    def integers(
        self, shape: tuple[int, ...], dtype: str = "int8", low: int = -128, high: int = 128,
        **more: Any,
    ) -> Drawn:  # fmt: skip
        """Integers of a range; all of int8 by default."""
        return self.tensor(shape, dtype, "integers", low=low, high=high, **more)

    def words(self, shape: tuple[int, ...], **more: Any) -> Drawn:
        """int32 that hold eight int4 each."""
        return self.integers(shape, "int32", -(2**31), 2**31, **more)

    def packed(
        self, shape: tuple[int, ...], *, to_int8: bool = False, high: float = 0.01, dtype: str = ""
    ) -> Drawn:
        """Words of npu_trans_quant_param, which have an offset too if they are *to_int8*."""
        kind = dtype or self.pick("uint64", "int64")
        return self.tensor(shape, kind, "packed", low=int(to_int8), high=high)

    def positive(self, shape: tuple[int, ...], dtype: str, high: float = 0.02) -> Drawn:
        """Scales around *high*, mostly above 0."""
        return self.tensor(shape, dtype, low=high, high=high / 3)

    def listed(self, values: Any, dtype: str = "int64") -> Drawn:
        """A tensor of these integers, one by one."""
        array = np.asarray(values)
        flat = tuple(int(value) for value in array.reshape(-1))
        return Drawn(array.shape, dtype, how="listed", listed=flat)

    def counts(self, total: int, groups: int) -> Any:
        """How many of *total* rows fall to each group."""
        cuts = np.sort(self.rng.integers(0, total, groups - 1, endpoint=True))
        return np.diff(np.array([0, *cuts, total]))


Recipe = Callable[[Draw], Arguments]
RECIPES: dict[str, Recipe] = {}
"""Operator -> what draws arguments that it takes, on most chips and in most cases."""


def recipe(*operators: str) -> Callable[[Recipe], Recipe]:
    """Make a function the recipe of *operators*."""

    def register(draw: Recipe) -> Recipe:
        RECIPES.update(dict.fromkeys(operators, draw))
        return draw

    return register
