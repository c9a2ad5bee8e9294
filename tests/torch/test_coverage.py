"""Whatever torch's dispatcher hands to the card is timed, or reported as not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from dispatched import Dispatched
from simulated_card import torch

from npusim.torch.clock import clock


@pytest.fixture
def missing() -> Iterator[Counter[str]]:
    """What is not timed from here on."""
    before = Counter(clock.not_timed)
    clock.not_timed.clear()
    yield clock.not_timed
    clock.not_timed += before


def test_an_operation_that_nobody_thought_of_is_reported(missing: Counter[str]) -> None:
    library = torch.library.Library("nobody", "DEF")
    library.define("thought_of(Tensor x) -> Tensor")
    library.impl("thought_of", lambda x: x * 2 + 1, "CPU")
    x = torch.arange(6.0).npu()
    with Dispatched() as dispatched:
        found = torch.ops.nobody.thought_of(x)
    assert found.tolist() == [1, 3, 5, 7, 9, 11]
    assert dispatched.seen == {"nobody.thought_of.default"}
    assert missing == {"nobody.thought_of.default": 1}
    assert "lower bound: 1 x nobody.thought_of.default" in clock.summary()


def test_an_operation_made_of_others_is_listed_by_these(missing: Counter[str]) -> None:
    library = torch.library.Library("somebody", "DEF")
    library.define("made(Tensor x) -> Tensor")
    library.impl("made", lambda x: (x + 1).lgamma(), "CompositeImplicitAutograd")
    kernels = clock.kernels
    torch.ops.somebody.made(torch.arange(6.0).npu())
    assert clock.kernels == kernels + 1
    assert missing == {"aten.lgamma.default": 1}


def what_models_do(x: torch.Tensor) -> Any:
    """Of many kinds of operations a few; *x* is `(4, 6)` on npu."""
    steps = torch.arange(6, device="npu", dtype=torch.float32)
    mask = torch.ones(4, 6, device="npu").tril().bool() | torch.zeros(4, 6, device="npu").bool()
    angles = torch.outer(steps[:4], steps).sin() + steps.cos()
    hidden = x.masked_fill(~mask, 0.0).cumsum(-1) @ torch.randn(6, 6, device="npu")
    hidden = torch.nn.functional.layer_norm(hidden + angles, (6,)).pow(2).mean(-1, keepdim=True)
    best, order = (x - hidden).topk(2)
    picked = x.gather(1, order).scatter(1, order % 2, best)
    x[:, 1:3] = picked[:, :2]
    x[mask] = 7.0
    x += torch.full_like(x, 2).index_select(1, order[0].repeat(3))
    return x.softmax(-1).multinomial(1), x.flip(0).roll(1).sort().values, x.isnan().any(), x.std()


def test_what_models_do_is_timed_or_reported(missing: Counter[str]) -> None:
    with Dispatched() as dispatched:
        what_models_do(torch.rand(4, 6).npu())
    assert dispatched.uncounted == set()
    assert set(missing) == {"aten.multinomial.default", "aten.normal_.default"}


def test_nothing_to_do_is_no_kernel(missing: Counter[str]) -> None:
    empty = torch.rand(0, 3).npu()
    with Dispatched() as dispatched:
        _ = empty * 2, empty.erf(), torch.arange(0, device="npu"), empty.view(3, 0).detach()
    assert (missing, dispatched.uncounted) == (Counter(), set())
