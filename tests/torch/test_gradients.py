"""Backward through the operators of torch_npu, against autograd in float64 on the host."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from simulated_card import torch, torch_npu

from npusim.torch.clock import clock

EPSILONS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
ROUNDINGS = 64
"""So many roundings of a number are allowed for, relative to the largest of its tensor."""


@dataclass(frozen=True)
class Case:
    """A function of torch_npu, and the same in plain torch."""

    on_card: Callable[..., Any]
    on_host: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    kernels: tuple[str, ...]
    """Operators that backward must run."""


def swiglu(x: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.nn.functional.silu(a) * b


def fast_gelu(x: Any) -> Any:
    return x * torch.sigmoid(1.702 * x)


functions = torch.nn.functional


def rms_norm(x: Any, gamma: Any) -> Any:
    axes = tuple(range(x.dim() - gamma.dim(), x.dim()))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + 1e-6) * gamma


def turned(x: Any, cos: Any, sin: Any) -> Any:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def neighbours_turned(x: Any, cos: Any, sin: Any) -> Any:
    pairs = torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    return x * cos + pairs * sin


CASES = {
    **{
        f"rotary_mul {lines}": Case(
            torch_npu.npu_rotary_mul,
            turned,
            (shape, lines, lines),
            ("npu_rotary_mul_backward",),
        )
        for shape, lines in (
            ((2, 9, 3, 40), (1, 9, 1, 40)),
            ((2, 3, 9, 128), (2, 1, 9, 128)),
            ((9, 2, 3, 64), (9, 1, 1, 64)),
            ((9, 3, 32), (9, 1, 32)),
        )
    },
    "rotary_mul of neighbours": Case(
        lambda x, cos, sin: torch_npu.npu_rotary_mul(x, cos, sin, "interleave"),
        neighbours_turned,
        ((2, 9, 3, 40), (1, 9, 1, 40), (1, 9, 1, 40)),
        ("npu_rotary_mul_backward",),
    ),
    **{
        f"rms_norm of {columns}": Case(
            lambda x, gamma: torch_npu.npu_rms_norm(x, gamma)[0],
            rms_norm,
            ((5, 3, columns), (columns,)),
            ("npu_rms_norm_backward",),
        )
        for columns in (96, 700, 6400)
    },
    "rms_norm of two axes": Case(
        lambda x, gamma: torch_npu.npu_rms_norm(x, gamma)[0],
        rms_norm,
        ((7, 4, 33), (4, 33)),
        ("npu_rms_norm_backward",),
    ),
    "npu_gelu": Case(torch_npu.npu_gelu, functions.gelu, ((300,),), ("npu_gelu_backward",)),
    "npu_gelu by tanh": Case(
        lambda x: torch_npu.npu_gelu(x, approximate="tanh"),
        lambda x: functions.gelu(x, approximate="tanh"),
        ((300,),),
        ("npu_gelu_backward",),
    ),
    "npu_fast_gelu": Case(
        torch_npu.npu_fast_gelu, fast_gelu, ((300,),), ("npu_fast_gelu_backward",)
    ),
    "fast_gelu": Case(torch_npu.fast_gelu, fast_gelu, ((300,),), ("npu_fast_gelu_backward",)),
    "silu": Case(functions.silu, functions.silu, ((300,),), ("silu_backward",)),
    "gelu": Case(
        functions.gelu,
        lambda x: functions.gelu(x, approximate="tanh"),
        ((300,),),
        ("gelu_backward",),
    ),
    "sigmoid": Case(torch.sigmoid, torch.sigmoid, ((300,),), ("sigmoid_backward",)),
    "tanh": Case(torch.tanh, torch.tanh, ((300,),), ("tanh_backward",)),
    "swiglu": Case(torch_npu.npu_swiglu, swiglu, ((6, 64),), ("npu_swiglu_backward",)),
    "swiglu, other axis": Case(
        lambda x: torch_npu.npu_swiglu(x, 0),
        lambda x: swiglu(x.movedim(0, -1)).movedim(-1, 0),
        ((6, 5, 16),),
        ("npu_swiglu_backward",),
    ),
}


@pytest.mark.parametrize("dtype", EPSILONS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name: str, dtype: Any) -> None:
    case = CASES[name]
    torch.manual_seed(3)
    wide = [torch.randn(shape, dtype=torch.float64).to(dtype).double() for shape in case.shapes]
    there = [x.to(dtype).npu().requires_grad_() for x in wide]
    wide = [x.requires_grad_() for x in wide]
    y, wanted = case.on_card(*there), case.on_host(*wide)
    grad = torch.randn(wanted.shape, dtype=torch.float64).to(dtype).double()
    events = clock.record()
    y.backward(grad.to(dtype).npu())
    clock.stop(events)
    assert {event.name for event in events} >= set(case.kernels)
    wanted.backward(grad)
    for found, x in zip(there, wide, strict=True):
        assert found.grad.dtype == dtype
        error = ROUNDINGS * EPSILONS[dtype] * float(x.grad.abs().max())
        torch.testing.assert_close(found.grad.cpu().double(), x.grad, rtol=0, atol=error)


def test_no_gradient_is_recorded_where_none_is_needed() -> None:
    x = torch.randn(2, 8).npu()
    assert not torch_npu.npu_swiglu(x).requires_grad
    with torch.no_grad():
        assert not torch_npu.npu_swiglu(x.requires_grad_()).requires_grad


def test_gradients_have_no_gradients() -> None:
    x = torch.randn(2, 8).npu().requires_grad_()
    (grad,) = torch.autograd.grad(torch_npu.npu_swiglu(x).sum(), x, create_graph=True)
    message = (
        "the derivative for 'npu_swiglu_backward' is not implemented.\n"
        "npu_swiglu_backward: no gradient must go through it, since it has none here; call it "
        "under torch.no_grad(), or detach its tensors"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        grad.sum().backward()


def test_gradients_of_a_compiled_function() -> None:
    x = torch.randn(2, 8).npu().requires_grad_()
    torch.compile(torch_npu.npu_swiglu, backend="aot_eager")(x).sum().backward()
    found, x.grad = x.grad, None
    torch_npu.npu_swiglu(x).sum().backward()
    assert torch.equal(found, x.grad)


def test_angles_have_gradients_where_one_of_them_needs_one() -> None:
    x, cos, sin = (torch.randn(1, 4, n, 64).npu() for n in (3, 1, 1))
    times = {}
    for needing in ((x,), (x, sin)):
        for tensor in needing:
            tensor.requires_grad_()
        y, before = torch_npu.npu_rotary_mul(x, cos, sin), clock.now_us
        y.sum().backward()
        times[len(needing)] = clock.now_us - before
    assert cos.grad is None
    assert sin.grad is not None
    assert times[2] > times[1]


def test_what_has_no_gradient_must_need_none() -> None:
    x, cos, sin = (torch.randn(1, 4, 1, 64).npu() for _ in range(3))
    rotate = torch.randn(64, 64).npu().requires_grad_()
    message = (
        "the derivative for 'rotate' of 'npu_rotary_mul' is not implemented.\n"
        "npu_rotary_mul: a tensor that needs a gradient must be self, r1, r2, not rotate; detach it"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        torch_npu.npu_rotary_mul(x, cos, sin, rotate=rotate)


@pytest.mark.parametrize("kept", [None, 9], ids=["all", "some dropped"])
@pytest.mark.parametrize("topk", [1, 3])
def test_tokens_permuted_by_experts_and_back(topk: int, kept: int | None) -> None:
    torch.manual_seed(4)
    x, weights = torch.randn(5, 32), torch.rand(5, topk)
    experts = torch.randint(0, 4, (5, topk))
    tokens, probs = (each.bfloat16().npu().requires_grad_() for each in (x, weights))
    rows, places = torch_npu.npu_moe_token_permute(tokens, experts.npu(), kept)
    torch_npu.npu_moe_token_unpermute(rows * 2, places, probs).sum().backward()
    x, weights = (each.bfloat16().float().requires_grad_() for each in (x, weights))
    order = torch.argsort(experts.flatten(), stable=True)[:kept]
    shares = torch.zeros(5 * topk, 32).index_add(0, order, 2 * x[order // topk])
    (shares.reshape(5, topk, 32) * weights[..., None]).sum().backward()
    for found, wanted in ((tokens.grad, x.grad), (probs.grad, weights.grad)):
        torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1],
        lambda x: torch.select_scatter(x, x[0], 0, 2),
        lambda x: torch.slice_scatter(x, x[:2], 0, 2),
        torch.diag_embed,
        torch.t_copy,
    ],
)
def test_functions_of_views_are_copies_on_a_card(function: Callable[[Any], Any]) -> None:
    x = torch.randn(4, 6)
    missing = clock.not_timed.total()
    found = _values_and_gradient(function, x.npu())
    assert clock.not_timed.total() == missing
    for one, other in zip(found, _values_and_gradient(function, x), strict=True):
        assert torch.equal(one.cpu(), other)


def _values_and_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    x = x.clone().requires_grad_()
    found = function(x)
    (found * found).sum().backward()
    return found.detach(), x.grad


@pytest.mark.parametrize("keep_prob", [1.0, 0.9])
def test_the_gradient_of_pse_is_unwritten_memory(keep_prob: float) -> None:
    q, pse = torch.randn(1, 2, 64, 32).bfloat16(), torch.randn(1, 2, 64, 64).bfloat16()
    given = [q.npu().requires_grad_(), pse.npu().requires_grad_()]
    found, *_ = torch_npu.npu_fusion_attention(
        given[0], q.npu(), q.npu(), 2, "BNSD", pse=given[1], keep_prob=keep_prob
    )
    found.sum().backward()
    assert torch.isfinite(given[0].grad).all()
    assert (given[1].grad.cpu().view(torch.uint8) == 0x7B).all()


@pytest.mark.parametrize("has_probs", [True, False])
def test_tokens_are_saved_for_the_gradient_of_their_weights_alone(has_probs: bool) -> None:
    rows, order = torch.randn(8, 16).half(), torch.randperm(8).int()
    probs = torch.rand(4, 2).half() if has_probs else None
    given = rows.npu().requires_grad_()
    saved: list[int] = []

    def pack(x: Any) -> Any:
        saved.append(x.data_ptr())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        found = torch_npu.npu_moe_token_unpermute(
            given, order.npu(), None if probs is None else probs.npu()
        )
    assert (given.data_ptr() in saved) == has_probs
    grad = torch.randn(found.shape).half()
    if not has_probs:
        with torch.no_grad():
            given.fill_(torch.nan)  # what is not saved is not read either
    found.backward(grad.npu())
    shares = torch.ones(8) if probs is None else probs.flatten()
    wanted = torch.zeros(8, 16)
    for choice, row in enumerate(order.tolist()):
        wanted[row] = grad[choice // (2 if has_probs else 1)].float() * shares[choice]
    torch.testing.assert_close(given.grad.cpu().float(), wanted, rtol=2**-10, atol=2**-10)
