"""Calls that are made again give the bits, shapes, kernels and times of a first call."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import torch

import npusim.torch
from npusim.torch import repeats
from npusim.torch.clock import clock

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
DTYPES = (*FLOATS, torch.int32, torch.int64, torch.bool)
DRAWS = 10
"""Calls of each operation."""
NOT_REPEATED = ("argmax", "embedding", "index_select", "_grouped_mm")
"""Those that need more than views and kernels, or whose times depend on values."""


def values(draw: random.Random, generator: Any, shape: tuple[int, ...]) -> Any:
    """Numbers of a type, with zeros of both signs, infinities and NaN among those of floats."""
    dtype = draw.choice(DTYPES if draw.random() < 0.3 else FLOATS)
    drawn = torch.randn(shape, generator=generator) * 4
    if dtype == torch.bool:
        return drawn > 0
    if dtype in FLOATS and draw.random() < 0.3:
        odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
        drawn = torch.where(drawn > 3, odd[torch.randint(5, shape, generator=generator)], drawn)
    return drawn.to(dtype)


def view(draw: random.Random, x: Any) -> Any:
    """A view of *x* with two axes."""
    rows, columns = x.shape
    found: Any = draw.choice(
        [
            lambda: x,
            lambda: x.t(),
            lambda: x[:, columns // 2 :],
            lambda: x[:, : columns // 2],
            lambda: x[1:],
            lambda: x[::2],
            lambda: x[: rows - 1, 1:].t(),
            lambda: x[0],
            lambda: x[0, 0],
            lambda: x[:1].expand(rows, columns),
        ]
    )()
    return found


def one(draw: random.Random, generator: Any) -> list[Any]:
    """A tensor, or a view of it."""
    return [view(draw, values(draw, generator, (4, 16)).npu())]


def two(draw: random.Random, generator: Any) -> list[Any]:
    """Two tensors, which may share memory or be one, or a tensor and a number."""
    whole = values(draw, generator, (4, 16)).npu()
    x = view(draw, whole)
    kind = draw.randrange(6)
    if kind == 0:
        return [x, x]
    if kind == 1:
        return [x, draw.choice([2, 0.5, -0.0, 0.0, 1, 1.0, True])]
    if kind == 2:
        return [x, whole.view(-1)[3:4]]
    if kind == 3:
        return [x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]] if x.dim() else [x, x]
    other = view(draw, values(draw, generator, (4, 16)).npu())
    return [x, other if other.shape == x.shape else x.clone()]


def matrices(draw: random.Random, generator: Any) -> list[Any]:
    """Two matrices that can be multiplied, turned or cut, and one that may be added."""
    dtype = draw.choice(FLOATS)
    made = []
    for rows, columns in ((3, 16), (16, 8)):
        x = torch.randn(rows, columns + 4, generator=generator).to(dtype).npu()[:, :columns]
        turned = torch.randn(columns, rows, generator=generator).to(dtype).npu().t()
        made.append(draw.choice([x.contiguous(), x, turned]))
    shape = draw.choice([(8,), (3, 8), (1, 8)])
    return [torch.randn(shape, generator=generator).to(dtype).npu(), *made]


def rows(draw: random.Random, generator: Any) -> list[Any]:
    """A table, and which of its rows are asked for."""
    table = values(draw, generator, (12, 16)).npu()
    return [table, torch.randint(12, (5,), generator=generator).npu()]


def groups(draw: random.Random, generator: Any) -> list[Any]:
    """Rows, the matrices of groups, and where groups end."""
    dtype = draw.choice(FLOATS[:2])
    rows, weights = ((torch.randn(shape, generator=generator).to(dtype).npu())
                     for shape in ((9, 16), (3, 16, 16)))  # fmt: skip
    ends = torch.randint(10, (3,), generator=generator, dtype=torch.int32).sort().values
    ends[-1] = 9
    return [rows, weights, ends.npu()]


CALLS: dict[str, tuple[Callable[..., list[Any]], Callable[..., Any]]] = {
    "neg": (one, lambda x: -x),
    "exp": (one, torch.exp),
    "sum": (one, lambda x: x.sum(-1)),
    "softmax": (one, lambda x: x.softmax(-1)),
    "amax": (one, lambda x: x.amax(0)),
    "argmax": (one, lambda x: x.argmax(-1)),
    "clone": (one, torch.clone),
    "contiguous": (one, lambda x: x.contiguous()),
    "float": (one, lambda x: x.float()),
    "half": (one, lambda x: x.half()),
    "logical_not": (one, lambda x: ~(x > 0)),
    "fill": (one, lambda x: x.clone().fill_(2)),
    "add": (two, lambda x, y: x + y),
    "alpha": (two, lambda x, y: torch.add(x, y, alpha=2)),
    "mul": (two, lambda x, y: x * y),
    "div": (two, lambda x, y: x / y),
    "gt": (two, lambda x, y: x > y),
    "where": (two, lambda x, y: torch.where(x > 0, x, y)),
    "cat": (two, lambda x, y: torch.cat([x, y if isinstance(y, torch.Tensor) else x], -1)),
    "in place": (two, lambda x, y: x.clone().mul_(y)),
    "embedding": (rows, lambda x, places: torch.nn.functional.embedding(places, x)),
    "index_select": (rows, lambda x, places: x.index_select(0, places)),
    "_grouped_mm": (groups, lambda x, weight, ends: torch._grouped_mm(x, weight, offs=ends)),
    "mm": (matrices, lambda _, a, b: a @ b),
    "addmm": (matrices, torch.addmm),
    "baddbmm": (matrices, lambda x, a, b: torch.baddbmm(x[None], a[None], b[None], beta=0.5)),
}


def outcome(call: Callable[..., Any], given: list[Any]) -> tuple[Any, ...]:
    """What *call* gives: bits and how they lie, or an error; and what the card did for it."""
    events = clock.record()
    try:
        found = call(*given)
    except RuntimeError as error:
        return (type(error), str(error).partition("\n")[0])
    finally:
        clock.stop(events)
    host = found.cpu()
    bits = host.contiguous().view(torch.uint8) if host.dim() else host[None].view(torch.uint8)
    return (
        *(found.dtype, found.shape, found.stride(), bits.tolist()),
        [(event.name, event.time_us, event.is_kernel) for event in events],
    )


@pytest.mark.parametrize("name", CALLS)
def test_calls_again_equal_first_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, call = CALLS[name]
    again = []
    launch = repeats._Repeat.launch

    def seen(repeat: Any, given: Any) -> Any:
        again.append(repeat)
        return launch(repeat, given)

    monkeypatch.setattr(repeats._Repeat, "launch", seen)
    for seed in range(DRAWS):
        npusim.torch.install(device="ascend910b2")
        # The same views of other values.
        found = [
            outcome(call, make(random.Random(seed), torch.Generator().manual_seed(number)))
            for number in (1, 2)
        ]
        npusim.torch.install(device="ascend910b2")
        first = outcome(call, make(random.Random(seed), torch.Generator().manual_seed(2)))
        assert found[1] == first, seed
    assert bool(again) == (name not in NOT_REPEATED)
