"""Recurrent attention, pooling, deformable convolution and dropout, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated_card import torch, torch_npu

BF16 = torch.bfloat16


@pytest.mark.parametrize(("lengths", "heads", "has_g"), [
    ([70, 1, 128], (2, 4), True), ([33], (3, 3), False),
])  # fmt: skip
def test_the_delta_rule_by_chunks_is_that_by_tokens(
    lengths: list[int], heads: tuple[int, int], has_g: bool
) -> None:
    rng = torch.Generator().manual_seed(4)

    def drawn(*shape: int) -> Any:
        return torch.rand(shape, generator=rng)

    count, (few, many) = sum(lengths), heads
    q, k = (torch.nn.functional.normalize(drawn(count, few, 32), dim=-1).to(BF16) for _ in "qk")
    v, beta = drawn(count, many, 16).to(BF16), drawn(count, many).to(BF16)
    g, state = -drawn(count, many), drawn(len(lengths), many, 16, 32).to(BF16)
    out, last = torch_npu.npu_chunk_gated_delta_rule(
        q.npu(), k.npu(), v.npu(), beta=beta.npu(), initial_state=state.npu(),
        actual_seq_lengths=torch.tensor(lengths, dtype=torch.int32).npu(), scale=0.2,
        g=g.npu() if has_g else None,
    )  # fmt: skip
    start = 0
    for request, length in enumerate(lengths):
        now = state[request].double()
        for token in range(start, start + length):
            keys, asked = (x[token].double().repeat_interleave(many // few, 0) for x in (k, q))
            now = now * (g[token].double().exp()[:, None, None] if has_g else 1)
            error = v[token].double() - (now @ keys[..., None])[..., 0]
            now = now + (beta[token].double()[:, None] * error)[..., None] * keys[:, None]
            wanted = (now @ asked[..., None])[..., 0] * 0.2
            torch.testing.assert_close(out[token].cpu().double(), wanted, rtol=0.03, atol=0.02)
        torch.testing.assert_close(last[request].cpu().double(), now, rtol=0.03, atol=0.03)
        start += length
    assert (out.dtype, last.dtype) == (BF16, BF16)


def test_the_delta_rule_asks_for_what_it_needs() -> None:
    x = torch.ones(1, 1, 16, dtype=BF16).npu()
    message = (
        "^beta cannot be empty\nnpu_chunk_gated_delta_rule: beta must be given, not None; pass it$"
    )
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_chunk_gated_delta_rule(x, x, x)


def pooled(x: Any, rois: Any, scale: float, groups: int, channels: int) -> Any:
    images, _, height, width = x.shape
    found = np.zeros((images * rois.shape[2], channels, groups, groups))
    for image in range(images):
        for region in range(rois.shape[2]):
            x1, y1, x2, y2 = np.floor(rois[image, 1:, region] + 0.5)
            tall, wide = max((y2 + 1 - y1) * scale, 0.1), max((x2 + 1 - x1) * scale, 0.1)
            for c in range(channels):
                for p in range(groups):
                    for q in range(groups):
                        rows, columns = (
                            slice(max(0, int(np.floor(n * size / groups + first * scale))),
                                  max(0, int(np.ceil((n + 1) * size / groups + first * scale))))
                            for n, size, first in ((p, tall, y1), (q, wide, x1))
                        )  # fmt: skip
                        part = x[image, (c * groups + p) * groups + q][rows, columns]
                        place = image * rois.shape[2] + region, c, p, q
                        found[place] = part.mean() if part.size else 0
    assert (height, width) == x.shape[2:]
    return found


def test_regions_are_pooled_by_position() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 18, 11, 13)).astype(np.float32)
    corners = rng.integers(0, 30, (2, 2, 2, 4))
    corners.sort(axis=1)
    # (images, 5, regions): a number, x1, y1, x2, y2
    rois = np.concatenate([np.zeros((2, 1, 4)), corners.reshape(2, 4, 4)], 1).astype(np.float32)
    on_card = torch.from_numpy(x).npu().requires_grad_()
    y = torch_npu.npu_ps_roi_pooling(on_card, torch.from_numpy(rois).npu(), 0.5, 3, 2)
    wanted = pooled(x, rois, 0.5, 3, 2)
    np.testing.assert_allclose(y.detach().cpu().numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert np.count_nonzero(wanted) > 20
    message = (
        "^rois only supports at least 3D tensors, rois got: 2D\nnpu_ps_roi_pooling: rois must be "
        r"\(images, 5, regions\), not of shape \(5, 4\); reshape them$"
    )
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_ps_roi_pooling(on_card, torch.ones(5, 4).npu(), 0.5, 3, 2)
    grad = torch.from_numpy(rng.normal(size=wanted.shape).astype(np.float32))
    y.backward(grad.npu())
    back = torch_npu.npu_ps_roi_pooling_backward(
        grad.npu(), torch.from_numpy(rois).npu(), 0.5, 3, 2, [11, 13]
    )
    torch.testing.assert_close(back.cpu(), on_card.grad.cpu())
    # The mean is linear: a step of the input changes it by the gradient's product with it.
    step = rng.normal(size=x.shape).astype(np.float32)
    change = (pooled(x + step, rois, 0.5, 3, 2) - wanted) * grad.numpy()
    assert change.sum() == pytest.approx((back.cpu().numpy() * step).sum(), rel=1e-3)


def test_a_convolution_of_shifted_elements() -> None:
    rng = np.random.default_rng(6)
    images, channels, outputs, groups = 1, 4, 3, 2
    x = rng.normal(size=(images, channels, 5, 6)).astype(np.float32)
    weight = rng.normal(size=(outputs, channels, 3, 2)).astype(np.float32)
    rows, columns = (5 + 1 + 1 - 3) // 2 + 1, (6 + 1 - 2 * 1 - 1) // 1 + 1
    offset = rng.normal(size=(images, 3 * groups * 6, rows, columns)).astype(np.float32)
    bias = rng.normal(size=outputs).astype(np.float32)
    args = [torch.from_numpy(part).npu() for part in (x, weight, offset, bias)]
    y, taken = torch_npu.npu_deformable_conv2d(
        *args, kernel_size=[3, 2], stride=[1, 1, 2, 1], padding=[1, 1, 0, 1],
        dilation=[1, 1, 1, 2], deformable_groups=groups,
    )  # fmt: skip
    shifts = offset.reshape(3, groups, 3, 2, rows, columns)
    wanted = np.zeros((channels, rows, 3, columns, 2))
    for c in range(channels):
        for i, tap_y, j, tap_x in np.ndindex(rows, 3, columns, 2):
            right, down, factor = shifts[:, c // 2, tap_y, tap_x, i, j]
            at_y, at_x = 2 * i - 1 + tap_y + down, j + 2 * tap_x + right
            for a in range(5):
                for b in range(6):
                    share = max(0, 1 - abs(at_y - a)) * max(0, 1 - abs(at_x - b))
                    wanted[c, i, tap_y, j, tap_x] += x[0, c, a, b] * share * factor
    np.testing.assert_allclose(
        taken[0].cpu().numpy(), wanted.reshape(channels, rows * 3, columns * 2), atol=1e-5
    )
    product = np.einsum("cikjl,ockl->oij", wanted, weight.astype(np.float64))
    np.testing.assert_allclose(y[0].cpu().numpy(), product + bias[:, None, None], atol=1e-4)
    # The convolution is linear in elements, factors and weights, and a step shows its gradient.
    grad = torch.from_numpy(rng.normal(size=y.shape).astype(np.float32)).npu()
    back = torch_npu.npu_deformable_conv2dbk(
        args[0], grad, taken, *args[1:3], kernel_size=[3, 2], stride=[1, 1, 2, 1],
        padding=[1, 1, 0, 1], dilation=[1, 1, 1, 2], deformable_groups=groups,
    )  # fmt: skip
    for place, gradient in zip((0, 1, 3), (*back[:2], back[3]), strict=True):
        moved = list(args)
        moved[place] = moved[place] * 2
        change = torch_npu.npu_deformable_conv2d(
            *moved, kernel_size=[3, 2], stride=[1, 1, 2, 1], padding=[1, 1, 0, 1],
            dilation=[1, 1, 1, 2], deformable_groups=groups,
        )[0] - y  # fmt: skip
        wanted_step = (change * grad).sum().item()
        assert (args[place] * gradient).sum().item() == pytest.approx(wanted_step, rel=1e-3)
    # All of the factors doubled, which are the last third of the offsets.
    factors = back[2][:, 2 * groups * 6 :] * args[2][:, 2 * groups * 6 :]
    no_bias = ((y - args[3][:, None, None]) * grad).sum().item()
    assert factors.sum().item() == pytest.approx(no_bias, rel=1e-3)
    message = (
        "^npu_deformable_conv2d: modulated must be True, not False, which is not simulated; pass "
        "True$"
    )
    with pytest.raises(NotImplementedError, match=message):
        torch_npu.npu_deformable_conv2d(
            *args, kernel_size=[3, 2], stride=[1, 1, 2, 1], padding=[1, 1, 0, 1], modulated=False
        )


def test_convolutions_are_those_of_torch() -> None:
    rng = torch.Generator().manual_seed(8)
    x, weight, bias = (torch.randn(*s, generator=rng) for s in ((2, 4, 7, 6), (6, 2, 3, 3), (6,)))
    on_card = [part.npu() for part in (x, weight, bias)]
    for function in (torch_npu.npu_conv2d, torch_npu.npu_convolution):
        y = function(*on_card, [2, 1], [1, 0], [1, 2], 2)
        wanted = torch.nn.functional.conv2d(x, weight, bias, [2, 1], [1, 0], [1, 2], 2)
        torch.testing.assert_close(y.cpu(), wanted, rtol=1e-5, atol=1e-5)
    uneven = torch.nn.functional.pad(x, [3, 0, 1, 2])
    wanted = torch.nn.functional.conv2d(uneven, weight, bias, 1, 0, 1, 2)
    y = torch_npu.npu_conv2d(*on_card, [1, 1], [1, 2, 3, 0], [1, 1], 2)
    torch.testing.assert_close(y.cpu(), wanted, rtol=1e-5, atol=1e-5)
    leaves = [part.clone().requires_grad_() for part in (x, weight, bias)]
    padded = torch.nn.functional.pad(leaves[0], [3, 0, 1, 2])
    there = torch.nn.functional.conv2d(padded, *leaves[1:], 1, 0, 1, 2)
    grad = torch.randn(there.shape, generator=rng)
    wanted = torch.autograd.grad(there, leaves, grad)
    back = torch_npu.npu_conv2d_backward(
        on_card[0], grad.npu(), on_card[1], [1, 1], [1, 2, 3, 0], [1, 1], 2, [True] * 3
    )
    for found, own in zip(back, wanted, strict=True):
        torch.testing.assert_close(found.cpu(), own, rtol=1e-4, atol=1e-4)
    deep = [part.npu() for part in (x[:, :, None], weight[:, :, None])]
    y = torch_npu.npu_conv3d(*deep, None, [1, 2, 1], [0, 1, 0], [1, 1, 2], 2)
    wanted = torch.nn.functional.conv2d(x, weight, None, [2, 1], [1, 0], [1, 2], 2)
    torch.testing.assert_close(y[:, :, 0].cpu(), wanted, rtol=1e-5, atol=1e-5)
    turned = weight.transpose(0, 1).contiguous()[:, :3].repeat(2, 1, 1, 1)
    wanted = torch.nn.functional.conv_transpose2d(x, turned, None, [2, 1], [1, 0], [1, 0])
    for function in (torch_npu.npu_conv_transpose2d, torch_npu.npu_convolution_transpose):
        y = function(on_card[0], turned.npu(), None, [1, 0], [1, 0], [2, 1], [1, 1], 1)
        torch.testing.assert_close(y.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_dropout_returns_its_mask() -> None:
    torch.npu.manual_seed(1)
    x = torch.arange(1.0, 301).npu().requires_grad_()
    y, mask = torch.ops.npu._npu_dropout(x, 0.25)
    kept = np.unpackbits(mask.cpu().numpy(), bitorder="little")[:300].astype(bool)
    assert (mask.numel(), mask.dtype) == (48, torch.uint8)
    assert 180 < kept.sum() < 260
    values = x.detach().cpu().numpy()
    np.testing.assert_allclose(
        y.detach().cpu().numpy(), np.where(kept, values / 0.75, 0), rtol=1e-6
    )
    y.sum().backward()
    back = torch.ops.npu.npu_dropout_backward(torch.ones(300).npu(), mask, 0.25)
    torch.testing.assert_close(x.grad, back)
    captured = torch.npu.NPUGraph()
    with torch.no_grad(), torch.npu.graph(captured):
        found, own = torch.ops.npu._npu_dropout(x, 0.25)
    before = own.clone()
    captured.replay()
    assert not torch.equal(own, before)
    assert torch.equal(found, torch.ops.npu.npu_dropout_backward(x.detach(), own, 0.25))


def test_a_quantised_norm_of_atb_fills_its_output() -> None:
    rng = torch.Generator().manual_seed(12)
    x, gamma, beta = (torch.randn(*s, generator=rng).half() for s in ((4, 1, 64), (1, 64), (1, 64)))
    scale, offset = torch.tensor([0.25]).half(), torch.tensor([2], dtype=torch.int8)
    output = torch.zeros(4, 1, 64, dtype=torch.int8).npu()
    given = (part.npu() for part in (x, gamma, beta, scale, offset))
    assert torch_npu._npu_quant_rms_norm(*given, output, eps=1e-5) is None
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma + beta
    wanted = (normed / 0.25 + 2).round().clamp(-128, 127)
    assert (output.cpu() - wanted).abs().max() <= 1
    assert (output.cpu() == wanted).double().mean() > 0.97
