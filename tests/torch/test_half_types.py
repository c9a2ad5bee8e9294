"""Operations of the host on half types, rounded as the kernels of a card round them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated_card import torch

from npusim.torch.clock import clock

HALF = (torch.float16, torch.bfloat16)


def drawn(*shape: int, dtype: Any = torch.float16, seed: int = 0) -> Any:
    own = np.random.default_rng([seed, *shape])
    return torch.from_numpy(own.standard_normal(shape, np.float32)).to(dtype)


def wide(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach().cpu().double().numpy())


def assert_rounded(got: Any, want: np.ndarray[Any, Any], dtype: Any, ulps: float = 1.0) -> None:
    """*got* is *want*, which is exact, within *ulps* units of the last place of *dtype*."""
    assert got.dtype == dtype
    room = ulps * torch.finfo(dtype).eps * np.maximum(np.abs(want), torch.finfo(dtype).tiny)
    assert np.all(np.abs(wide(got) - want) <= room)


def _added(x: Any, rows: Any, places: Any) -> np.ndarray[Any, Any]:
    found = wide(x)
    np.add.at(found, places.numpy(), wide(rows))
    return found


SUMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "index_add": lambda x, rows, places: x.index_add(0, places, rows),
    "index_add_": lambda x, rows, places: x.clone().index_add_(0, places, rows),
    "index_put_": lambda x, rows, places: x.clone().index_put_((places,), rows, accumulate=True),
    "scatter_add": lambda x, rows, places: x.scatter_add(
        0, places[:, None].expand(rows.shape), rows
    ),
    "scatter_reduce_": lambda x, rows, places: x.clone().scatter_reduce_(
        0, places[:, None].expand(rows.shape), rows, "sum"
    ),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("add", SUMS.values(), ids=SUMS)
def test_rows_are_summed_before_they_are_rounded(add: Callable[..., Any], dtype: Any) -> None:
    x, rows = drawn(3, 40, dtype=dtype), drawn(600, 40, dtype=dtype).abs()
    places = torch.arange(600) % 3
    got = add(x.npu(), rows.npu(), places.npu())
    assert_rounded(got, _added(x, rows, places), dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_the_gradient_of_what_is_repeated_is_rounded_once(dtype: Any) -> None:
    x = drawn(4, 3, dtype=dtype).npu().requires_grad_()
    grad = drawn(4 * 100, 3, dtype=dtype).abs()
    x.repeat_interleave(torch.tensor(100).npu(), 0).backward(grad.npu())
    assert x.grad is not None
    assert_rounded(x.grad, wide(grad).reshape(4, 100, 3).sum(1), dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_a_product_of_all_is_rounded_once(dtype: Any) -> None:
    x = drawn(30, 8, dtype=dtype).abs() + 0.5
    want = np.prod(wide(x), 0)
    assert_rounded(torch.prod(x.npu(), 0), want, dtype)
    assert_rounded(torch.prod(x.npu(), 0, dtype=dtype), want, dtype)
    out = torch.empty(0, dtype=dtype, device="npu")
    torch.prod(x.npu(), 0, dtype=dtype, out=out)
    assert_rounded(out, want, dtype)
    assert torch.prod(x.npu(), 0, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALF)
def test_a_norm_of_batches_has_statistics_of_float32(dtype: Any) -> None:
    x, weight = drawn(64, 5, dtype=dtype) * 3 + 9, torch.linspace(0.5, 2, 5)
    mean, var = torch.zeros(5, dtype=dtype).npu(), torch.ones(5, dtype=dtype).npu()
    got, own_mean, rstd = torch.native_batch_norm(
        x.npu(), weight.npu(), None, mean, var, True, 0.5, 1e-5
    )
    exact = wide(x)
    centred = exact - exact.mean(0)
    assert_rounded(got, centred / np.sqrt(exact.var(0) + 1e-5) * wide(weight), dtype, 4)
    assert (own_mean.dtype, rstd.dtype) == (torch.float32, torch.float32)
    np.testing.assert_allclose(wide(own_mean), exact.mean(0), rtol=1e-5)
    # What a module remembers of earlier batches moves on, in its own type.
    assert_rounded(mean, 0.5 * exact.mean(0), dtype)
    assert_rounded(var, 0.5 + 0.5 * exact.var(0, ddof=1), dtype)


LISTS: dict[str, tuple[Callable[..., Any], Callable[..., np.ndarray[Any, Any]]]] = {
    # numpy rounds each step of float16.
    "sub": (
        lambda x, a, _: torch._foreach_sub(x, a, alpha=5.0),
        lambda x, a, _: x - a * np.float16(5),
    ),
    "addcdiv": (
        lambda x, a, b: torch._foreach_addcdiv(x, a, b, [3.0, 3.0]),
        lambda x, a, b: x + a / b * np.float16(3),
    ),
    "addcdiv by a tensor": (
        lambda x, a, b: torch._foreach_addcdiv(x, a, b, torch.tensor([3.0, 3.0])),
        lambda x, a, b: x + a / b * np.float16(3),
    ),
    "addcmul of a list": (
        lambda x, a, b: torch._foreach_addcmul(x, a, b, [3.0, 3.0]),
        lambda x, a, b: x + a * b * np.float16(3),
    ),
    "addcmul": (
        lambda x, a, b: torch._foreach_addcmul(x, a, b, value=3.0),
        lambda x, a, b: (x.astype(float) + a.astype(float) * b * 3).astype(np.float16),
    ),
}


@pytest.mark.parametrize(("of_torch", "of_numpy"), LISTS.values(), ids=LISTS)
def test_a_list_of_float16_is_rounded_as_its_kernel_does(
    of_torch: Callable[..., Any], of_numpy: Callable[..., Any]
) -> None:
    lists = [[drawn(40, 7, seed=3 * i + place) for i in (1, 2)] for place in range(3)]
    got = of_torch(*([x.npu() for x in each] for each in lists))
    for y, *parts in zip(got, *lists, strict=True):
        np.testing.assert_array_equal(y.cpu().numpy(), of_numpy(*(x.numpy() for x in parts)))


def test_a_list_in_place_is_that_of_the_list_apart() -> None:
    for dtype in HALF:
        x, y = [drawn(9, 5, dtype=dtype).npu()], [drawn(9, 5, dtype=dtype, seed=1).npu()]
        apart = torch._foreach_sub(x, y, alpha=5.0)
        torch._foreach_sub_(x, y, alpha=5.0)
        assert torch.equal(x[0], apart[0])


@pytest.mark.parametrize("dtype", HALF)
def test_the_largest_distance_has_a_gradient_where_it_is_rounded_down(dtype: Any) -> None:
    x, other = drawn(5, 10, dtype=dtype).npu().requires_grad_(), drawn(4, 10, dtype=dtype).npu()
    distance = torch.cdist(x, other, float("inf"))
    distance.backward(torch.ones_like(distance))
    apart = wide(x)[:, None] - wide(other)[None]
    reached = np.abs(apart) >= wide(distance)[..., None]
    assert x.grad is not None
    assert_rounded(x.grad, (np.sign(apart) * reached).sum(1), dtype)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_a_loss_of_logits_and_its_gradient_are_rounded_once(reduction: str, dtype: Any) -> None:
    x, target = drawn(10, 64, dtype=dtype) * 5, (drawn(10, 64, seed=1) > 0).to(dtype)
    weight = drawn(10, 1, dtype=dtype, seed=2).abs()
    positive = drawn(64, dtype=dtype, seed=3).abs()
    on_card = x.npu().requires_grad_()
    given = {"weight": weight.npu(), "pos_weight": positive.npu(), "reduction": reduction}
    got = torch.nn.functional.binary_cross_entropy_with_logits(on_card, target.npu(), **given)
    got.sum().backward()

    logits, y, of_ones = wide(x), wide(target), wide(positive)
    share = 1 / (1 + np.exp(-logits))
    each = -wide(weight) * (of_ones * y * np.log(share) + (1 - y) * np.log1p(-share))
    want = {"none": each, "mean": each.mean(), "sum": each.sum()}[reduction]
    np.testing.assert_allclose(wide(got), want, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    slope = wide(weight) * ((1 - y) * share - of_ones * y * (1 - share))
    slope = slope / x.numel() if reduction == "mean" else slope
    assert got.dtype == dtype
    assert on_card.grad is not None
    np.testing.assert_allclose(wide(on_card.grad), slope, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_a_mean_loss_of_logits_is_the_kernels_that_aclnn_launches() -> None:
    x = drawn(10, 64).npu().requires_grad_()
    events = clock.record()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x, torch.ones_like(x))
    forward = [event.name for event in events]
    loss.backward()
    clock.stop(events)
    kernels = ["OnesLike", "OnesLike", "SigmoidCrossEntropyWithLogitsV2", "mean"]
    assert forward[-4:] == kernels
    assert [event.name for event in events][len(forward) :][-3:] == [
        *("OnesLike", "OnesLike", "SigmoidCrossEntropyWithLogitsGradV2")
    ]


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_a_row_is_no_distance_from_itself(dtype: Any) -> None:
    x = drawn(40, 9, dtype=dtype)
    apart = np.sqrt(((wide(x)[:, None] - wide(x)) ** 2).sum(-1))
    on_card = x.npu().requires_grad_()
    got = torch.cdist(on_card, x.npu())
    assert_rounded(got, apart, dtype, 4)
    got.sum().backward()
    assert on_card.grad is not None
    assert torch.isfinite(on_card.grad).all()


SMALL = torch.zeros(3000, dtype=torch.int64)
MANY: dict[str, Callable[[Any], Any]] = {
    "avg_pool2d": lambda x: torch.nn.functional.avg_pool2d(x[None, None], 9, 1),
    "take": lambda x: x.take(SMALL.to(x.device)),
    "unfold": lambda x: x.reshape(-1).unfold(0, 500, 1),
    "embedding_bag": lambda x: torch.nn.functional.embedding_bag(
        SMALL.view(30, 100).to(x.device), x, mode="sum"
    ),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("function", MANY.values(), ids=MANY)
def test_many_gradients_of_an_element_are_summed_before_they_are_rounded(
    function: Callable[[Any], Any], dtype: Any
) -> None:
    x = drawn(40, 40, dtype=dtype)
    grads = []
    for each in (x.double().requires_grad_(), x.npu().requires_grad_()):
        y = function(each)
        factor = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).view(y.shape).to(dtype)
        y.backward(factor.to(y))
        grads.append(each.grad)
    assert_rounded(grads[1], wide(grads[0]), dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_more_are_counted_than_a_half_type_counts_one_by_one(dtype: Any) -> None:
    x = torch.full((5000,), 0.25, dtype=dtype)
    assert torch.histc(x.npu(), 2, 0, 1).tolist() == [torch.tensor(5000).to(dtype).item(), 0]


def test_a_loss_of_two_types_has_the_wider_one() -> None:
    x, target = drawn(9, 5), drawn(9, 5, dtype=torch.float32, seed=1)
    got = torch.nn.functional.mse_loss(x.npu(), target.npu())
    assert got.dtype == torch.float32
    np.testing.assert_allclose(wide(got), ((wide(x) - wide(target)) ** 2).mean(), rtol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("name", "step"), [("addcmul", np.multiply), ("addcdiv", np.divide)])
def test_a_factor_is_rounded_and_float16_after_each_step(name: str, step: Any, dtype: Any) -> None:
    x, a, b = (drawn(7, 40, dtype=dtype, seed=seed) for seed in range(3))
    own, left, right = (each.float().numpy() for each in (x, a, b))
    factor = torch.tensor(0.001, dtype=dtype).float().numpy()
    if dtype == torch.float16:
        own, left, right, factor = (each.astype(np.float16) for each in (own, left, right, factor))
    with np.errstate(all="ignore"):
        want = torch.from_numpy(own + step(left, right) * factor).to(dtype)
    found = getattr(torch, name)(x.npu(), a.npu(), b.npu(), value=0.001)
    assert torch.equal(found.cpu(), want)
    place = x.npu()
    getattr(place, f"{name}_")(a.npu(), b.npu(), value=0.001)
    assert torch.equal(place.cpu(), want)
    with pytest.raises(
        RuntimeError, match=r"tensor a \(40\) must match the size of tensor b \(7\)"
    ):
        getattr(torch, name)(x.npu(), a.mT.npu(), b.npu())
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        getattr(x[0].npu(), f"{name}_")(a.npu(), b.npu())


@pytest.mark.parametrize("dtype", HALF)
def test_the_weight_between_two_tensors_is_rounded(dtype: Any) -> None:
    x, end = drawn(200, dtype=dtype), drawn(200, dtype=dtype, seed=1)
    for weight in (0.1, 0.9):
        part = wide(torch.tensor(weight, dtype=dtype))
        want = wide(x) + part * (wide(end) - wide(x))
        assert_rounded(torch.lerp(x.npu(), end.npu(), weight), want, dtype)
        found = x.npu().lerp_(end.npu(), torch.tensor(weight, dtype=dtype).npu())
        assert_rounded(found, want, dtype)


@pytest.mark.parametrize("dtype", HALF)
def test_a_variance_is_about_the_rounded_mean(dtype: Any) -> None:
    # The mean, 100 + 1/3, is no value of 16 bits.
    x = torch.tensor([[100.0, 100.0, 101.0], [1.0, 1.0, 1.0]], dtype=dtype)
    mean = wide(torch.tensor([100 + 1 / 3, 1.0]).to(dtype))
    want = ((wide(x) - mean[:, None]) ** 2).sum(1) / 2
    assert_rounded(x.npu().var(1), want, dtype)
    assert_rounded(x.npu().std(-1, keepdim=True), np.sqrt(want)[:, None], dtype)
    found, centre = torch.var_mean(x.npu(), 1, correction=0)
    assert_rounded(found, want * 2 / 3, dtype)
    assert wide(centre).tolist() == mean.tolist()
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert x.npu()[0, :1].var().isnan()
