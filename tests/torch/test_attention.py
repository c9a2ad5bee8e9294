"""Torch's attention: the kernel that it is, and its parts where that takes no call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated_card import recorded, torch, torch_npu
from torch._dynamo.backends.common import aot_autograd

import npusim.torch
from npusim.torch.clock import clock

HALF, BRAIN = torch.float16, torch.bfloat16
KERNEL, GRADIENT = "npu_fusion_attention", "npu_fusion_attention_grad"
MASK = ["Fill", "Triu"]
"""Kernels that make the mask of a causal call."""
attention = torch.nn.functional.scaled_dot_product_attention


def drawn(*heads: int, tokens: int = 8, keys: int = 8, dtype: Any = HALF) -> list[Any]:
    """Query, key and value of 2 requests, on the CPU."""
    own, others = heads
    shapes = (2, own, tokens, 64), (2, others, keys, 64), (2, others, keys, 64)
    return [torch.randn(*shape).to(dtype) for shape in shapes]


def attended(tensors: list[Any], **options: Any) -> tuple[Any, list[str]]:
    """What attention on npu gives, and its kernels by name."""
    given = [x.npu() for x in tensors]
    options = {name: x.npu() if hasattr(x, "npu") else x for name, x in options.items()}
    return recorded(lambda: attention(*given, **options))


def some(*shape: int) -> Any:
    """A mask that hides about a third, never a whole row."""
    mask = torch.rand(*shape) > 0.3
    mask[..., 0] = True
    return mask


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@pytest.mark.parametrize(
    ("heads", "tokens", "options", "kernels"),
    [
        ((4, 4), 8, {}, [KERNEL]),
        ((4, 2), 8, {"enable_gqa": True}, [KERNEL]),
        ((4, 4), 8, {"is_causal": True}, [*MASK, KERNEL]),
        ((4, 4), 5, {"is_causal": True}, [*MASK, KERNEL]),
        ((4, 4), 8, {"scale": 0.3}, [KERNEL]),
        ((4, 2), 1, {"enable_gqa": True}, [KERNEL]),
        ((4, 4), 8, {"attn_mask": some(8, 8)}, ["logical_not", KERNEL]),
        ((4, 4), 8, {"attn_mask": some(2, 1, 8, 8)}, ["logical_not", KERNEL]),
        ((4, 4), 1, {"attn_mask": some(2, 1, 1, 8)}, ["logical_not", KERNEL]),
    ],
)
def test_attention_is_one_kernel(
    heads: tuple[int, int], tokens: int, options: Any, kernels: list[str], dtype: Any
) -> None:
    given = drawn(*heads, tokens=tokens, dtype=dtype)
    found, names = attended(given, **options)
    assert (names, found.is_npu, found.dtype) == (kernels, True, dtype)
    rtol = 2e-3 if dtype is HALF else 2e-2
    torch.testing.assert_close(found.cpu(), attention(*given, **options), rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float32),
        ({"attn_mask": torch.randn(8, 8).half()}, HALF),
        ({"attn_mask": some(2, 4, 8, 8)}, HALF),
        ({"dropout_p": 1.0}, HALF),
    ],
)
def test_what_the_kernel_does_not_take_is_products_and_a_softmax(options: Any, dtype: Any) -> None:
    given = drawn(4, 4, dtype=dtype)
    found, names = attended(given, **options)
    assert KERNEL not in names
    assert "softmax" in names
    torch.testing.assert_close(found.cpu(), attention(*given, **options), rtol=2e-3, atol=2e-3)


def test_one_causal_token_sees_the_first_key_alone() -> None:
    given = drawn(4, 4, tokens=1)
    found, names = attended(given, is_causal=True)
    assert names == [*MASK, KERNEL]
    torch.testing.assert_close(found.cpu(), given[2][:, :, :1], rtol=1e-3, atol=1e-3)


def test_atlas_inference_has_no_such_kernel() -> None:
    npusim.torch.install(device="ascend310p3")
    given = drawn(4, 4)
    found, names = attended(given)
    assert names.count("matmul") == 2
    torch.testing.assert_close(found.cpu(), attention(*given), rtol=2e-3, atol=2e-3)


def test_views_are_copied_first() -> None:
    query, key, value = (x.transpose(1, 2).contiguous().npu() for x in drawn(4, 4))
    given = [x.transpose(1, 2) for x in (query, key, value)]
    found, names = attended(given)
    assert names == ["permute"] * 3 + [KERNEL]
    expected = attention(*(x.cpu() for x in given))
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("heads", "options", "before"),
    [
        ((4, 4), {}, []),
        ((4, 2), {"is_causal": True, "enable_gqa": True}, MASK),
        ((4, 4), {"attn_mask": some(2, 1, 8, 8)}, ["logical_not"]),
    ],
)
def test_gradients_are_those_of_the_kernel(
    heads: tuple[int, int], options: Any, before: list[str]
) -> None:
    here = [x.double().requires_grad_() for x in drawn(*heads)]
    there = [x.detach().half().npu().requires_grad_() for x in here]
    back = torch.randn(2, 4, 8, 64).half()
    attention(*here, **options).backward(back.double())
    own = {name: x.npu() if hasattr(x, "npu") else x for name, x in options.items()}
    _, names = recorded(lambda: attention(*there, **own).backward(back.npu()))
    assert names == [*before, KERNEL, GRADIENT]
    for exact, other in zip(here, there, strict=True):
        found = other.grad.cpu().double()
        torch.testing.assert_close(found, exact.grad, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("is_causal", [False, True])
def test_dropout_is_drawn_for_the_kernel_and_its_gradient(is_causal: bool) -> None:
    here = [x.double().requires_grad_() for x in drawn(4, 4)]
    there = [x.detach().half().npu().requires_grad_() for x in here]
    back = torch.randn(2, 4, 8, 64).half()
    torch.npu.manual_seed(3)
    bits = torch_npu._npu_dropout_gen_mask(there[0], [512], p=0.25, seed=3, offset=0).cpu()
    kept = np.unpackbits(bits.numpy(), count=512, bitorder="little").reshape(2, 4, 8, 8)
    query, key, value = here
    scores = query @ key.mT / 8
    if is_causal:
        scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    expected = scores.softmax(-1) * torch.from_numpy(kept) / 0.75 @ value
    expected.backward(back.double())

    def both() -> Any:
        found = attention(*there, dropout_p=0.25, is_causal=is_causal)
        found.backward(back.npu())
        return found

    found, names = recorded(both)
    assert names == [*MASK * is_causal, KERNEL, GRADIENT]
    torch.testing.assert_close(found.cpu().double(), expected, rtol=2**-8, atol=2**-8)
    for exact, other in zip(here, there, strict=True):
        torch.testing.assert_close(other.grad.cpu().double(), exact.grad, rtol=2**-7, atol=2**-7)


def test_gradients_of_what_the_kernel_does_not_take_are_those_of_the_parts() -> None:
    here = [x.float().requires_grad_() for x in drawn(4, 4)]
    there = [x.detach().npu().requires_grad_() for x in here]
    attention(*here).square().sum().backward()
    _, names = recorded(lambda: attention(*there).square().sum().backward())
    assert GRADIENT not in names
    for own, other in zip(here, there, strict=True):
        torch.testing.assert_close(other.grad.cpu(), own.grad, rtol=1e-4, atol=1e-4)


def test_a_training_step_is_found_again() -> None:
    """Of shapes alone the second call is the launch of the first, with all that it returns."""
    npusim.torch.install(device="ascend910b2", values=False)
    seen = []
    for _ in range(2):
        given = [x.npu().requires_grad_() for x in drawn(4, 4)]
        back = torch.randn(2, 4, 8, 64).half().npu()
        before = clock.now_us
        _, names = recorded(lambda x=given, y=back: attention(*x).backward(y))
        seen.append((names, round(clock.now_us - before, 6), [x.grad.shape for x in given]))
    assert seen[0] == seen[1]
    assert seen[0][0] == [KERNEL, GRADIENT]


def test_gradients_go_through_views() -> None:
    """Heads behind tokens, as a model has them: copied first, and so is the gradient."""
    here = [x.transpose(1, 2).double().contiguous().requires_grad_() for x in drawn(4, 4)]
    there = [x.detach().half().npu().requires_grad_() for x in here]

    def step(tensors: list[Any]) -> None:
        turned = attention(*(x.transpose(1, 2) for x in tensors)).transpose(1, 2)
        turned.contiguous().square().sum().backward()

    step(here)
    _, names = recorded(lambda: step(there))
    assert (names.count(KERNEL), names.count(GRADIENT)) == (1, 1)
    assert names.index("permute") < names.index(KERNEL)
    for exact, other in zip(here, there, strict=True):
        found = other.grad.cpu().double()
        torch.testing.assert_close(found, exact.grad, rtol=2**-6, atol=2**-6)


def test_rows_that_a_mask_hides_give_zeros() -> None:
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[3] = False
    found, _ = attended(drawn(4, 4), attn_mask=mask)
    assert not found[:, :, 3].any()
    assert found[:, :, 2].any()


def test_shapes_that_do_not_fit_are_refused_by_torch() -> None:
    query, key, value = (x.npu() for x in drawn(4, 4))
    with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal=True"):
        attention(query, key, value, some(8, 8).npu(), is_causal=True)
    with pytest.raises(RuntimeError):
        attention(query, key[..., :32], value)


def test_shapes_alone_take_the_same_kernel_and_time() -> None:
    seen = []
    for values in True, False:
        npusim.torch.install(device="ascend910b2", values=values)
        before = clock.now_us
        found, names = attended(drawn(4, 4), is_causal=True)
        seen.append((names, found.shape, round(clock.now_us - before, 6)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_compiler_traces_the_kernel_for_any_number_of_tokens(is_recorded: bool) -> None:
    graphs: list[Any] = []

    def noting(graph: Any, _: list[Any]) -> Any:
        graphs.append(graph)
        return graph

    def causal(query: Any) -> Any:
        return attention(query, query, query, is_causal=True)

    backend = aot_autograd(fw_compiler=noting, bw_compiler=lambda graph, _: graph)
    compiled = torch.compile(causal, backend=backend, fullgraph=True, dynamic=True)
    for tokens in (8, 24):
        query = drawn(4, 4, tokens=tokens)[0].npu().requires_grad_(is_recorded)
        assert torch.equal(compiled(query), causal(query))
    (graph,) = graphs
    assert "npu.npu_fusion_attention.default" in [str(node.target) for node in graph.graph.nodes]
