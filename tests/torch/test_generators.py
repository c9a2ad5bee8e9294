"""Random numbers of the card: seeds, offsets and states, apart from the CPU's, and in graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulated_card import torch, torch_npu

from npusim.data.errors import OpError

Draw = Callable[[], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "rand": lambda: torch.rand(8, device="npu"),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(64, device="npu"), 0.5),
    "randperm": lambda: torch.randperm(64, device="npu"),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_state_brings_back_what_is_drawn_next(draw: Draw) -> None:
    torch.npu.manual_seed(5)
    draw()
    state = torch.npu.get_rng_state()
    first, second = draw(), draw()

    assert (state.numel(), state.dtype) == (16, torch.uint8)
    assert not torch.equal(first, second)
    torch.npu.set_rng_state(state)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)


def test_the_card_and_the_cpu_draw_apart() -> None:
    torch.manual_seed(5)
    on_cpu, on_card = (torch.rand(4, device=device) for device in ("cpu", "npu"))
    next_on_cpu, next_on_card = (torch.rand(4, device=device) for device in ("cpu", "npu"))
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4, device="npu"), on_card)
    assert torch.equal(torch.rand(4, device="npu"), next_on_card)
    assert torch.equal(torch.rand(4), on_cpu)
    torch.npu.manual_seed(6)
    assert torch.npu.initial_seed() == 6
    assert torch.equal(torch.rand(4), next_on_cpu)
    assert torch.initial_seed() == 5


def test_a_generator_of_the_card_has_a_seed_and_an_offset() -> None:
    own = torch.Generator(device="npu").manual_seed(3)
    assert (own.device, own.initial_seed(), own.get_offset()) == (torch.device("npu:0"), 3, 0)
    torch.rand(4, device="npu", generator=own)
    assert own.get_offset() == 12
    after = own.clone_state()
    drawn = torch.randn(4, device="npu", generator=own)
    assert torch.equal(torch.randn(4, device="npu", generator=after), drawn)
    own.set_offset(0)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="npu", generator=own).cpu(), torch.rand(4))


def test_a_generator_of_the_cpu_draws_nothing_on_the_card() -> None:
    message = (
        "^Expected a 'npu' device type for generator but found 'cpu'\n"
        "torch.Generator: what is drawn on npu must come of a generator of npu, not of the CPU; "
        r'make it with torch.Generator\(device="npu"\)$'
    )
    with pytest.raises(RuntimeError, match=message):
        torch.rand(4, device="npu", generator=torch.Generator())


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(
        RuntimeError,
        match="^RNG state is wrong size\ntorch.Generator: a state of the card's must be 16 bytes "
        r"on the CPU, not 5056 of torch.uint8 on cpu; take one of get_state\(\)$",
    ):
        torch.npu.set_rng_state(torch.get_rng_state())
    with pytest.raises(
        RuntimeError,
        match="^offset must be a multiple of 4\ntorch.Generator: an offset must be a multiple of "
        r"4, not 6; take one of get_offset\(\)$",
    ):
        torch.Generator(device="npu").set_offset(6)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_replay_draws_anew_as_without_a_graph(draw: Draw) -> None:
    torch.npu.manual_seed(5)
    want = [draw() for _ in range(5)]
    torch.npu.manual_seed(5)
    captured = torch.npu.NPUGraph()
    with torch.npu.graph(captured):
        first, second = draw(), draw()

    for place in (0, 2):
        captured.replay()
        assert torch.equal(first, want[place])
        assert torch.equal(second, want[place + 1])
    assert torch.equal(draw(), want[4])


def test_a_state_that_is_set_in_a_capture_is_set_by_each_replay() -> None:
    torch.npu.manual_seed(5)
    before, twice, after = (torch.rand(4, device="npu") for _ in range(3))
    torch.npu.manual_seed(5)
    captured = torch.npu.NPUGraph()
    with torch.npu.graph(captured):
        state = torch.npu.get_rng_state()
        first = torch.rand(4, device="npu")
        torch.npu.set_rng_state(state)
        again = torch.rand(4, device="npu")
    for want in (before, twice):
        captured.replay()
        assert torch.equal(first, want)
        assert torch.equal(again, want)
    assert torch.equal(torch.rand(4, device="npu"), after)


def test_another_seed_in_a_capture_is_refused() -> None:
    torch.npu.manual_seed(0)
    message = (
        r"^NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed "
        "is the same as the original seed.\ntorch.npu.graph: the seed must stay 0 in a capture, "
        "not become 1; seed the generator before it$"
    )
    with pytest.raises(RuntimeError, match=message), torch.npu.graph(torch.npu.NPUGraph()):
        torch.npu.manual_seed(1)


def test_a_captured_attention_drops_other_weights_in_each_replay() -> None:
    q, dy = (torch.rand(1, 2, 16, 16, device="npu").half() for _ in range(2))

    def both() -> tuple[torch.Tensor, ...]:
        y, largest, total, _, *place = torch_npu.npu_fusion_attention_v3(
            q, q, q, 2, "BNSD", keep_prob=0.5
        )
        gradients = torch_npu.npu_fusion_attention_grad_v3(
            q, q, q, dy, 2, "BNSD", softmax_max=largest, softmax_sum=total, attention_in=y,
            keep_prob=0.5, seed=place[0], offset=place[1],
        )  # fmt: skip
        return y, *gradients[:3]

    torch.npu.manual_seed(3)
    eager = [both(), both()]
    assert not torch.equal(eager[0][0], eager[1][0])
    captured = torch.npu.NPUGraph()
    with torch.npu.graph(captured):
        found = both()
    torch.npu.manual_seed(3)
    for wanted in eager:
        captured.replay()
        assert all(map(torch.equal, found, wanted))


def test_a_captured_attention_of_other_versions_drops_nothing() -> None:
    q = torch.ones(1, 1, 16, 16, dtype=torch.float16, device="npu", requires_grad=True)
    message = (
        "^npu_fusion_attention: keep_prob must be 1 while a graph is captured, but is less; call "
        r"npu_fusion_attention_v3 and npu_fusion_attention_grad_v3 \[361001\]$"
    )
    with pytest.raises(OpError, match=message), torch.npu.graph(torch.npu.NPUGraph()):
        torch_npu.npu_fusion_attention(q, q, q, 1, "BNSD", keep_prob=0.5)
    with pytest.raises(OpError, match=message), torch.npu.graph(torch.npu.NPUGraph()):
        torch_npu.npu_fusion_attention_v3(q, q, q, 1, "BNSD", keep_prob=0.5)[0].sum().backward()
