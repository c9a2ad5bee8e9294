"""Torch's attention: the kernel that stands in for it, and its parts where that takes no call."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_card import recorded, torch

import npusim.torch
from npusim.torch.clock import clock

HALF, BRAIN = torch.float16, torch.bfloat16
KERNEL = "npu_fused_infer_attention_score"
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
        ((4, 4), 8, {"is_causal": True}, [KERNEL]),
        ((4, 4), 5, {"is_causal": True}, [KERNEL]),
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
    assert KERNEL not in names
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


def test_gradients_are_those_of_the_parts() -> None:
    here = [x.float().requires_grad_() for x in drawn(4, 4)]
    there = [x.detach().half().npu().requires_grad_() for x in here]
    attention(*here).square().sum().backward()
    attention(*there).square().sum().backward()
    for own, other in zip(here, there, strict=True):
        torch.testing.assert_close(other.grad.cpu().float(), own.grad, rtol=0.02, atol=0.02)


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
