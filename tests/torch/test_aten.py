"""Operations of torch itself that run as kernels of the card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated_card import recorded, torch, torch_npu

import npusim
from npusim.torch.clock import clock

ROW = [-2.0, -0.5, 0.25, 3.0]


def numbers(dtype: Any = torch.float16) -> Any:
    return torch.tensor([ROW, ROW[::-1]], dtype=dtype).npu()


def launched(call: Any) -> tuple[Any, int]:
    """What *call* gives, and how many kernels it launched."""
    before = clock.launches
    return call(), clock.launches - before


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "add": (lambda x: x + x, ("x", "x")),
    "sub": (lambda x: x - 1, ("x", 1)),
    "mul": (lambda x: 3 * x, ("x", 3)),
    "div": (lambda x: x / 3, ("x", 3)),
    "maximum": (lambda x: torch.maximum(x, x), ("x", "x")),
    "neg": (lambda x: -x, ("x",)),
    "abs": (lambda x: x.abs(), ("x",)),
    "exp": (lambda x: x.exp(), ("x",)),
    "sigmoid": (torch.sigmoid, ("x",)),
    "silu": (lambda x: torch.nn.functional.silu(x), ("x",)),
    "gelu": (lambda x: torch.nn.functional.gelu(x), ("x",)),
    "relu": (torch.relu, ("x",)),
    "softmax": (lambda x: x.softmax(-1), ("x",)),
    "log_softmax": (lambda x: x.log_softmax(1), ("x",)),
    "sum": (lambda x: x.sum(-1), ("x",)),
    "mean": (lambda x: x.mean(dim=1), ("x",)),
    "amax": (lambda x: x.amax(-1), ("x",)),
    "clone": (lambda x: x.clone(), ("x",)),
    "clamp": (lambda x: x.clamp(-1, 2.5), ("x", -1, 2.5)),
    "gt": (lambda x: x > 0.25, ("x", 0.25)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_is_one_kernel_with_its_bits(name: str) -> None:
    call, args = CALLS[name]
    x = numbers()
    found, launches = launched(lambda: call(x))
    assert launches == 1
    assert found.is_npu
    given = (x.cpu().numpy() if arg == "x" else arg for arg in args)
    expected = np.asarray(npusim.run(name, *given, device="ascend910b2", timing=False).output)
    np.testing.assert_array_equal(found.cpu().numpy(), expected.astype(found.cpu().numpy().dtype))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_by_tanh_whatever_it_is_asked_for(approximate: str) -> None:
    x = torch.linspace(-4, 4, 65)
    gelu = torch.nn.functional.gelu
    found, launches = launched(lambda: gelu(x.npu(), approximate=approximate))
    assert launches == 1
    torch.testing.assert_close(found.cpu(), gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)


def test_a_call_that_was_made_before_has_its_own_values_and_the_same_time() -> None:
    x, y = numbers(), numbers().exp()
    before = clock.now_us
    first = x * y
    took = clock.now_us - before
    for a, b in ((x, x), (y, x), (x, 2.0), (x, -0.0), (x, 0.0)):
        before = clock.now_us
        found, launches = launched(lambda a=a, b=b: a * b)
        assert launches == 1
        if b is x:
            assert clock.now_us - before == pytest.approx(took)
        other = b if isinstance(b, float) else b.cpu().numpy()
        expected = npusim.run("mul", a.cpu().numpy(), other, device="ascend910b2", timing=False)
        assert found.cpu().numpy().tobytes() == np.asarray(expected.output).tobytes()
    np.testing.assert_array_equal(first.cpu().numpy(), (x * y).cpu().numpy())


def test_sums_and_the_largest_are_along_any_axis() -> None:
    x = numbers()
    for call in (lambda: x.sum(0), lambda: x.amax(0)):
        found, launches = launched(call)
        assert launches == 1
        assert found.shape == x.shape[1:]
    found, launches = launched(lambda: x.softmax(0))
    assert launches == 1
    expected = npusim.run("softmax", x.cpu().numpy(), 0, device="ascend910b2", timing=False).output
    np.testing.assert_array_equal(found.cpu().numpy(), np.asarray(expected))


def test_an_axis_that_is_summed_may_stay() -> None:
    x = torch.tensor([ROW, ROW[::-1]])
    for call in (
        lambda x: x.sum(-1, keepdim=True),
        lambda x: x.mean([0], keepdim=True),
        lambda x: x.amax(1, keepdim=True),
    ):
        found, launches = launched(lambda: call(x.npu()))  # noqa: B023
        assert launches == 1
        assert torch.equal(found.cpu(), call(x))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_tensors_are_joined_by_a_kernel(dim: int) -> None:
    x = torch.arange(64.0).view(2, 32)
    for parts in (x, x[:, :32]), (x, x, x), (x.bool(), x > 9), (x.half(), x, x.int()):
        found, names = recorded(lambda parts=parts: torch.cat([part.npu() for part in parts], dim))
        casts = ["cast"] * (2 if parts[0].dtype == torch.half else 0)
        assert names == [*casts, "concat"]
        assert torch.equal(found.cpu(), torch.cat(parts, dim))


def test_empty_tensors_are_left_out_of_what_is_joined() -> None:
    x, empty = torch.arange(8.0).view(2, 4).npu(), torch.empty(0).npu()
    for parts, kernel in (((empty, x), "clone"), ((x, empty, x, x[:0]), "concat")):
        found, names = recorded(lambda parts=parts: torch.cat(parts))
        assert names == [kernel]
        assert torch.equal(found.cpu(), torch.cat([part.cpu() for part in parts]))


def test_many_tensors_are_joined_too() -> None:
    x = torch.arange(8.0).npu()
    found, names = recorded(lambda: torch.cat([x] * 33))
    assert (names, found.numel()) == (["ConcatD"], 264)


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        (lambda x, y: x + y, ["add"]),
        (lambda x, y: y * x, ["mul"]),
        (lambda x, y: x - y, ["cast", "sub"]),
        (lambda x, _: x.bfloat16() + x, ["cast", "cast", "cast", "add"]),
        (lambda x, _: x.int() + x, ["cast", "cast", "add"]),
        (lambda x, y: torch.maximum(x, y), ["cast", "maximum"]),
        (lambda x, y: x < y, ["cast", "lt"]),
        (lambda x, y: torch.where(x < x, x, y), ["lt", "cast", "where"]),
        (lambda x, _: x.int() / x.int(), ["cast", "cast", "cast", "cast", "div"]),
        (lambda x, y: x + y[0, 0], ["add", "cast"]),
        (lambda x, y: x.clone().add_(y), ["clone", "add", "cast"]),
        (lambda x, y: torch.add(x, y, alpha=3), ["cast", "axpy"]),
    ],
)
def test_tensors_of_two_types_are_cast_to_one(call: Any, kernels: list[str]) -> None:
    x, y = numbers(), numbers(torch.float32)
    found, names = recorded(lambda: call(x, y))
    assert names == kernels
    expected = call(x.cpu(), y.cpu())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2])
def test_a_power_is_one_kernel(exponent: float) -> None:
    x = numbers(torch.bfloat16).exp()
    found, names = recorded(lambda: x**exponent)
    assert names == ["pow"]
    torch.testing.assert_close(found.cpu(), x.cpu() ** exponent)
    _, names = recorded(lambda: x**1.5)
    assert names == ["Pow"]


def test_flags_are_combined_by_kernels() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for call, kernel in (
        (lambda x, y: x & y, "logical_and"),
        (lambda x, y: x.logical_or(y), "logical_or"),
        (lambda x, _: ~x, "logical_not"),
    ):
        found, names = recorded(lambda call=call: call(x.npu(), y.npu()))
        assert (names, found.dtype) == ([kernel], torch.bool)
        assert torch.equal(found.cpu(), call(x, y))


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        (lambda x: x.sum(), ["sum"]),
        (lambda x: x.mean(), ["mean"]),
        (lambda x: x.amax((1, 2), keepdim=True), ["amax"]),
        (lambda x: x.sum((-1, -2)), ["sum"]),
        (lambda x: x.sum(-1, dtype=torch.float32), ["cast", "sum"]),
        (lambda x: x.argmax(-1), ["argmax"]),
        (lambda x: x.argmax(), ["argmax"]),
        (lambda x: x.argmax(1, keepdim=True), ["argmax"]),
        (lambda x: x.mT.sum(), ["permute", "sum"]),
        (lambda x: x.sum((0, 2)), ["ReduceSum"]),
        (lambda x: x.int().sum(), ["cast", "ReduceSum"]),
    ],
)
def test_reductions_along_several_axes_are_one_kernel(call: Any, kernels: list[str]) -> None:
    x = (torch.arange(120.0) % 17 - 5).view(2, 3, 20).half()
    found, names = recorded(lambda: call(x.npu()))
    assert names == kernels
    expected = call(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.cpu(), expected)


def test_a_selection_takes_a_mask() -> None:
    x = numbers()
    # Greater, Fill of the number that torch makes a tensor on the card, SelectV2.
    found, launches = launched(lambda: torch.where(x > 0, x, 0.0))
    assert launches == 3
    assert found.tolist() == [[0, 0, 0.25, 3], [3, 0.25, 0, 0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x.double(), x.double(), alpha=2),
        lambda x: x[:0] + 1,
        lambda x: x.new_tensor([2, 1], dtype=torch.int64).sort(),
        lambda x: x.int().nonzero(),
    ],
    ids=["alpha", "empty", "int64", "places of int32"],
)
def test_what_the_ai_cpu_of_a_card_runs_is_not_timed(call: Any) -> None:
    x = numbers()
    _, names = recorded(lambda: call(x))
    assert all(name.startswith("aten.") for name in names if name != "cast")


VIEWS: dict[str, tuple[Any, list[str]]] = {
    "transposed": (lambda x: x.t(), ["permute"]),
    "axes": (lambda x: x.view(2, 4, 4, 16).permute(2, 0, 1, 3), ["permute"]),
    "columns": (lambda x: x[:, 16:48], ["narrow"]),
    "one column": (lambda x: x[:, 3], ["narrow"]),
    "last rows": (lambda x: x[1:, 32:], ["narrow"]),
    "columns, transposed": (lambda x: x[:, 16:48].t(), ["narrow", "permute"]),
    "expanded": (lambda x: x[:, None].expand(8, 3, 64), ["broadcast_to"]),
    "expanded columns": (lambda x: x[:, None, :16].expand(8, 3, 16), ["narrow", "broadcast_to"]),
    "a number": (lambda x: x[1, 1].expand(4, 16), ["broadcast_to"]),
    "steps": (lambda x: x[:, ::2], ["narrow"]),
    "two cuts": (lambda x: x.view(2, 4, 64)[:, 1:3, 16:], ["AsStrided"]),
    "overlapping": (lambda x: x.view(-1).unfold(0, 16, 8), ["AsStrided"]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_copied_by_its_kernels(name: str) -> None:
    view, kernels = VIEWS[name]
    x = torch.arange(512.0).view(8, 64).half()
    seen = view(x.npu())
    found, names = recorded(lambda: seen.contiguous())
    assert (names, found.is_contiguous()) == (kernels, True)
    assert torch.equal(found.cpu(), view(x).contiguous())
    found, names = recorded(lambda: seen + 1)
    assert names == [*kernels, "add"]
    assert torch.equal(found.cpu(), view(x) + 1)


def test_a_mask_is_copied_as_bytes() -> None:
    mask = (torch.arange(256) % 3 == 0).view(4, 64).npu()
    found, names = recorded(lambda: mask[:, 32:].contiguous())
    assert (names, found.dtype) == (["narrow"], torch.bool)
    assert torch.equal(found.cpu(), mask.cpu()[:, 32:])


@pytest.mark.parametrize(
    ("view", "copy", "kernels"),
    [
        (lambda x: x, lambda x: x.half(), []),
        (lambda x: x, lambda x: x.clone(), ["clone"]),
        (lambda x: x.t(), lambda x: x.clone(), ["clone"]),
        (lambda x: x, lambda x: x.float(), ["cast"]),
        (lambda x: x.t(), lambda x: x.float(), ["cast"]),
        (lambda x: x[:, :2], lambda x: x.float(), ["narrow", "cast"]),
        (lambda x: x, lambda x: torch.empty_like(x).copy_(x), ["clone"]),
        (lambda x: x, lambda x: torch.empty(2, 4, device="npu").copy_(x), ["cast"]),
        (
            lambda x: x,
            lambda x: torch.empty(4, 2, device="npu").t().copy_(x),
            ["Cast", "ViewCopy"],
        ),
        (lambda x: x, lambda x: x.long(), ["Cast"]),
        (lambda x: x, lambda x: x.cpu().npu(), []),
        (lambda x: x, lambda x: x.npu(), []),
    ],
)
def test_copies_and_casts_are_kernels(view: Any, copy: Any, kernels: list[str]) -> None:
    x = torch.arange(8.0).view(2, 4).half()
    seen = view(x.npu())
    found, names = recorded(lambda: copy(seen))
    assert names == kernels
    assert found.tolist() == view(x).tolist()


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        (lambda x: x.add_(1), "add"),
        (lambda x: x.mul_(x), "mul"),
        (lambda x: x.sub_(2), "sub"),
        (lambda x: x.div_(3.0), "div"),
        (lambda x: x.relu_(), "relu"),
        (lambda x: x.clamp_(min=0), "clamp"),
        (lambda x: x.fill_(7), "fill"),
        (lambda x: x.zero_(), "fill"),
    ],
)
def test_a_kernel_writes_in_place(call: Any, kernel: str) -> None:
    x, expected = numbers(torch.float32), call(numbers(torch.float32).cpu())
    found, names = recorded(lambda: call(x))
    assert (found is x, names) == (True, [kernel])
    assert torch.equal(x.cpu(), expected)


def test_what_does_not_fit_in_place_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        numbers()[0].add_(numbers())


def test_printing_is_no_kernel() -> None:
    x, before = numbers(), sum(clock.not_timed.values())
    assert "device='npu:0'" in repr(x)
    assert sum(clock.not_timed.values()) == before


def test_parts_along_an_axis_are_one_kernel_each_time_with_their_own_rows() -> None:
    x = torch.arange(3 * 4 * 16).reshape(3, 4, 16).half()
    for index in (torch.tensor([3, 0]), torch.tensor([1, 1])):
        given = x.npu(), index.npu()
        found, launches = launched(lambda given=given: given[0].index_select(1, given[1]))
        assert launches == 1
        assert torch.equal(found.cpu(), x.index_select(1, index))


@pytest.mark.parametrize("values", [True, False])
def test_operators_of_torch_npu_copy_views_as_those_of_torch_do(values: bool) -> None:
    npusim.torch.install(device="ascend910b2", values=values)
    try:
        x = torch.ones(64, 96, dtype=torch.float16, device="npu")
        for view, kernels in ((x.t(), ["permute"]), (x[:, 16:80], ["narrow"]), (x[:32], [])):
            _, by_torch = recorded(lambda view=view: torch.abs(view))
            assert by_torch == [*kernels, "abs"]
            _, names = recorded(lambda view=view: torch_npu.npu_swiglu(view))
            assert names == [*kernels, "npu_swiglu"]
    finally:
        npusim.torch.install(device="ascend910b2")


@pytest.mark.parametrize("values", [True, False])
def test_bool_stays_bool(values: bool) -> None:
    npusim.torch.install(device="ascend910b2", values=values)
    try:
        x = torch.ones(4, 6, device="npu") > 0
        for found in (x.clone(), x.t().contiguous(), torch.cat([x, x]), x.clone().zero_()):
            assert found.dtype == torch.bool
        assert x.to(torch.uint8).dtype == torch.uint8
    finally:
        npusim.torch.install(device="ascend910b2")


def test_a_softmax_of_float16_may_be_one_of_float32() -> None:
    x = torch.randn(6, 40, dtype=torch.float16, device="npu")
    for call in (torch.softmax, torch.log_softmax):
        found, names = recorded(lambda call=call: call(x, -1, dtype=torch.float32))
        assert names == ["cast", call.__name__]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.cpu(), call(x.cpu().float(), -1))
