"""Shapes without values: the same kernels and times, no memory, and no value by accident."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated_card import torch, torch_npu

import npusim.torch
from npusim.run.memory_cache import forget
from npusim.torch import card
from npusim.torch.clock import clock
from npusim.torch.planning import PlanError
from npusim.torch.shapes import ShapesOnlyError

DEVICES = "Atlas 300I Pro", "Atlas A2", "Atlas A3"


@pytest.fixture
def _no_values() -> None:
    npusim.torch.install(values=False)


def what_a_model_does() -> Any:
    """A little of all that models do, on npu."""
    torch.manual_seed(0)
    table = torch.randn(32, 64).half().npu()
    tokens = torch.tensor([[3, 5, 7, 9]]).npu()
    x = torch.nn.functional.embedding(tokens, table)
    weight = torch.randn(64, 96).half().npu()
    y = (x @ weight).view(4, 96)
    heads = y.view(4, 3, 32).transpose(0, 1)
    scores = torch.softmax((heads @ heads.mT).float(), dim=-1).half()
    y = (scores @ heads).transpose(0, 1).reshape(4, 96)
    y += torch.nn.functional.silu(y) * 0.5
    rows, scale = torch_npu.npu_dynamic_quant(y)
    bytes_ = torch.randint(-8, 8, (64, 96), dtype=torch.int8).npu()
    cast = torch_npu.npu_format_cast(bytes_, 29).t()
    is_inference = torch.npu.get_device_name() == "Ascend310P3"
    options = {} if is_inference else {"pertoken_scale": scale}
    ones = torch.ones(64).npu()
    z = torch_npu.npu_quant_matmul(rows, cast, ones, output_dtype=torch.float16, **options)
    z[:, ::2].clamp_(min=0)
    best = z.cumsum(0).argmax(-1)
    return torch.cat([z, z.flip(0)]), best


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_launch_the_same_kernels_in_the_same_time(device: str) -> None:
    seen = []
    for values in True, False:
        npusim.torch.install(device, values=values)
        clock.not_timed.clear()
        before, kernels = clock.now_us, clock.kernels
        events = clock.record()
        out = what_a_model_does()
        clock.stop(events)
        names = [(event.name, event.time_us) for event in events]
        geometry = [(each.shape, each.stride(), each.dtype, each.device) for each in out]
        counted = clock.kernels - kernels, dict(clock.not_timed)
        seen.append((names, geometry, counted, round(clock.now_us - before, 6)))
    assert seen[0] == seen[1]


def launches_of(work: Callable[[], object]) -> list[tuple[str, float, float]]:
    """The kernels that *work* launches, with their times."""
    events = clock.record()
    try:
        work()
    finally:
        clock.stop(events)
    return [(event.name, event.time_us, event.launch_us) for event in events]


@pytest.mark.parametrize("device", DEVICES)
def test_launches_that_were_made_before_are_found_again(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    npusim.torch.install(device, values=False)
    forget()
    first = launches_of(what_a_model_does)
    with monkeypatch.context() as patch:
        patch.setattr(card, "simulate", None)
        assert launches_of(what_a_model_does) == first
    forget()
    assert launches_of(what_a_model_does) == first


def test_launches_that_differ_are_not_taken_for_each_other() -> None:
    npusim.torch.install("Atlas A2", values=False)
    x = torch.empty(64, 256, device="npu", dtype=torch.float16)
    rows, ones = torch.empty(64, 256, device="npu", dtype=torch.int8), torch.ones(256).npu()
    plain, other = (torch.empty(256, 256, device="npu", dtype=torch.int8) for _ in range(2))
    cast = torch_npu.npu_format_cast(other, 29)
    works: list[Callable[[], object]] = [
        *(lambda factor=factor: x * factor for factor in (2, True, 2.5, x, x[0])),
        lambda: x[:32] * 2,
        lambda: x.bfloat16() * 2,
        *(
            lambda weight=weight: torch_npu.npu_quant_matmul(
                rows, weight, ones, output_dtype=torch.float16
            )
            for weight in (plain, plain.t(), cast, cast.t())
        ),
    ]
    together = [launches_of(work) for work in (*works, *works)]
    alone = []
    for work in works:
        forget()
        alone.append(launches_of(work))
    assert together == alone + alone
    npusim.torch.install("Atlas 300I Pro", values=False)
    assert launches_of(works[0]) != alone[0]


@pytest.mark.usefixtures("_no_values")
def test_a_large_tensor_costs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = torch.empty(1 << 17, 1 << 16, device="npu", dtype=torch.bfloat16)
    y = x[:4096] @ torch.empty(1 << 16, 64, device="npu", dtype=torch.bfloat16)
    assert (y.shape, torch.npu.memory_allocated() > 1 << 34) == ((4096, 64), True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.usefixtures("_no_values")
def test_the_cards_memory_is_a_limit_all_the_same() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^NPU out of memory\. "):
        _ = [torch.empty(1 << 34, device="npu", dtype=torch.int8) for _ in range(5)]


def _line_of(error: pytest.ExceptionInfo[BaseException]) -> str:
    found = re.search(r" but does at (.*:\d+); run the script without", str(error.value))
    assert found is not None
    return found[1]


@pytest.mark.usefixtures("_no_values")
@pytest.mark.parametrize(
    ("needs", "what"),
    [
        (lambda x: x.sum().item(), "the number in a tensor"),
        (lambda x: bool((x > 0).any()), "the number in a tensor"),
        (lambda x: x.cpu(), "a copy to the host"),
        (lambda x: x.tolist(), "a copy to the host"),
        (lambda x: x[x > 0], "aten.index.Tensor"),
        (lambda x: x.nonzero(), "aten.nonzero.default"),
        (lambda x: torch.equal(x, x), "aten.equal.default"),
        (lambda x: torch.ones(4).copy_(x), "a copy to the host"),
    ],
)
def test_a_read_of_a_value_is_refused_with_its_line(needs: Any, what: str) -> None:
    with pytest.raises(ShapesOnlyError) as error:
        needs(torch.ones(4, device="npu"))
    line = needs.__code__.co_firstlineno
    assert _line_of(error) == f"{Path(__file__)}:{line}"
    assert str(error.value) == (
        f"npusim.torch: shapes alone are simulated, so that {what} must not need a value, but does "
        f"at {Path(__file__)}:{line}; run the script without --shapes, or make it decide by shapes"
    )


@pytest.mark.usefixtures("_no_values")
def test_a_tensor_prints_its_shape() -> None:
    x = torch.ones(2, 3, device="npu", dtype=torch.float16)
    assert repr(x) == "tensor(..., device='npu:0', size=(2, 3), dtype=torch.float16)"


@pytest.mark.usefixtures("_no_values")
def test_a_state_dict_is_taken_by_its_shapes() -> None:
    layer = torch.nn.Linear(4, 8, device="npu")
    layer.load_state_dict(torch.nn.Linear(4, 8).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict(torch.nn.Linear(4, 9).state_dict())


@pytest.mark.usefixtures("_no_values")
def test_no_address_space_is_reserved() -> None:
    npusim.torch.install(values=False, memory="2x64GiB")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 35, limits[1]))
    try:
        layers = [torch.empty(1 << 17, 1 << 17, device="npu", dtype=torch.bfloat16) for _ in "abc"]
        chosen = layers[0][torch.arange(8, device="npu")]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert (sum(each.nbytes for each in layers), chosen.shape) == (3 << 35, (8, 1 << 17))


def experts_of(tokens: int, experts: int, k: int) -> list[int]:
    """How many tokens a router gives each expert, as a model of experts finds out."""
    weights = torch.rand(tokens, experts, device="npu").softmax(-1)
    _, chosen = weights.topk(k, dim=-1)
    mask = torch.nn.functional.one_hot(chosen, experts).permute(2, 1, 0)
    hidden = torch.empty(tokens, 64, device="npu")
    found = [0] * experts
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        _, token = torch.where(mask[expert[0]])
        found[expert.item()] = len(hidden[token])
        hidden.index_add_(0, token, hidden[token])
    return found


def test_a_router_chooses_experts_as_a_distribution_says(tmp_path: Path) -> None:
    npusim.torch.install(values=False)
    assert experts_of(32, 8, 2) == [8] * 8
    (tmp_path / "experts.json").write_text("[3, 1, 1, 1]")
    npusim.torch.install(values=False, experts=tmp_path / "experts.json")
    assert experts_of(60, 4, 1) == [30, 10, 10, 10]
    assert experts_of(32, 8, 2) == [8] * 8
    npusim.torch.install(values=False)
    assert experts_of(60, 4, 1) == [15] * 4


@pytest.mark.usefixtures("_no_values")
def test_values_that_others_decide_stay_unknown() -> None:
    x, places = torch.rand(8, 4, device="npu"), torch.arange(4, device="npu")
    assert places.tolist() == [0, 1, 2, 3]
    places += 1
    assert (places * 2)[places > 2].tolist() == [6, 8]
    places.copy_(x[0])
    with pytest.raises(ShapesOnlyError):
        places.tolist()
    with pytest.raises(ShapesOnlyError):
        x.long().argmax(-1).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"memory": "much"},
            "npusim.torch: memory must be cards times GiB, not 'much'; write for example 8x64GiB",
        ),
        (
            {"experts": [0, -1]},
            "npusim.torch: experts must be a list of numbers from 0 on, one for each expert and "
            "one of them larger than 0, not [0, -1]; write for example [3, 1, 1, 1]",
        ),
        (
            {"memory": "8x64GiB", "values": True},
            "npusim.torch: memory and experts must come with shapes alone, not with values; pass "
            "values=False, or --shapes on the command line",
        ),
    ],
)
def test_a_plan_is_refused_that_cannot_be_read(options: Any, message: str) -> None:
    with pytest.raises(PlanError) as error:
        npusim.torch.install(**({"values": False} | options))
    assert str(error.value) == message


@pytest.mark.nightly
def test_the_launcher_takes_shapes(tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    script.write_text(
        "import torch, torch_npu\n"
        "x = torch.empty(4096, 512, dtype=torch.bfloat16, device='npu')\n"
        "y = x @ torch.empty(512, 2048, dtype=torch.bfloat16, device='npu')\n"
        "print(y)\n"
        "print(y[0, 0].item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "npusim.torch", "--shapes", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    shown = json.dumps([4096, 2048]).strip("[]")
    assert done.stdout == f"tensor(..., device='npu:0', size=({shown}), dtype=torch.bfloat16)\n"
    assert "1 of 1 kernel timed" in done.stderr
    assert f"but does at {script}:5; run the script without --shapes" in done.stderr
