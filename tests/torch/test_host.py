"""What the host computes where neither npusim nor torch's CPU has a kernel: values and counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from simulated_card import recorded, torch, torch_npu

from npusim.torch.clock import clock

Tensor = Any


def on_card(module: Any, *tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The first result of *module* on npu, and the gradients of its sum, on the host."""
    leaves = [x.npu().requires_grad_() for x in tensors]
    found = module.npu()(*leaves)
    found = found[0] if isinstance(found, tuple) else found
    (found * torch.arange(found.numel()).npu().reshape(found.shape)).sum().backward()
    parameters = [x.grad.cpu() for x in module.parameters()]
    return found.detach().cpu(), [*(x.grad.cpu() for x in leaves), *parameters]


def on_host(module: Any, *tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    found = module(*leaves)
    found = found[0] if isinstance(found, tuple) else found
    (found * torch.arange(found.numel()).reshape(found.shape)).sum().backward()
    return found.detach(), [each.grad.clone() for each in (*leaves, *module.parameters())]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_networks_are_those_of_the_cpu_with_their_gradients(
    kind: str, bias: bool
) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(5, 4, num_layers=2, bias=bias)
    x = torch.randn(3, 2, 5)
    want, grads = on_host(module, x)
    module.zero_grad()
    found, own = on_card(module, x)
    torch.testing.assert_close(found, want)
    for mine, theirs in zip(own, grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_batch_norm_across_cards_is_one_of_all_that_they_have() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 4), torch.randn(5, 3, 4)]
    whole, counts = torch.cat(parts), torch.tensor([8.0, 20.0])
    running = torch.zeros(3), torch.ones(3)
    want = torch.nn.functional.batch_norm(whole, *running, training=True, momentum=0.1)
    each = [torch.batch_norm_stats(x.npu(), 1e-5) for x in parts]
    means, invstds = (torch.stack(found) for found in zip(*each, strict=True))
    followed = torch.zeros(3).npu(), torch.ones(3).npu()
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0].npu(), means, invstds, *followed, 0.1, 1e-5, counts.npu()
    )
    found = torch.batch_norm_elemt(whole.npu(), None, None, mean, invstd, 1e-5)
    torch.testing.assert_close(found.cpu(), want)
    for mine, theirs in zip(followed, running, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    sums = [torch_npu.batch_norm_reduce(x.npu(), 1e-5) for x in parts]
    totals, squares = (torch.stack(found) for found in zip(*sums, strict=True))
    again = torch_npu.batch_norm_gather_stats_update(
        parts[0].npu(), totals, squares, None, None, 0.1, 1e-5, counts.npu()
    )
    for mine, theirs in zip(again, (mean, invstd), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu())


def test_the_gradient_of_a_batch_norm_is_found_in_two_parts() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(6, 3, 4)
    torch.nn.functional.batch_norm(x, None, None, weight, bias, True).backward(grad.double())
    own, dy, scale = (each.detach().float().npu() for each in (x, grad, weight))
    mean, invstd = torch.batch_norm_stats(own, 1e-5)
    total, with_x, of_weight, of_bias = torch.batch_norm_backward_reduce(
        dy, own, mean, invstd, scale, True, True, True
    )
    count = torch.tensor([24], dtype=torch.int32).npu()
    found = torch.batch_norm_backward_elemt(dy, own, mean, invstd, scale, total, with_x, count)
    for mine, theirs in ((found, x), (of_weight, weight), (of_bias, bias)):
        torch.testing.assert_close(mine.cpu(), theirs.grad.float())


def test_statistics_need_channels() -> None:
    with pytest.raises(RuntimeError, match=r"^The dim input tensor must more than 1\nbatch_norm_"):
        torch_npu.batch_norm_reduce(torch.ones(3).npu(), 1e-5)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_the_gradient_of_a_renorm_is_that_of_float64(p: float) -> None:
    torch.manual_seed(0)
    x, grad = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    wide = x.double().requires_grad_()
    torch.renorm(wide, p, 1, 0.8).backward(grad.double())
    found = torch_npu.npu_renorm_backward(grad.npu(), x.npu(), p, 1, 0.8)
    torch.testing.assert_close(found.cpu(), wide.grad.float())


def test_a_renorm_of_power_0_counts_what_is_not_zero() -> None:
    x = torch.tensor([[1.0, 0.0, 3.0], [0.0, 5.0, 0.0]])
    found = torch.renorm(x.npu(), 0, 0, 1.0).cpu()
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.0, 1.5], [0.0, 5.0, 0.0]]))


# ---- boxes: examples of the documents, and equations written out for one pair ----


def close(found: Tensor, want: list[Any], step: float = 1e-4) -> None:
    torch.testing.assert_close(found.cpu().double(), torch.tensor(want).double(), rtol=step,
                               atol=step, equal_nan=True)  # fmt: skip


def test_examples_of_documents() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [10, 10, 20, 20], [32, 32, 38, 42]]).half().npu()
    true = torch.tensor([[0, 0, 10, 20], [0, 10, 10, 10], [10, 10, 20, 20]]).half().npu()
    found = torch_npu.npu_iou(boxes, true, 0)
    close(found, [[0.4985, 0, 0], [0, 0, 0], [0, 0.9961, 0]])
    rois = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]]).npu()
    deltas = torch.tensor([[5.0, 6, 7, 8], [7, 8, 9, 6]]).npu()
    scale = (0, 0, 0, 0, 1, 1, 1, 1)
    found = torch_npu.npu_bounding_box_decode(rois, deltas, *scale, (10, 10), 0.1)
    close(found, [[2.5, 6.5, 9, 9], [9, 9, 9, 9]])
    found = torch_npu.npu_bounding_box_encode(rois, deltas, 0, 0, 0, 0, 0.1, 0.1, 0.2, 0.2)
    close(found, [[13.3281, 13.3281, 0, 0], [13.3281, 6.6641, 0, math.nan]])
    pixels = torch.arange(1.0, 37).reshape(1, 1, 6, 6).npu()
    roi = torch.tensor([[0, -2.0, -2.0, 22.0, 22.0]]).npu()
    found = torch_npu.npu_roi_align(pixels, roi, 0.25, 3, 3, 2, 0)
    close(found, [[[[4.5, 6.5, 8.5], [16.5, 18.5, 20.5], [28.5, 30.5, 32.5]]]])
    proposals = torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.6], [6.0, 7.0, 8.0, 9.0, 0.4]]).npu()
    _, places, mask = torch_npu.npu_nms_with_mask(proposals, 0.5)
    assert (places.tolist(), mask.tolist()) == ([0, 1], [1, 1])


def test_gradients_of_overlaps_are_those_of_small_steps() -> None:
    torch.manual_seed(0)
    own, true = 4 + torch.rand(4, 3), 4 + torch.rand(4, 3)
    for function in (torch_npu.npu_giou, torch_npu.npu_diou):

        def of(a: Tensor, b: Tensor, function: Any = function) -> Tensor:
            return function(a.npu(), b.npu(), trans=True).sum().cpu()

        leaves = own.npu().requires_grad_(), true.npu().requires_grad_()
        function(*leaves, trans=True).sum().backward()
        for leaf, place in zip(leaves, (0, 1), strict=True):
            step = torch.zeros(4, 3)
            step[1, 2] = 1e-2
            pairs = [(own + s, true) if place == 0 else (own, true + s) for s in (step, -step)]
            slope = (of(*pairs[0]) - of(*pairs[1])) / 2e-2
            assert leaf.grad[1, 2].item() == pytest.approx(slope.item(), abs=2e-3)


def test_what_a_gradient_does_not_take_is_refused() -> None:
    boxes = torch.ones(4, 2).npu()
    with pytest.raises(RuntimeError, match="npu_giou: trans must be True, is_cross False and mode"):
        torch_npu.npu_giou(boxes, boxes)
    with pytest.raises(NotImplementedError, match="no gradient must go through it"):
        torch_npu.npu_ciou(boxes.requires_grad_(), boxes).sum().backward()


def test_a_turned_box_shares_what_lies_in_both() -> None:
    square = torch.tensor([[[0.0, 0.0, 2.0, 2.0, 0.0]]])
    diamond = torch.tensor([[[0.0, 0.0, 2.0, 2.0, 45.0]]])
    octagon = 8 * (math.sqrt(2) - 1)
    close(torch_npu.npu_rotated_overlaps(square.npu(), diamond.npu()), [[[octagon]]])
    share = octagon / (8 - octagon)
    close(torch_npu.npu_rotated_iou(square.npu(), diamond.npu()), [[[share]]])


def test_a_box_comes_back_from_its_deltas() -> None:
    anchor = torch.tensor([[[44.0], [9.0], [88.0], [25.0], [30.0]]]).npu()
    box = torch.tensor([[[39.0], [1.0], [78.0], [29.0], [-50.0]]]).npu()
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).npu()
    deltas = torch_npu.npu_rotated_box_encode(anchor, box, weight)
    close(torch_npu.npu_rotated_box_decode(anchor, deltas, weight), box.tolist())


def test_the_best_boxes_stay() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3], [9, 9, 12, 12], [5, 5, 6, 6]]).npu()
    scores = torch.tensor([0.5, 0.9, 0.8, 0.1]).npu()
    places, count = torch_npu.npu_nms_v4(
        boxes, scores, 3, torch.tensor(0.5).npu(), torch.tensor(0.3).npu()
    )
    assert (places.tolist(), count.item()) == ([1, 2, 0], 2)


@pytest.mark.parametrize("mode", [0, 1])
def test_the_best_turned_boxes_stay(mode: int) -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4, 45], [0, 0, 4, 4, 0], [9, 9, 2, 2, 10], [0, 0, 4, -4, 0]])
    if mode == 1:
        x, y, w, h, angle = boxes.unbind(1)
        boxes = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2, angle], 1)
    scores = torch.tensor([0.5, 0.9, 0.8, 0.7])
    places, count = torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), 0.5, mode=mode)
    assert (places.tolist(), count.tolist()) == ([1, 2, 3], [3])
    places, _ = torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), 0.8, 0.6, 2, mode)
    assert places.tolist() == [1, 2]


# ---- bits, ranges, counts ----


def test_signs_become_bits_and_come_back() -> None:
    x = torch.tensor([1.0, -1, 2, -2, 0, -3, 4, -5, 6])
    packed = torch_npu.npu_sign_bits_pack(x.npu(), 1)
    assert packed.tolist() == [[0b01010101, 1]]
    back = torch_npu.npu_sign_bits_unpack(packed[0], 1, torch.float16).cpu()
    assert torch.equal(back[0, :9], torch.where(x < 0, -1.0, 1.0).half())
    with pytest.raises(RuntimeError, match="npu_sign_bits_pack: input must have one axis, and a"):
        torch_npu.npu_sign_bits_pack(x.npu(), 3)


def test_ranges_are_filled() -> None:
    x, value = torch.zeros(2, 3, 4).npu(), torch.tensor([7.0]).npu()
    start, end = torch.tensor([[0, 2]]).npu(), torch.tensor([[1, 4]]).npu()
    found = torch_npu.npu_masked_fill_range(x, start, end, value, 2).cpu()
    want = torch.zeros(2, 3, 4)
    want[0, :, 0], want[1, :, 2:] = 7, 7
    assert torch.equal(found, want)


def test_each_is_one_operation_without_a_time_by_its_own_name() -> None:
    boxes = torch.ones(2, 4).npu()
    before = clock.not_timed["npu.npu_iou.default"]
    _, events = recorded(lambda: torch_npu.npu_iou(boxes, boxes))
    assert events == ["npu.npu_iou.default"]
    assert clock.not_timed["npu.npu_iou.default"] == before + 1


def test_tensors_of_the_host_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="npu_iou: its tensors must lie on the npu, not"):
        torch_npu.npu_iou(torch.ones(2, 4), torch.ones(2, 4))


@pytest.mark.parametrize("dim", [2, -3])
def test_an_axis_that_is_not_there_is_refused(dim: int) -> None:
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.ones(2, 3).npu().sum(dim)


def test_indices_of_int32_are_taken() -> None:
    scores = torch.randn(4, 3).npu()
    target = torch.tensor([0, 2, 1, 2])
    want = torch.nn.functional.nll_loss(scores.cpu(), target)
    found = torch.nn.functional.nll_loss(scores, target.int().npu())
    torch.testing.assert_close(found.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_one_hot_has_the_type_of_its_indices(dtype: Any) -> None:
    index = torch.tensor([[0, 3], [1, 0]])
    for classes in (-1, 5):
        found = torch.nn.functional.one_hot(index.to(dtype).npu(), classes).cpu()
        assert found.dtype == dtype
        assert torch.equal(found.long(), torch.nn.functional.one_hot(index, classes))


@pytest.fixture
def compatible() -> Any:
    torch_npu.npu.use_compatible_impl(True)
    yield
    torch_npu.npu.use_compatible_impl(False)


@pytest.mark.usefixtures("compatible")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_exact_on_demand(approximate: str) -> None:
    x = torch.linspace(-4, 4, 99)
    wide = x.double().requires_grad_()
    want = torch.nn.functional.gelu(wide, approximate=approximate)
    want.sum().backward()
    own = x.npu().requires_grad_()
    found = torch.nn.functional.gelu(own, approximate=approximate)
    found.sum().backward()
    torch.testing.assert_close(found.cpu(), want.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.grad.cpu(), wide.grad.float(), rtol=1e-5, atol=2e-6)


def test_the_gradient_of_mish_is_rounded_once() -> None:
    x = torch.linspace(-4, 4, 999).half()
    wide = x.double().requires_grad_()
    torch.nn.functional.mish(wide).sum().backward()
    own = x.npu().requires_grad_()
    torch.nn.functional.mish(own).sum().backward()
    torch.testing.assert_close(own.grad.cpu(), wide.grad.half(), rtol=2**-10, atol=2**-20)


def test_what_a_card_takes_of_whole_numbers_and_of_the_host() -> None:
    x = torch.arange(-4, 5, dtype=torch.int32)
    for inplace in (False, True):
        found = torch.nn.functional.hardsigmoid(x.npu(), inplace)
        assert found.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    first, second = torch.zeros(2).npu(), torch.zeros(2)
    torch._foreach_copy_([first, second], [torch.ones(2).npu(), torch.ones(2)])
    assert (first.tolist(), second.tolist()) == ([1, 1], [1, 1])


def test_a_step_of_adam_before_the_first_divides_by_zero() -> None:
    var, m, v, grad = (torch.full((2,), value) for value in (1.0, 0.0, 0.0, 2.0))
    out = tuple(x.npu() for x in (var, m, v))
    torch_npu.npu_apply_adam(1, 1, 0.2, 0.5, 0.5, 0.1, grad.npu(), False, False, out=out)
    assert out[0].isnan().all()
    assert [x.tolist() for x in out[1:]] == [[1, 1], [2, 2]]


def test_indices_on_the_card_are_taken_for_a_tensor_of_the_host() -> None:
    x, values = torch.zeros(4), torch.tensor([7.0, 8.0])
    x.index_put_((torch.tensor([1, 3]).npu(),), values)
    assert x.tolist() == [0, 7, 0, 8]


def test_half_types_and_int32_at_once() -> None:
    x = torch.tensor([[0.1, 0.2, 0.4, 0.8]]).half()
    target = torch.tensor([[3, 0, -1, 1]])
    want = torch.nn.functional.multilabel_margin_loss(x.double(), target)
    found = torch.nn.functional.multilabel_margin_loss(x.npu(), target.int().npu())
    torch.testing.assert_close(found.cpu(), want.half())
    square = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).half()
    found = torch.inverse(square.npu()).cpu()
    torch.testing.assert_close(found, torch.inverse(square.double()).half())


def test_a_convolution_of_the_cpus_own_library() -> None:
    x, weight, bias = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(3)
    want = torch.nn.functional.conv2d(x, weight, bias, stride=2, padding=1)
    for dtype, step in ((torch.float32, 1e-5), (torch.float16, 1e-2)):
        given = (each.to(dtype).npu() for each in (x, weight, bias))
        found = torch._nnpack_spatial_convolution(*given, padding=[1, 1], stride=[2, 2])
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu().float(), want, rtol=step, atol=step)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_the_gradient_of_what_widens_is_narrow(name: str) -> None:
    x, grad = torch.randn(4, 6).half(), torch.randn(4, 6)
    leaf = x.double().requires_grad_()
    want = getattr(torch, name)(leaf, 0, False)
    want.backward(grad.double())
    output = getattr(torch, name)(x.npu(), 0, True)
    assert output.dtype == torch.float32
    back = getattr(torch, f"{name}_backward_data")
    found = back(grad.npu(), output, 0, torch.float16)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.cpu(), leaf.grad.half(), rtol=2e-3, atol=2e-3)


def adam_step(dtype: Any, device: str, *, lr: float, betas: tuple[float, float]) -> list[Any]:
    """A parameter, its averages and their steps after two steps of the fused AdamW."""
    own = np.random.default_rng(0)
    parameter, *grads = (
        torch.from_numpy(own.normal(size=300).astype(np.float32)).to(dtype).to(device)
        for _ in range(3)
    )
    state = [torch.zeros_like(parameter) for _ in range(3)]
    for step, grad in enumerate(grads, 1):
        torch._fused_adamw_(
            [parameter], [grad], *([x] for x in state), [torch.tensor(float(step)).to(device)],
            lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=0.01, eps=1e-8, amsgrad=True,
            maximize=False,
        )  # fmt: skip
    return [parameter, *state]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.bfloat16, 2.0**-6)])
def test_the_fused_adamw_is_near_that_of_torch(dtype: Any, rtol: float) -> None:
    given = {"lr": 0.1, "betas": (0.9, 0.999)}
    for found, expected in zip(
        adam_step(dtype, "npu", **given), adam_step(dtype, "cpu", **given), strict=True
    ):
        torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=1e-6)


def test_the_fused_adamw_rounds_ties_of_bfloat16_away() -> None:
    # Without averages a step is that of the sign: 1 + 2**-8 is between two bfloat16.
    for dtype, expected in ((torch.bfloat16, 1 + 2.0**-7), (torch.float16, 1 + 2.0**-8)):
        parameter, grad = (torch.tensor([x], dtype=dtype).npu() for x in (1 + 2.0**-7, 3.0))
        zeros = [torch.zeros_like(parameter)]
        torch._fused_adamw_(
            [parameter], [grad], zeros, [zeros[0].clone()], [], [torch.tensor(1.0).npu()],
            lr=2.0**-8, beta1=0.0, beta2=0.0, weight_decay=0.0, eps=0.0, amsgrad=False,
            maximize=False,
        )  # fmt: skip
        assert parameter.item() == expected
