"""Operations whose values come from the host: the kernels that a card launches, and their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import torch

import npusim.torch
from npusim.torch.clock import Event, clock

LENGTHS = (1, 7, 1000, 151_936, 262_144)


@pytest.fixture(autouse=True)
def _on_a2() -> None:
    npusim.torch.install("Atlas A2")


def launched(call: Callable[[], Any]) -> tuple[Any, list[Event]]:
    events = clock.record()
    try:
        return call(), [event for event in events if event.is_kernel]
    finally:
        clock.stop(events)


X = torch.arange(24.0).view(4, 6)
INDEX = torch.tensor([[0, 2], [1, 1], [3, 5], [4, 0]])
CASES: list[tuple[Callable[..., Any], list[str]]] = [
    (lambda x, _: x.cos(), ["Cos"]),
    (lambda _, i: i + 1, ["Add"]),
    (lambda _, i: i == 1, ["Equal"]),
    (lambda x, i: x[i[:, 0] % 4], ["FloorMod", "narrow", "IndexCheck", "Index"]),
    (lambda x, _: x[x > 3], ["gt", "NonZero", "IndexCheck", "Index"]),
    (lambda x, _: (x > 3).nonzero(), ["gt", "NonZero"]),
    (lambda x, i: x.index_put((i[0],), x[:2]), ["clone", "IndexPutV2"]),
    (lambda x, i: x.index_add(0, i[0], x[:2]), ["TensorMove", "InplaceScatterAdd"]),
    (
        lambda x, i: x.half().index_add(0, i[0], x[:2].half()),
        ["cast", "cast", "TensorMove", "Cast", "Sort", "InplaceIndexAddWithSorted"],
    ),
    (lambda x, i: x.gather(1, i), ["Cast", "GatherElementsV2"]),
    (lambda x, i: x.scatter(1, i, 9.0), ["TensorMove", "ScatterElementsV2"]),
    (lambda x, _: x.topk(2), ["TopKV2", "Cast"]),
    (lambda x, _: x.sort(0), ["Transpose", "Sort", "Cast", "Transpose", "Transpose"]),
    (lambda x, _: x.cumsum(0), ["Cumsum"]),
    (lambda x, _: x.var(0), ["ReduceMean", "Expand", "ReduceStdV2Update"]),
    (lambda x, _: x.std(), ["ReduceMean", "Expand", "ReduceStdWithMean"]),
    (lambda x, _: torch.div(x, 4, rounding_mode="trunc"), ["RealDiv", "Trunc"]),
    (lambda x, _: torch.div(x, 4, rounding_mode="floor"), ["FloorDiv"]),
    (lambda x, _: x.max(1), ["ArgMaxWithValue", "Cast"]),
    (lambda _, i: i.int().histc(4, 0, 3), ["Cast", "HistogramV2", "Cast"]),
    (lambda _, i: torch.nn.functional.one_hot(i, 6), ["ZerosLike", "ScatterElementsV2"]),
    (lambda _, __: torch.arange(9, device="npu"), ["Range"]),
    (
        lambda x, _: torch.nn.functional.layer_norm(x, (6,), x[0], x[1]),
        ["LayerNormV3"],
    ),
    (
        lambda x, _: torch.nn.functional.conv1d(x[None], x[None, :, :3]),
        ["narrow", "TransData", "TransData", "Conv2D", "TransData"],
    ),
]


@pytest.mark.parametrize(("call", "kernels"), CASES)
def test_an_operation_is_the_kernels_of_a_card(call: Any, kernels: list[str]) -> None:
    x, index = X.npu(), INDEX.npu()
    found, events = launched(lambda: call(x, index))
    names = [event.name for event in events]
    assert names == kernels or sorted(names) == sorted(kernels)
    assert all(event.time_us > 0 for event in events)
    if all(event.name != "HistogramV2" for event in events) and kernels != ["Range"]:
        of_npu = found if isinstance(found, tuple) else (found,)
        expected = call(X, INDEX)
        of_cpu = expected if isinstance(expected, tuple) else (expected,)
        for own, theirs in zip(of_npu, of_cpu, strict=True):
            torch.testing.assert_close(own.cpu(), theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "width", "kernels"),
    [
        (torch.float32, 8, ["Cast", "EmbeddingDenseGradV2"]),
        (torch.bfloat16, 8, ["Cast", "Cast", "EmbeddingDenseGradV2", "Cast"]),
        (torch.float32, 520, ["Cast", "Sort", "ZerosLike", "EmbeddingDenseGradV2"]),
    ],
)
def test_rows_of_a_gradient_are_added_to_a_table(dtype: Any, width: int, kernels: Any) -> None:
    grad = torch.ones(6, width, dtype=dtype, device="npu")
    places = torch.tensor([0, 2, 2, 1, 0, 2]).npu()
    found, events = launched(
        lambda: torch.ops.aten.embedding_dense_backward(grad, places, 4, -1, False)
    )
    assert [event.name for event in events] == kernels
    assert found[:, 0].tolist() == [2, 1, 3, 0]


def test_whole_numbers_are_counted() -> None:
    found = torch.tensor([0, 1, 1, 3], dtype=torch.int32).npu().histc(4, 0, 3)
    assert (found.dtype, found.tolist()) == (torch.int32, [1, 2, 0, 1])


def test_a_longer_tensor_takes_longer() -> None:
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: x.cos(),
        lambda x: x.sort(),
        lambda x: x.topk(1),
        lambda x: x.cumsum(0),
        lambda x: x.prod(),
        lambda x: x.bool().nonzero(),
        lambda x: x[x.int().long()],
    ]
    for call in calls:
        times = []
        for length in LENGTHS:
            x = torch.zeros(length, device="npu")
            _, events = launched(lambda call=call, x=x: call(x))
            times.append(sum(event.time_us for event in events))
        assert times == sorted(times)
        assert times[-1] > times[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_groups_of_rows_are_one_grouped_product(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(8, 32).to(dtype), torch.randn(3, 32, 16).to(dtype)
    ends = torch.tensor([2, 2, 8], dtype=torch.int32)
    expected = torch.cat([x[:2].float() @ weight[0].float(), x[2:].float() @ weight[2].float()])
    for own in (weight, weight.mT.contiguous().mT):
        given = x.npu(), own.npu(), ends.npu()
        found, events = launched(
            lambda given=given: torch.nn.functional.grouped_mm(given[0], given[1], offs=given[2])
        )
        assert [event.name for event in events] == ["Cast", "npu_grouped_matmul"]
        torch.testing.assert_close(found.cpu().float(), expected, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("implementation", [None, "eager", "batched_mm"])
def test_a_model_of_experts_runs_as_it_stands(implementation: str | None) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if implementation is not None:
        model.set_experts_implementation(implementation)
    words = torch.randint(3, 64, (2, 5))
    with torch.no_grad():
        expected = model(words).logits.float()
        model.npu()
        found, events = launched(lambda: model(words.npu()).logits)
    torch.testing.assert_close(found.cpu().float(), expected, rtol=0, atol=0.05)
    not_timed = {event.name for event in events if not event.is_simulated}
    assert not_timed <= {"aten.sort.stable", "aten.nonzero.default"}
    products = [event.name for event in events if event.name == "npu_grouped_matmul"]
    assert len(products) == (2 if implementation is None else 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_layer_norm_has_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((4, 64), (64,), (64,)))
    grads = []
    for move in (lambda each: each.double(), lambda each: each.npu()):
        given = [move(each).requires_grad_() for each in (x, weight, bias)]
        found = torch.nn.functional.layer_norm(given[0], (64,), *given[1:])
        found.backward(torch.ones_like(found))
        grads.append([found, *(each.grad for each in given)])
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for exact, own in zip(*grads, strict=True):
        assert own.dtype == dtype
        torch.testing.assert_close(own.cpu().double(), exact, rtol=tolerance, atol=tolerance)


def test_a_call_that_was_made_before_takes_views_as_they_lie() -> None:
    x = torch.arange(64.0).view(8, 8).npu()
    for part in (x, x.t(), x[:, :4], x[:, 4:], x[2:], x[::2], x.view(2, 4, 8)[:, 1:3, :4]):
        for _ in range(2):
            assert torch.equal((part * 2).cpu(), part.cpu() * 2)
            assert torch.equal(part.contiguous().cpu(), part.cpu().contiguous())
            assert torch.equal((part > 8).cpu(), part.cpu() > 8)
            assert torch.equal(part.sum(-1, keepdim=True).cpu(), part.cpu().sum(-1, keepdim=True))
    for _ in range(3):
        assert ((x.sum() * 2).shape, (x.sum() > 1).shape) == ((), ())
    x += 1
    assert torch.equal((x[:, :4] * 2).cpu(), x.cpu()[:, :4] * 2)


def of_lists(call: Callable[..., Any]) -> list[str]:
    """The kernels of *call* of three lists of tensors."""
    lists = [[torch.rand(5, 7).npu() for _ in range(4)] for _ in range(3)]
    _, events = launched(lambda: call(*lists))
    return [event.name for event in events]


def test_a_kernel_takes_a_list_of_tensors() -> None:
    ops = torch.ops.aten
    for call, kernel in (
        (lambda x, y, _: ops._foreach_add(x, y, alpha=2), "ForeachAddList"),
        (lambda x, _, __: ops._foreach_mul_(x, 0.9), "ForeachMulScalar"),
        (lambda x, _, __: ops._foreach_div_(x, [1.0, 2.0, 3.0, 4.0]), "ForeachDivScalarList"),
        (lambda x, y, z: ops._foreach_addcmul_(x, y, z, 0.1), "ForeachAddcmulList"),
        (lambda x, _, __: ops._foreach_sqrt(x), "ForeachSqrt"),
        (lambda x, y, _: ops._foreach_lerp_(x, y, 0.1), "ForeachLerpList"),
        (lambda x, _, __: ops._foreach_norm(x, 2), "ForeachNorm"),
    ):
        assert of_lists(call) == [kernel]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.optim.AdamW(x, foreach=True),
        lambda x: torch.optim.AdamW(x, fused=True),
        lambda x: torch.optim.AdamW(x, foreach=False),
        lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9),
    ],
    ids=["foreach", "fused", "one by one", "sgd"],
)
def test_a_training_step_is_timed_whole(make: Callable[..., Any]) -> None:
    torch.manual_seed(1)
    table, norm = torch.nn.Embedding(20, 32), torch.nn.LayerNorm(32)
    model = torch.nn.Sequential(table, norm, torch.nn.Linear(32, 20)).npu()
    optimizer, tokens = make(model.parameters()), torch.arange(12).view(2, 6).npu() % 5
    losses, missing = [], clock.not_timed.total()
    for _ in range(3):
        scores = torch.softmax(model(tokens) / 2, -1) + model(tokens)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert clock.not_timed.total() == missing
    assert losses == sorted(losses, reverse=True)


def test_an_optimizer_takes_more_time_the_more_there_is() -> None:
    def time_us(size: int) -> float:
        x = torch.zeros(size).npu().requires_grad_()
        x.grad = torch.ones(size).npu()
        optimizer = torch.optim.AdamW([x], fused=True)
        _, events = launched(optimizer.step)
        (event,) = [each for each in events if each.name == "ApplyAdamWV2"]
        return event.time_us

    assert time_us(1000) < time_us(1_000_000) < time_us(4_000_000) / 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [20, 100, 1000])
def test_rows_of_half_types_need_not_fill_the_buffer(columns: int, dtype: Any) -> None:
    x = torch.randn(70, columns).to(dtype).npu().requires_grad_()
    weight = torch.ones(columns).to(dtype).npu()

    def step() -> None:
        y = torch.softmax(x, -1)
        torch.nn.functional.layer_norm(y, (columns,), weight, weight).sum().backward()

    _, events = launched(step)
    names = [event.name for event in events]
    assert {"LayerNormV3", "LayerNormGradV3", "SoftmaxGrad"} <= set(names)


def test_a_long_tensor_is_sorted_along_its_first_axis() -> None:
    x = torch.randn(2, 289600).half()
    on_card = x.npu()
    (values, _), events = launched(lambda: on_card.sort(0))
    kernels = [event.name for event in events]
    assert kernels == ["Transpose", "Sort", "Cast", "Transpose", "Transpose"]
    assert torch.equal(values.cpu(), x.sort(0).values)
