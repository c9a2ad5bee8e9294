"""Operators of training that are made of torch's own: values and gradients against the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import torch, torch_npu

from npusim import devices
from npusim.torch.clock import clock
from npusim.torch.composed import legacy

functions = torch.nn.functional


def rand(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def deep_norm(x: Any, gx: Any, beta: Any, gamma: Any) -> Any:
    return functions.layer_norm(0.3 * x + gx, gamma.shape, gamma, beta, 1e-6)


def cross_entropy(x: Any, labels: Any) -> Any:
    return -(labels * torch.log_softmax(x, -1)).sum(-1)


def _chosen(rows: Any, shares: Any, _: Any) -> Any:
    return rows * shares[:, None]


WEIGHTS = rand(9).abs()
LABELS = torch.tensor([2, 8, 3, 0])
MAP = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool()
"""Which of three experts each of four tokens has chosen."""
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "linear": (torch_npu.npu_linear, functions.linear, (rand(3, 4), rand(5, 4), rand(5))),
    "bmmV2": (
        lambda a, b: torch_npu.npu_bmmV2(a, b, [6, 5]),
        lambda a, b: (a @ b).reshape(6, 5),
        (rand(2, 3, 4), rand(2, 4, 5)),
    ),
    "transpose first": (
        lambda x: torch_npu.npu_confusion_transpose(x, [0, 2, 1, 3], [2, 4, 15], True),
        lambda x: x.permute(0, 2, 1, 3).reshape(2, 4, 15),
        (rand(2, 3, 4, 5),),
    ),
    "reshape first": (
        lambda x: torch_npu.npu_confusion_transpose(x, [0, 2, 1, 3], [2, 3, 4, 5], False),
        lambda x: x.reshape(2, 3, 4, 5).permute(0, 2, 1, 3),
        (rand(2, 3, 20),),
    ),
    "cast": (
        lambda x: torch_npu.npu_dtype_cast(x, torch.float16).float(),
        lambda x: x.half().float(),
        (rand(3, 4),),
    ),
    "pad": (
        lambda x: torch_npu.npu_pad(x, [1, 2, 0, 3]),
        lambda x: functions.pad(x, (0, 3, 1, 2)),
        (rand(2, 3),),
    ),
    "slice": (
        lambda x: torch_npu.npu_slice(x, [1, 0], [2, 2]),
        lambda x: x[1:3, :2],
        (rand(4, 3),),
    ),
    "silu": (torch_npu.npu_silu, functions.silu, (rand(30),)),
    "mish": (torch_npu.npu_mish, functions.mish, (rand(30),)),
    "deep norm": (
        lambda *given: torch_npu.npu_deep_norm(*given)[2],
        deep_norm,
        (rand(6, 32), rand(6, 32), rand(32), rand(32)),
    ),
    "sum normed": (
        lambda *given: torch_npu.npu_add_layer_norm(*given)[0],
        lambda x, y, gamma, beta: functions.layer_norm(x + y, (32,), gamma, beta),
        (rand(6, 32), rand(6, 32), rand(32), rand(32)),
    ),
    "geglu": (
        lambda x: torch_npu.npu_geglu(x)[0],
        lambda x: x.chunk(2, -1)[0] * functions.gelu(x.chunk(2, -1)[1], approximate="tanh"),
        (rand(3, 5, 8),),
    ),
    "geglu by erf of the first half": (
        lambda x: torch_npu.npu_geglu(x, 1, 0, True)[0],
        lambda x: x.chunk(2, 1)[1] * functions.gelu(x.chunk(2, 1)[0]),
        (rand(3, 6, 8),),
    ),
    "convolution": (
        lambda *given: torch_npu.npu_conv2d(*given, [2, 1], [1, 0], [1, 1], 2),
        lambda *given: functions.conv2d(*given, (2, 1), (1, 0), 1, 2),
        (rand(2, 4, 6, 5), rand(6, 2, 3, 3), rand(6)),
    ),
    "transposed convolution": (
        lambda *given: torch_npu.npu_conv_transpose2d(*given, [1, 0], [1, 0], [2, 1], [1, 1], 1),
        lambda *given: functions.conv_transpose2d(*given, (2, 1), (1, 0), (1, 0)),
        (rand(2, 4, 6, 5), rand(4, 3, 3, 3), rand(3)),
    ),
    "mean loss": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, LABELS.npu())[0],
        lambda x: functions.cross_entropy(x, LABELS).reshape(1),
        (rand(4, 9),),
    ),
    "loss of each row": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, LABELS.npu(), WEIGHTS.npu(), "none", 3, 0.1)[
            0
        ],
        lambda x: functions.cross_entropy(
            x, LABELS, WEIGHTS, ignore_index=3, reduction="none", label_smoothing=0.1
        ),
        (rand(4, 9),),
    ),
    "mean loss with weights": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, LABELS.npu(), WEIGHTS.npu(), "mean", 3, 0.1)[
            0
        ],
        lambda x: functions.cross_entropy(
            x, LABELS, WEIGHTS, ignore_index=3, label_smoothing=0.1
        ).reshape(1),
        (rand(4, 9),),
    ),
    "softmax with a mask": (
        lambda x, mask: torch_npu.npu_dropout_with_add_softmax(x, mask, 0.5, 0.0, -1)[2],
        lambda x, mask: torch.softmax(mask + 0.5 * x, -1),
        (rand(2, 3, 8), rand(2, 3, 8)),
    ),
    "a choice of rows": (
        lambda x, probs: _chosen(
            *torch_npu.npu_moe_token_permute_with_routing_map(x, MAP.npu(), probs=probs)
        ),
        lambda x, probs: x[[0, 2, 3, 0, 1, 3, 1, 2]] * probs.t()[MAP.t()][:, None],
        (rand(4, 6), rand(4, 3)),
    ),
    "rows with room for two": (
        lambda x, probs: _chosen(
            *torch_npu.npu_moe_token_permute_with_routing_map(
                x, MAP.npu(), probs=probs, num_out_tokens=6, drop_and_pad=True
            )
        ),
        lambda x, probs: (
            x[[0, 2, 0, 1, 1, 2]]
            * torch.stack(
                [probs[0, 0], probs[2, 0], probs[0, 1], probs[1, 1], probs[1, 2], probs[2, 2]]
            )[:, None]
        ),
        (rand(4, 6), rand(4, 3)),
    ),
    "the way back": (
        lambda rows, probs: torch_npu.npu_moe_token_unpermute_with_routing_map(
            rows,
            torch.tensor([0, 3, 4, 6, 1, 7, 2, 5]).int().npu(),
            [4, 6],
            probs=probs,
            routing_map=MAP.npu(),
        ),
        lambda rows, probs: torch.stack(
            [
                rows[0] * probs[0, 0] + rows[3] * probs[0, 1],
                rows[4] * probs[1, 1] + rows[6] * probs[1, 2],
                rows[1] * probs[2, 0] + rows[7] * probs[2, 2],
                rows[2] * probs[3, 0] + rows[5] * probs[3, 1],
            ]
        ),
        (rand(8, 6), rand(4, 3)),
    ),
    "the way back from room for two": (
        lambda rows, probs: torch_npu.npu_moe_token_unpermute_with_routing_map(
            rows,
            torch.tensor([0, 2, 0, 1, 1, 2]).int().npu(),
            [4, 6],
            probs=probs,
            drop_and_pad=True,
        ),
        lambda rows, probs: torch.stack(
            [
                rows[0] * probs[0, 0] + rows[2] * probs[0, 1],
                rows[3] * probs[1, 1] + rows[4] * probs[1, 2],
                rows[1] * probs[2, 0] + rows[5] * probs[2, 2],
                torch.zeros(6),
            ]
        ),
        (rand(6, 6), rand(4, 3)),
    ),
    "cross entropy": (
        torch_npu.npu_softmax_cross_entropy_with_logits,
        cross_entropy,
        (rand(4, 9), rand(4, 9).softmax(-1)),
    ),
}
NOT_TIMED = "mish", "convolution", "transposed convolution"
"""Functions with a part whose kernel npusim does not have."""


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_host(name: str) -> None:
    on_card, on_host, given = CASES[name]
    here = [x.clone().requires_grad_() for x in given]
    there = [x.npu().requires_grad_() for x in given]
    y, wanted = on_card(*there), on_host(*here)
    torch.testing.assert_close(y.cpu(), wanted, rtol=1e-3, atol=1e-3)
    grad, missing = rand(*wanted.shape), clock.not_timed.total()
    y.backward(grad.npu())
    wanted.backward(grad)
    for found, x in zip(there, here, strict=True):
        torch.testing.assert_close(found.grad.cpu(), x.grad, rtol=1e-2, atol=1e-2)
    assert clock.not_timed.total() == missing or name in NOT_TIMED


def test_gradients_of_a_convolution_by_name() -> None:
    x, weight, grad = rand(2, 4, 6, 6), rand(6, 4, 3, 3), rand(2, 6, 6, 6)
    args = [1, 1], [1, 1], [1, 1], 1, [True, True, True]
    found = torch.ops.npu.npu_conv2d_backward(x.npu(), grad.npu(), weight.npu(), *args)
    given = [x.requires_grad_(), weight.requires_grad_(), torch.zeros(6).requires_grad_()]
    wanted = torch.autograd.grad(functions.conv2d(*given, 1, 1), given, grad)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-3)


def test_a_dropped_softmax_scales_what_is_kept() -> None:
    torch.npu.manual_seed(1)
    x = rand(8, 8, 64)
    mask, shares, dropped = torch_npu.npu_dropout_with_add_softmax(
        x.npu(), torch.zeros_like(x).npu(), 1.0, 0.25, -1
    )
    kept = dropped.cpu() != 0
    torch.testing.assert_close(dropped.cpu(), shares.cpu() * kept / 0.75, rtol=1e-5, atol=1e-6)
    assert 0.7 < kept.double().mean() < 0.8
    assert mask.numel() == x.numel() // 8


@pytest.mark.parametrize("group_list_type", [0, 1])
def test_products_of_groups_are_added_in_place(group_list_type: int) -> None:
    x, weight, whole = rand(9, 4).half(), rand(9, 6).half(), rand(8, 6)
    groups = torch.tensor([4, 5] if group_list_type else [4, 9])
    wanted = torch.cat(
        [x[:4].double().t() @ weight[:4].double(), x[4:].double().t() @ weight[4:].double()]
    )
    own = whole.npu()
    found = torch_npu.npu_grouped_matmul_add_(
        own, x.npu(), weight.npu(), groups.npu(), group_list_type=group_list_type
    )
    torch.testing.assert_close(own.cpu().double(), whole.double() + wanted, rtol=1e-3, atol=1e-3)
    assert torch.equal(found, own)


def test_a_normed_sum_in_two_types() -> None:
    x1, x2, gamma = (x.half() for x in (rand(6, 64), rand(6, 64) * 2, rand(64)))
    wide, y, _, x = torch_npu.npu_add_rms_norm_cast(x1.npu(), x2.npu(), gamma.npu())
    wanted = torch_npu.npu_add_rms_norm(x1.npu(), x2.npu(), gamma.npu())
    assert torch.equal(y, wanted[0])
    assert torch.equal(x, wanted[2])
    assert wide.dtype == torch.float32
    assert torch.equal(wide.half(), y)


def test_lists_are_written_at_their_indices() -> None:
    lists = [rand(2, 6, 3).half(), rand(2, 6, 3).half() + 1, rand(2, 6, 3).half() + 2]
    new = rand(3, 2, 1, 3).half()
    wanted = [x.clone() for x in lists]
    for place, index in ((0, 4), (2, 1)):
        wanted[place][:, index] = new[place, :, 0]
    given = [x.npu() for x in lists]
    args = torch.tensor([4, 0, 1]).int().npu(), new.npu(), torch.tensor([1, 0, 1]).byte().npu()
    found = torch_npu.npu_scatter_list(given, *args)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(found, wanted, strict=True))
    assert all(torch.equal(x.cpu(), y) for x, y in zip(given, lists, strict=True))
    torch_npu.npu_scatter_list_(given, *args)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(given, wanted, strict=True))


def test_gradients_by_name() -> None:
    """torch_npu has the functions that find them."""
    x, weight, grad = rand(3, 4), rand(5, 4), rand(3, 5)
    of_x, of_weight = torch.ops.npu.npu_linear_backward(grad.npu(), x.npu(), weight.npu())
    torch.testing.assert_close(of_x.cpu(), grad @ weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(of_weight.cpu(), grad.mT @ x, rtol=1e-3, atol=1e-3)
    a, b, grad = rand(2, 3, 4), rand(2, 4, 5), rand(2, 3, 5)
    given = grad.npu(), a.npu(), b.npu()
    of_a = torch.ops.npu.npu_bmm_v2_mat1_backward(*given, [2, 3, 4])
    of_b = torch.ops.npu.npu_bmm_v2_mat2_backward(*given, [2, 4, 5])
    torch.testing.assert_close(of_a.cpu(), grad @ b.mT, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(of_b.cpu(), a.mT @ grad, rtol=1e-3, atol=1e-3)
    for first in (True, False):
        perm, shape = [0, 2, 1], [2, 3, 4] if first else [2, 12]
        x = rand(2, 4, 3) if first else rand(2, 12)
        y = x.permute(perm).reshape(2, 12) if first else x.reshape(2, 3, 4).permute(perm)
        own = [2, 4, 3] if first else [2, 12]
        back = torch.ops.npu.npu_confusion_transpose_backward(y.npu(), perm, own, not first)
        assert torch.equal(back.cpu(), x), shape


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_step_of_adam_is_one_kernel(amsgrad: bool) -> None:
    x = torch.nn.Parameter(rand(8, 8))
    optimizer = torch.optim.AdamW([x], lr=0.1, weight_decay=0.01, amsgrad=amsgrad)
    var, m, v = x.detach().clone().npu(), *(torch.zeros(8, 8).npu() for _ in range(2))
    largest = torch.zeros(8, 8).npu() if amsgrad else None
    for step in range(3):
        x.grad = rand(8, 8) * (step + 1)
        optimizer.step()
        powers = 0.9**step, 0.999**step
        events = clock.record()
        torch_npu.npu_apply_adam_w(
            *(*powers, 0.1, 0.01, 0.9, 0.999, 1e-8, x.grad.npu(), largest, amsgrad, False),
            out=(var, m, v),
        )
        clock.stop(events)
        assert [event.name for event in events if event.is_kernel] == ["ApplyAdamW"]
        torch.testing.assert_close(var.cpu(), x.detach(), rtol=1e-5, atol=1e-5)


def test_places_become_ones() -> None:
    places = torch.tensor([2, 0, 1], dtype=torch.int32)
    found = torch_npu.npu_one_hot(places.npu(), depth=4, on_value=2, off_value=-1)
    wanted = functions.one_hot(places.long(), 4).float() * 3 - 1
    assert torch.equal(found.cpu(), wanted)


def test_scores_are_scaled_and_masked() -> None:
    x, mask = rand(2, 3, 8, 8).half(), rand(2, 1, 8, 8) > 0
    found = torch_npu.npu_scaled_masked_softmax(x.npu(), mask.npu(), 0.5)
    wanted = torch.softmax((x.float() * 0.5).masked_fill(mask, -10000.0), -1).half()
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)
    found = torch_npu.npu_scaled_masked_softmax(x.npu(), mask.npu(), 0.5, True)
    upper = torch.ones(8, 8, dtype=torch.bool).triu(1)
    wanted = torch.softmax((x.float() * 0.5).masked_fill(upper, -10000.0), -1).half()
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)


def test_a_sum_is_normed_in_place() -> None:
    x1, x2, gamma = rand(6, 64), rand(6, 64) * 2, rand(64)
    y, rstd, x = torch_npu.npu_add_rms_norm(x1.npu(), x2.npu(), gamma.npu())
    found = torch_npu.npu_add_rms_norm_v2_functional(x1.npu(), x2.npu(), gamma.npu())
    assert all(map(torch.equal, found, (rstd, y, x)))
    first, second = x1.npu(), x2.npu()
    assert torch.equal(torch_npu.npu_add_rms_norm_v2(first, second, gamma.npu()), rstd)
    assert torch.equal(first, y)
    assert torch.equal(second, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_gemma_are_one_more(dtype: Any) -> None:
    x, gamma = rand(6, 64).to(dtype), rand(64).to(dtype)
    y, _ = torch_npu.npu_gemma_rms_norm(x.npu(), gamma.npu())
    wide = x.float()
    wanted = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * (gamma.float() + 1)
    assert y.dtype == dtype
    torch.testing.assert_close(y.cpu().float(), wanted, rtol=1e-2, atol=1e-2)


# ---- a vocabulary that lies on several cards ----


def test_a_loss_over_two_parts_of_a_vocabulary_is_that_of_all() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 16).half(), torch.randn(256, 16).half()
    target = torch.randint(0, 256, (9,), dtype=torch.int32)
    parts = [
        torch_npu.npu_fused_linear_online_max_sum(
            x.npu(), weight[first : first + 128].npu(), target.npu(), first, first + 127, True
        )
        for first in (0, 128)
    ]
    largest = torch.maximum(parts[0][0], parts[1][0])
    total = sum(part[1] * (part[0] - largest).exp() for part in parts)
    is_here = target.npu() < 128
    within = [part[2] + part[0] - largest for part in parts]
    predicted = torch.where(is_here, *within)
    wide = (x.double() @ weight.double().t()).requires_grad_()
    want = torch.nn.functional.cross_entropy(wide, target.long(), reduction="none")
    loss, shares = torch_npu.npu_fused_cross_entropy_loss_with_max_sum(
        largest, total, predicted, vocab_parallel_logits=parts[0][5]
    )
    near(loss, want, 2e-3)
    grad = torch.randn(9)
    (of_logits,) = torch.autograd.grad(want, wide, grad.double())
    assert torch.equal(parts[0][3].cpu(), _bits(target >= 128))
    for found in (
        torch_npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
            grad.npu(), x.npu(), weight[:128].npu(), parts[0][3], parts[0][4], **given
        )
        for given in (
            {"softmax": shares},
            {"logits_max": largest, "sum_exp_logits": total},
        )
    ):
        near(found[0], of_logits[:, :128] @ weight[:128].double(), 2e-2)
        near(found[1], of_logits[:, :128].t() @ x.double(), 2e-2)


def near(found: Any, want: Any, step: float) -> None:
    torch.testing.assert_close(found.cpu().double(), want.detach(), rtol=step, atol=step)


def _bits(flags: Any) -> Any:
    """Eight flags to a byte, the first its highest bit; ones behind them."""
    text = "".join(str(int(flag)) for flag in flags.tolist()).ljust(16, "1")
    return torch.tensor([int(text[:8], 2), int(text[8:], 2)], dtype=torch.uint8)


def test_a_loss_takes_no_smoothing() -> None:
    x = torch.ones(2).npu()
    with pytest.raises(RuntimeError, match="label_smoothing must be 0, as its document says"):
        torch_npu.npu_fused_cross_entropy_loss_with_max_sum(x, x, x, label_smoothing=0.1)


def test_no_flag_of_an_overflow_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = torch_npu.npu_alloc_float_status(torch.ones(1).npu())
    found = torch_npu.npu_get_float_status(flags)
    assert (found.dtype, found.tolist()) == (torch.int32, [0] * 8)
    cleared = torch_npu.npu_clear_float_status(flags)
    assert (cleared.dtype, cleared.tolist()) == (torch.float32, [0] * 8)
    monkeypatch.setattr(legacy.card, "spec", lambda: devices.load("ascend310p3"))
    with pytest.raises(NotImplementedError) as caught:
        torch_npu.npu_get_float_status(flags)
    assert str(caught.value) == (
        "npusim.torch: npu_get_float_status must not be called on Atlas inference; look for the "
        "largest value"
    )


def test_copies_of_strided_views_and_into_others() -> None:
    x = rand(4, 6)
    found = torch_npu.npu_stride_copy(x.npu(), [3, 2], [6, 2], 1)
    assert torch.equal(found.cpu(), x.flatten()[1:].as_strided((3, 2), (6, 2), 1))
    own = torch.zeros(4, 6).npu()
    assert torch.equal(torch.ops.npu.npu_view_copy(own, x.npu(), False).cpu(), x)
    assert torch.equal(own.cpu(), x)
    assert torch_npu.one_(own).cpu().eq(1).all()


def test_convolutions_over_three_axes_and_into_a_tensor() -> None:
    x, weight = rand(1, 2, 4, 5, 5), rand(3, 2, 2, 3, 3)
    found = torch_npu.npu_conv3d(x.npu(), weight.npu(), None, [1, 1, 1], [0, 1, 1], [1, 1, 1], 1)
    wanted = functions.conv3d(x, weight, None, 1, (0, 1, 1))
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)
    out = torch.empty(wanted.shape).npu()
    torch.ops.npu.npu_conv3d.out(
        x.npu(), weight.npu(), None, [1, 1, 1], [0, 1, 1], [1, 1, 1], 1, out=out
    )
    assert torch.equal(out, found)
