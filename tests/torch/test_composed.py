"""Operators of torch_npu that are made of others: values against float64, and what is launched."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from simulated_card import recorded, torch, torch_npu

from npusim import OpError
from npusim.torch import composed

STENCIL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
Tensor = Any


def half(*shape: int, dtype: Any = torch.float16) -> Tensor:
    return torch.randn(shape).to(dtype)


def close(found: Tensor, expected: Tensor, step: float) -> None:
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=step, atol=step)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor | None = None) -> Tensor:
    """Of `(..., heads, tokens, columns)` in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v


def causal(tokens: int, keys: int) -> Tensor:
    return torch.ones(tokens, keys, dtype=torch.bool).triu(1 + keys - tokens)


def turned_to(layout: str, x: Tensor) -> Tensor:
    """*x* `(requests, heads, tokens, columns)` in *layout*."""
    if layout == "BNSD":
        return x
    x = x.transpose(1, 2)
    if layout == "TND":
        return x.flatten(0, 1).contiguous()
    x = x.transpose(0, 1) if layout == "SBH" else x
    return (x.flatten(2) if layout[-1] == "H" else x).contiguous()


# ---- attention for training ----


def fusion(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Any, ...]:
    given = {name: x.npu() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    found: tuple[Any, ...] = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), q.shape[1], "BNSD", scale=0.125, **given
    )
    return found


def test_what_one_kernel_does_comes_with_an_empty_tensor_and_three_numbers() -> None:
    q, k, v = half(2, 4, 20, 64), half(2, 2, 30, 64), half(2, 2, 30, 64)
    (output, largest, total, none, *numbers), kernels = recorded(lambda: fusion(q, k, v))
    assert kernels == ["npu_fusion_attention"]
    close(output, attend(q, k, v, 0.125), 2**-9)
    assert largest.shape == total.shape == (2, 4, 20, 8)
    assert (none.shape, none.dtype, numbers) == ((0,), torch.float16, [0, 0, 2 * 4 * 20 * 30])


@pytest.mark.parametrize(("kind", "step"), [(torch.float16, 2**-9), (torch.float32, 1e-5)])
def test_a_bias_is_scaled_with_the_scores_or_not(kind: Any, step: float) -> None:
    q, k, v = (half(2, 4, 20, 64, dtype=kind) for _ in range(3))
    pse = half(2, 4, 20, 20, dtype=kind)
    scores = q.double() @ k.double().transpose(-1, -2)
    found, *_ = fusion(q, k, v, pse=pse)
    close(found, ((scores + pse.double()) * 0.125).softmax(-1) @ v.double(), step)
    found, *_ = torch_npu.npu_fusion_attention_v2(
        q.npu(), k.npu(), v.npu(), 4, "BNSD", pse=pse.npu(), scale=0.125, pse_type=0
    )
    close(found, (scores * 0.125 + pse.double()).softmax(-1) @ v.double(), step)


def test_a_sink_is_one_more_score_of_each_head() -> None:
    q, k, v = (half(2, 4, 20, 64) for _ in range(3))
    sink = torch.randn(4)
    scores = q.double() @ k.double().transpose(-1, -2) * 0.125
    column = sink.double()[:, None, None].expand(2, 4, 20, 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    close(fusion(q, k, v, sink=sink)[0], weights @ v.double(), 2**-9)


def test_what_the_parts_do_not_do_either_the_kernel_refuses() -> None:
    q, k, v = (torch.randn(1, 1, 8, 64) for _ in range(3))
    with pytest.raises(OpError, match=r"query must be float16 or bfloat16, not float32"):
        fusion(q, k, v, sparse_mode=7, atten_mask=STENCIL)


@pytest.mark.parametrize("mode", [0, 2, 3, 4, 6])
def test_its_parts_hide_as_the_kernel_does(mode: int) -> None:
    tokens, keys = 20, 30
    q, k, v = (torch.randn(2, 4, n, 64) for n in (tokens, keys, keys))
    apart = torch.arange(keys) - torch.arange(tokens)[:, None]
    mask, hidden = STENCIL, apart > keys - tokens
    given: dict[str, Any] = {"sparse_mode": mode}
    if mode == 0:
        mask = hidden = torch.rand(2, 4, tokens, keys) < 0.3
    elif mode == 2:
        hidden = apart > 0
    elif mode == 4:
        given |= {"pre_tockens": 5, "next_tockens": 1}
        hidden = (apart > 11) | (apart < 5)
    elif mode == 6:
        given["prefix"] = [10, 17]
        prefixes = torch.tensor([10, 17])[:, None, None, None]
        hidden = (apart > keys - tokens) & (torch.arange(keys) >= prefixes)
    output, _, total, *_ = fusion(q, k, v, atten_mask=mask, **given)
    close(output, attend(q, k, v, 0.125, hidden), 1e-5)
    assert total.shape == (2, 4, tokens, 8)


@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "TND"])
def test_its_parts_know_all_layouts(layout: str) -> None:
    q, k, v = torch.randn(2, 4, 6, 32), torch.randn(2, 2, 6, 32), torch.randn(2, 2, 6, 32)

    sums = {"actual_seq_qlen": [6, 12], "actual_seq_kvlen": [6, 12]} if layout == "TND" else {}
    given = (turned_to(layout, x).npu() for x in (q, k, v))
    output, _, total, *_ = torch_npu.npu_fusion_attention(*given, 4, layout, scale=0.2, **sums)
    close(output, turned_to(layout, attend(q, k, v, 0.2)), 1e-5)
    assert total.shape == ((12, 4, 8) if layout == "TND" else (2, 4, 6, 8))


def test_dropout_draws_the_same_mask_after_the_same_seed() -> None:
    q, k, v = (half(1, 2, 16, 64) for _ in range(3))
    torch.npu.manual_seed(7)
    (first, *_, seed, offset, count), kernels = recorded(lambda: fusion(q, k, v, keep_prob=0.8))
    assert kernels == ["npu_fusion_attention"]
    second, *_ = fusion(q, k, v, keep_prob=0.8)
    assert (seed, offset, count) == (7, 0, 512)
    assert not torch.equal(first.cpu(), second.cpu())

    bits = torch_npu._npu_dropout_gen_mask(q.npu(), [count], p=0.2, seed=7, offset=0)
    kept = np.unpackbits(bits.cpu().numpy(), count=count, bitorder="little")
    assert 0.7 < kept.mean() < 0.9
    weights = (q.double() @ k.double().transpose(-1, -2) * 0.125).softmax(-1)
    dropped = weights * torch.from_numpy(kept).reshape(weights.shape) / 0.8
    close(first, dropped @ v.double(), 2**-8)
    again, *_ = fusion(q, k, v, keep_prob=0.8, dropout_mask=bits.cpu(), seed=7)
    assert torch.equal(first.cpu(), again.cpu())


def gradients(output: Tensor, inputs: tuple[Tensor, ...], back: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.autograd.grad(output, inputs, back)
    return found


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "SBH", "BSND", "TND"])
@pytest.mark.parametrize(
    ("kind", "step"), [(torch.float16, 2**-8), (torch.bfloat16, 2**-5), (torch.float32, 1e-5)]
)
def test_backward_finds_the_gradients_of_query_key_and_value(
    layout: str, kind: Any, step: float
) -> None:
    q, k, v, back = (half(2, n, 20, 64, dtype=kind) for n in (4, 2, 2, 4))
    exact = x, y, z = tuple(x.double().requires_grad_() for x in (q, k, v))
    hidden = causal(20, 20)
    wanted = gradients(attend(x, y, z, 0.125, hidden), exact, back.double())
    inputs = tuple(turned_to(layout, x).npu().requires_grad_() for x in (q, k, v))
    sums = {"actual_seq_qlen": [20, 40], "actual_seq_kvlen": [20, 40]} if layout == "TND" else {}
    output, *_ = torch_npu.npu_fusion_attention(
        *inputs, 4, layout, scale=0.125, atten_mask=hidden.npu(), **sums
    )
    found = gradients(output, inputs, turned_to(layout, back).npu())
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == kind
        close(mine, turned_to(layout, theirs), step)


@pytest.mark.parametrize("layout", ["", "TND"])
def test_backward_knows_how_sums_of_requests_of_many_lengths_lie(layout: str) -> None:
    q, k, v, back = (half(20, 4, 64) for _ in range(4))
    exact = tuple(x.double().requires_grad_() for x in (q, k, v))
    each = []
    for part in (slice(7), slice(7, 20)):
        x, y, z = (x[part].transpose(0, 1) for x in exact)
        each.append(attend(x, y, z, 0.125))
    wanted = gradients(torch.cat(each, 1).transpose(0, 1), exact, back.double())
    inputs = tuple(x.npu().requires_grad_() for x in (q, k, v))
    output, *_ = torch_npu.npu_fusion_attention(
        *inputs, 4, "TND", scale=0.125, actual_seq_qlen=[7, 20], actual_seq_kvlen=[7, 20],
        softmax_layout=layout,
    )  # fmt: skip
    for mine, theirs in zip(gradients(output, inputs, back.npu()), wanted, strict=True):
        close(mine, theirs, 2**-8)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("kind", [0, 1])
def test_backward_finds_the_gradients_of_a_bias_and_of_rotated_parts(
    batches: int, kind: int
) -> None:
    q, k, v, back = (torch.randn(2, 4, 20, 64) for _ in range(4))
    pse, ropes = torch.randn(batches, 4, 20, 20), [torch.randn(2, 4, 20, 32) for _ in range(2)]
    names = ("query", "key", "value", "pse", "query_rope", "key_rope")
    each = dict(zip(names, (q, k, v, pse, *ropes), strict=True))
    exact = {name: x.double().requires_grad_() for name, x in each.items()}
    left, right = (torch.cat([exact[x], exact[f"{x}_rope"]], -1) for x in ("query", "key"))
    scores, bias = left @ right.transpose(-1, -2), exact["pse"]
    scores = (scores + bias) * 0.1 if kind else scores * 0.1 + bias
    wanted = gradients(scores.softmax(-1) @ exact["value"], tuple(exact.values()), back.double())
    inputs = {name: x.npu().requires_grad_() for name, x in each.items()}
    output, *_ = torch_npu.npu_fusion_attention_v2(
        **inputs, head_num=4, input_layout="BNSD", scale=0.1, pse_type=kind
    )
    for mine, theirs in zip(
        gradients(output, tuple(inputs.values()), back.npu()), wanted, strict=True
    ):
        close(mine, theirs, 1e-4)


def test_backward_finds_the_gradient_of_a_sink() -> None:
    q, k, v, back = (half(2, 4, 20, 64) for _ in range(4))
    sink, exact = torch.randn(4), tuple(x.double().requires_grad_() for x in (q, k, v))
    place = sink.double().requires_grad_()
    scores = exact[0] @ exact[1].transpose(-1, -2) * 0.125
    column = place[:, None, None].expand(2, 4, 20, 1)
    weights = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    wanted = gradients(weights @ exact[2], (*exact, place), back.double())
    inputs = tuple(x.npu().requires_grad_() for x in (q, k, v, sink))
    output, *_ = torch_npu.npu_fusion_attention(*inputs[:3], 4, "BNSD", scale=0.125, sink=inputs[3])
    for mine, theirs in zip(gradients(output, inputs, back.npu()), wanted, strict=True):
        close(mine, theirs, 2**-6)


def test_backward_of_dropout_draws_the_mask_of_forward() -> None:
    q, k, v, back = (torch.randn(1, 2, 16, 64) for _ in range(4))
    inputs = tuple(x.npu().requires_grad_() for x in (q, k, v))
    torch.npu.manual_seed(7)
    output, *_, seed, offset, count = torch_npu.npu_fusion_attention(
        *inputs, 2, "BNSD", scale=0.125, keep_prob=0.8
    )
    bits = torch_npu._npu_dropout_gen_mask(q.npu(), [count], p=0.2, seed=seed, offset=offset)
    kept = np.unpackbits(bits.cpu().numpy(), count=count, bitorder="little")
    exact = tuple(x.double().requires_grad_() for x in (q, k, v))
    weights = (exact[0] @ exact[1].transpose(-1, -2) * 0.125).softmax(-1)
    dropped = weights * torch.from_numpy(kept).reshape(weights.shape) / 0.8
    wanted = gradients(dropped @ exact[2], exact, back.double())
    for mine, theirs in zip(gradients(output, inputs, back.npu()), wanted, strict=True):
        close(mine, theirs, 1e-4)


def test_backward_by_name_gives_empty_tensors_for_what_is_not_there() -> None:
    x = half(1, 2, 16, 64).npu()
    output, largest, total, *_ = fusion(x, x, x)
    saved = {"softmax_max": largest, "softmax_sum": total, "attention_in": output}
    given = (x, x, x, x, 2, "BNSD")
    *same, pse, sink = torch_npu.npu_fusion_attention_grad(*given, **saved, scale_value=0.125)
    *again, left, _, _, _ = torch_npu.npu_fusion_attention_grad_v2(
        *given, **saved, scale_value=0.125
    )
    *third, _, _ = torch_npu.npu_fusion_attention_grad_v3(*given, **saved, scale_value=0.125)
    assert pse.shape == sink.shape == left.shape == (0,)
    assert (pse.dtype, sink.dtype) == (torch.float16, torch.float32)
    for one, other, last in zip(same, again, third, strict=True):
        assert one.shape == x.shape
        assert torch.equal(one.cpu(), other.cpu())
        assert torch.equal(one.cpu(), last.cpu())


def test_its_third_version_takes_lengths_and_returns_numbers_as_tensors() -> None:
    x = half(12, 2, 64)
    sums = {name: torch.tensor([5, 12]) for name in ("actual_seq_qlen", "actual_seq_kvlen")}
    *found, seed, offset = torch_npu.npu_fusion_attention_v3(
        x.npu(), x.npu(), x.npu(), 2, "TND", scale=0.1, **sums
    )
    same = torch_npu.npu_fusion_attention(
        x.npu(), x.npu(), x.npu(), 2, "TND", scale=0.1, actual_seq_qlen=[5, 12],
        actual_seq_kvlen=[5, 12],
    )  # fmt: skip
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, same[:4], strict=True))
    assert (seed.item(), offset.item()) == (0, 0)


# ---- attention for inference ----


def test_outputs_of_the_caller_are_written_by_the_kernel_itself() -> None:
    q = half(2, 4, 1, 64).npu()
    k = half(2, 4, 300, 64).npu()
    given = {"num_heads": 4, "input_layout": "BNSD", "scale": 0.125, "softmax_lse_flag": True}
    expected = torch_npu.npu_fused_infer_attention_score(q, k, k, **given)
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(q, k, k, **given)
    shapes = {name: value for name, value in given.items() if name != "scale"}
    out = torch_npu._npu_fused_infer_attention_score_infer_output(q, k, **shapes)
    found, kernels = recorded(
        lambda: torch_npu.npu_fused_infer_attention_score.out(
            q, k, k, workspace=workspace, out=list(out), **given
        )
    )
    assert kernels == ["npu_fused_infer_attention_score"]
    assert workspace.dtype == torch.uint8
    assert workspace.numel() > 16 * 2**20
    for ours, returned, right in zip(out, found, expected, strict=True):
        assert ours.data_ptr() == returned.data_ptr()
        assert torch.equal(ours.cpu(), right.cpu())


def test_the_second_version_writes_too() -> None:
    q = half(2, 4, 1, 64).npu()
    given = {"num_query_heads": 4, "input_layout": "BNSD", "return_softmax_lse": True}
    expected = torch_npu.npu_fused_infer_attention_score_v2(q, q, q, **given)
    out = torch_npu._npu_fused_infer_attention_score_v2_infer_output(q, q, **given)
    assert torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace(q, q, q, **given).is_npu
    torch_npu.npu_fused_infer_attention_score_v2.out(q, q, q, out=list(out), **given)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(out, expected, strict=True))


def test_a_prompt_is_attended_to() -> None:
    q, k, v = (half(1, 2, 40, 64) for _ in range(3))
    on_card = [x.npu() for x in (q, k, v)]
    given = {"num_heads": 2, "input_layout": "BNSD", "scale_value": 0.125}
    close(torch_npu.npu_prompt_flash_attention(*on_card, **given), attend(q, k, v, 0.125), 2**-9)
    # A mode from 10 on asks for fp32, which it is here in any case.
    found = torch_npu.npu_prompt_flash_attention(
        *on_card, atten_mask=STENCIL.npu(), sparse_mode=13, **given
    )
    close(found, attend(q, k, v, 0.125, causal(40, 40)), 2**-9)


@pytest.mark.parametrize("columns", [(64, 64), (128, 48), (288, 96)])
def test_pages_of_atb_are_read(columns: tuple[int, int]) -> None:
    size, width = columns
    q = half(3, 4, size)
    caches = half(6, 128, 2, size), half(6, 128, 2, width)
    table = torch.tensor([[3, 1], [0, 5], [2, 4]], dtype=torch.int32)
    lengths = torch.tensor([200, 3, 128], dtype=torch.int32)
    out = torch.zeros(3, 4, width, dtype=torch.float16).npu()
    on_card = (x.npu() for x in (q, *caches))
    torch_npu._npu_paged_attention(*on_card, 2, 4, 0.1, table.npu(), lengths, out)
    for number, count in enumerate(lengths.tolist()):
        k, v = (x[table[number].long()].flatten(0, 1)[:count].transpose(0, 1) for x in caches)
        expected = attend(q[number][:, None], k, v, 0.1)[:, 0]
        close(out[number], expected, 2**-8)


def test_tokens_of_atb_see_those_before_them() -> None:
    q, k, v = half(9, 4, 64), half(9, 2, 64), half(9, 2, 64)
    out = torch.zeros_like(q).npu()
    lengths, mask = torch.tensor([4, 5], dtype=torch.int32), STENCIL.half().npu()
    torch_npu._npu_flash_attention(q.npu(), k.npu(), v.npu(), mask, lengths, 0.1, 4, 2, out)
    whole = torch.zeros_like(q).npu()
    torch_npu._npu_flash_attention_unpad(q.npu(), k.npu(), v.npu(), lengths, 0.1, 4, 2, whole)
    for first, last in ((0, 4), (4, 9)):
        x, y, z = (each[first:last].transpose(0, 1) for each in (q, k, v))
        hidden = causal(last - first, last - first)
        close(out[first:last], attend(x, y, z, 0.1, hidden).transpose(0, 1), 2**-8)
        close(whole[first:last], attend(x, y, z, 0.1).transpose(0, 1), 2**-8)


# ---- latent keys ----


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of neighbours, apart in the end, in float64."""
    even, odd = x[..., 0::2].double(), x[..., 1::2].double()
    turned = torch.cat([-odd, even], -1) * sin.double()
    return torch.cat([even, odd], -1) * cos.double() + turned


def norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-5) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * gamma.double()


@pytest.mark.parametrize("mode", ["Norm", "PA", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"])
def test_latent_keys_are_normed_and_rotated_into_their_caches(mode: str) -> None:
    batches, tokens, size, kind = 3, 20, 16, torch.bfloat16
    kv, gamma = half(batches, 1, tokens, 576, dtype=kind), half(512, dtype=kind)
    cos, sin = (half(batches, 1, tokens, 64, dtype=kind) for _ in range(2))
    by_block = "BLK" in mode
    index = torch.arange(batches * (2 if by_block else tokens)) * (size if by_block else 1)
    shape = (batches, 1, 30) if mode == "Norm" else (batches * 2, size, 1)
    if mode == "Norm":
        index = torch.arange(tokens).repeat(batches, 1)
    index.view(-1)[1] = -1
    caches = [torch.zeros(*shape, columns, dtype=kind).npu() for columns in (64, 512)]
    found = torch_npu.npu_kv_rmsnorm_rope_cache(
        *(x.npu() for x in (kv, gamma, cos, sin, index)), *caches, cache_mode=mode,
        is_output_kv=True,
    )  # fmt: skip
    right = rope(kv[..., 512:], cos, sin), norm(kv[..., :512], gamma)
    for ours, expected in zip(found[2:], right, strict=True):
        close(ours, expected, 2**-5)
    for cache, values in zip(caches, found[2:], strict=True):
        stored = cache.cpu().reshape(-1, cache.shape[-1])
        if mode.endswith("NZ"):
            stored = cache.cpu().reshape(batches * 2, -1, size, 16).transpose(1, 2)
            stored = stored.reshape(-1, cache.shape[-1])
        rows = values.cpu().reshape(-1, values.shape[-1])
        for row in range(batches * tokens):
            batch, token = divmod(row, tokens)
            place = int(index.reshape(-1)[batch * 2 + token // size if by_block else row])
            if place < 0:
                continue
            at = place + token % size if by_block else place
            at += batch * 30 if mode == "Norm" else 0
            assert torch.equal(stored[at], rows[row]), (row, at)


def test_latent_keys_are_one_kernel_where_it_takes_them() -> None:
    kind = torch.bfloat16
    kv, gamma, line = half(4, 1, 1, 576, dtype=kind), half(512, dtype=kind), half(4, 1, 1, 64)
    given = [x.npu() for x in (kv, gamma, line.to(kind), line.to(kind), torch.arange(4) * 3)]
    caches = [torch.zeros(2, 16, 1, n, dtype=kind).npu() for n in (64, 512)]
    run = partial(torch_npu.npu_kv_rmsnorm_rope_cache, *given, *caches, cache_mode="PA")
    found, kernels = recorded(run)
    assert kernels == ["npu_kv_rmsnorm_rope_cache"]
    assert [x.data_ptr() for x in found[:2]] == [x.data_ptr() for x in caches]
    assert [x.shape for x in found[2:]] == [(4, 1, 1, 64), (4, 1, 1, 512)]
    close(caches[1].reshape(32, 512)[0:12:3], norm(kv[..., :512], gamma).reshape(4, 512), 2**-6)
    assert not caches[1].reshape(32, 512)[1].any()
    _, kernels = recorded(partial(run, is_output_kv=True))
    assert kernels == ["npu_kv_rmsnorm_rope_cache"]


def test_what_stands_before_latent_attention_is_its_parts() -> None:
    torch.manual_seed(1)
    kind, tokens, heads, low, hidden = torch.bfloat16, 6, 4, 128, 256
    x, gammas = half(tokens, hidden, dtype=kind), (half(low, dtype=kind), half(512, dtype=kind))
    shapes = (hidden, low), (low, heads * 192), (heads, 128, 512), (hidden, 576)
    weights = [(torch.randn(shape) / shape[-2] ** 0.5).to(kind) for shape in shapes]
    sin, cos = half(tokens, 64, dtype=kind), half(tokens, 64, dtype=kind)
    index = torch.tensor([5, 40, 3, 17, 18, 2])
    caches = [torch.zeros(3, 16, 1, n, dtype=kind).npu() for n in (512, 64)]
    given = [each.npu() for each in (x, *weights, *gammas, sin, cos)]
    query, rotated, *_ = torch_npu.npu_mla_prolog_v3(*given, *caches, cache_index=index.npu())

    dq, uq, uk, dkv = (w.double() for w in weights)
    q = (norm(x.double() @ dq, gammas[0]) @ uq).reshape(tokens, heads, 192)
    close(query, torch.einsum("thd,hdc->thc", q[..., :128], uk), 0.15)
    close(rotated, rope(q[..., 128:], cos[:, None], sin[:, None]), 0.15)
    keys = x.double() @ dkv
    expected = norm(keys[:, :512], gammas[1]), rope(keys[:, 512:], cos, sin)
    for cache, right in zip(caches, expected, strict=True):
        stored = cache.cpu().reshape(48, -1)
        close(stored[index], right, 0.08)
        assert not stored[[0, 1, 4, 47]].any()
    other = [torch.zeros_like(cache) for cache in caches]
    *_, kv, kr = torch_npu.npu_mla_prolog_v3_functional(*given, *other, cache_index=index.npu())
    assert torch.equal(kv.cpu(), caches[0].cpu())
    assert torch.equal(kr.cpu(), caches[1].cpu())
    assert not other[0].any()


def test_the_best_keys_are_named_and_attended_to() -> None:
    torch.manual_seed(2)
    query, weights = half(2, 3, 8, 128), half(2, 3, 8)
    key = half(2, 40, 1, 128)
    lengths = torch.tensor([40, 33], dtype=torch.int32)
    places, scores = torch_npu.npu_lightning_indexer(
        query.npu(), key.npu(), weights.npu(), actual_seq_lengths_key=lengths.npu(),
        sparse_count=16, return_value=True,
    )  # fmt: skip
    assert places.shape == scores.shape == (2, 3, 1, 16)
    for batch, count in enumerate(lengths.tolist()):
        products = torch.relu(query[batch].double() @ key[batch, :count, 0].double().t())
        total = (products * weights[batch].double()[..., None]).sum(1)
        total = total.masked_fill(causal(3, count), -torch.inf)
        expected = total.sort(-1, descending=True).indices[:, :16]
        assert torch.equal(places[batch, :, 0].cpu().long(), expected)

    parts = half(2, 3, 4, 512), half(2, 3, 4, 64), half(2, 40, 1, 512), half(2, 40, 1, 64)
    q, q_rope, k, k_rope = (x.npu() for x in parts)
    chosen = places.clone()
    chosen[:, :, :, 12:] = -1
    output, _, _ = torch_npu.npu_sparse_flash_attention(
        q, k, k, chosen, 0.05, query_rope=q_rope, key_rope=k_rope, attention_mode=2,
        actual_seq_lengths_kv=lengths.npu(),
    )  # fmt: skip
    whole = torch.cat(parts[:2], -1), torch.cat(parts[2:], -1)[:, :, 0]
    for batch in range(2):
        for token in range(3):
            seen = places[batch, token, 0, :12].cpu().long()
            keys = whole[1][batch][seen][None]
            right = attend(whole[0][batch, token][:, None], keys, keys[..., :512], 0.05)
            close(output[batch, token], right[:, 0], 2**-8)


def test_the_best_keys_of_int8_are_named_and_attended_to() -> None:
    torch.manual_seed(3)
    tokens, heads, lengths = [2, 5], 8, [40, 33]
    query = torch.randint(-128, 128, (5, heads, 128), dtype=torch.int8)
    key = torch.randint(-128, 128, (6, 16, 1, 128), dtype=torch.int8)
    weights, query_scale, key_scale = torch.rand(5, heads), torch.rand(5, heads), torch.rand(6, 16)
    weights, query_scale, key_scale = (
        x.half() for x in (weights, query_scale, key_scale[..., None])
    )
    table = torch.tensor([[4, 0, 2], [1, 5, 3]], dtype=torch.int32)
    whole = {
        "actual_seq_lengths_query": torch.tensor(tokens, dtype=torch.int32).npu(),
        "block_table": table.npu(),
        "layout_query": "TND",
    }
    seen = torch.tensor(lengths, dtype=torch.int32).npu()
    given = [x.npu() for x in (query, key, weights, query_scale, key_scale)]
    places = torch_npu.npu_quant_lightning_indexer(
        *given, 0, 0, actual_seq_lengths_key=seen, layout_key="PA_BSND", sparse_count=16, **whole
    )
    assert places.shape == (5, 1, 16)
    factors = (weights * query_scale).numpy().astype(np.float64)
    rows = query.numpy().astype(np.int64), key.numpy().astype(np.int64)
    requests = [(0, token, 2) for token in range(2)] + [(1, token, 3) for token in range(3)]
    for row, (batch, token, count) in enumerate(requests):
        own = lengths[batch] - count + token + 1
        keys = rows[1][table[batch]].reshape(48, 128)[:own]
        products = np.maximum(rows[0][row] @ keys.T, 0)
        products = (products / 1024).astype(np.float16).astype(np.float64)
        scores = factors[row] @ products * key_scale[table[batch].long()].reshape(48)[:own].numpy()
        assert places[row, 0].tolist() == np.argsort(-scores, kind="stable")[:16].tolist()

    q = half(5, 4, 576, dtype=torch.bfloat16)
    latent = torch.randint(-128, 128, (6, 16, 1, 512), dtype=torch.int8)
    rotated, scales = half(6, 16, 1, 64, dtype=torch.bfloat16), torch.rand(6, 16, 1, 4) / 64
    packed = torch.cat([latent, rotated.view(torch.int8), scales.view(torch.int8)], -1).npu()
    modes = {"key_quant_mode": 2, "value_quant_mode": 2, "attention_mode": 2}
    found = torch_npu.npu_kv_quant_sparse_flash_attention(
        q.npu(), packed, packed, places, 0.05, actual_seq_lengths_kv=seen, layout_kv="PA_BSND",
        **modes, **whole,
    )  # fmt: skip
    exact = latent.double() * scales.double().repeat_interleave(128, -1)
    exact = torch.cat([exact, rotated.double()], -1)
    for row, (batch, _, _) in enumerate(requests):
        keys = exact[table[batch].long()].reshape(48, 576)[places[row, 0].cpu().long()][None]
        right = attend(q[row][:, None], keys, keys[..., :512], 0.05)
        close(found[row], right[:, 0], 2**-6)


def test_int8_keys_of_another_chip_are_refused() -> None:
    key, scales = torch.zeros(1, 8, 1, 128, dtype=torch.int8).npu(), half(1, 8, 1).npu()
    query = key[:, :, :1].contiguous()
    with pytest.raises(RuntimeError, match=r"^npu_quant_lightning_indexer: weights must be torch\.f"
                       r"loat16 on this chip, not torch\.bfloat16; convert it"):  # fmt: skip
        torch_npu.npu_quant_lightning_indexer(query, key, scales.bfloat16(), scales, scales, 0, 0)


def test_no_chosen_key_gives_zeros() -> None:
    q, k = half(1, 2, 4, 512).npu(), half(1, 9, 1, 512).npu()
    ropes = {"query_rope": half(1, 2, 4, 64).npu(), "key_rope": half(1, 9, 1, 64).npu()}
    none = torch.zeros(1, 2, 1, 0, dtype=torch.int32).npu()
    output, *_ = torch_npu.npu_sparse_flash_attention(q, k, k, none, 0.1, **ropes)
    assert not output.any()


# ---- experts ----


def test_rows_of_tokens_go_to_experts() -> None:
    x = torch.randn(10, 40)
    row_idx = torch.arange(20, dtype=torch.int32).reshape(2, 10).t().contiguous()
    experts = torch.randint(0, 6, (10, 2), dtype=torch.int32)
    rows, places, found = torch_npu.npu_moe_init_routing(
        x.npu(), row_idx.npu(), experts.npu(), 10
    )  # fmt: skip
    order = np.argsort(experts.reshape(-1).numpy(), kind="stable")
    sources = row_idx.reshape(-1).numpy()[order]
    assert torch.equal(rows.cpu(), x[torch.from_numpy(sources % 10).long()])
    assert [int(places[source]) for source in sources] == list(range(20))
    assert found.tolist() == sorted(experts.reshape(-1).tolist())
    counts = torch_npu.npu_moe_compute_expert_tokens(found, 7)
    assert counts.dtype == torch.int32
    assert counts.tolist() == [int((experts <= expert).sum()) for expert in range(7)]


def test_rows_of_ranks_go_to_experts() -> None:
    table = torch.tensor([[2, 0, 3], [1, 4, 0]])
    tokens, scales = half(10, 64), torch.rand(10)
    rows, moved, sources, counts = torch_npu.npu_moe_re_routing(
        tokens.npu(), table.npu(), per_token_scales=scales.npu()
    )
    order = [0, 1, 5, 6, 7, 8, 9, 2, 3, 4]
    assert sources.tolist() == order
    assert torch.equal(rows.cpu(), tokens[order])
    assert torch.equal(moved.cpu(), scales[order])
    assert counts.tolist() == [3, 4, 3]


def test_fewer_rows_than_choices_are_the_first_ones() -> None:
    tokens, indices = half(6, 32).npu(), torch.tensor([3, 0, 2, 0, 1, 2], dtype=torch.int32).npu()
    every, places = torch_npu.npu_moe_token_permute(tokens, indices)
    for number, count in ((4, 4), (-1, 5), (9, 6)):
        rows, same = torch_npu.npu_moe_token_permute(tokens, indices, number)
        assert torch.equal(rows.cpu(), every.cpu()[:count])
        assert torch.equal(same.cpu(), places.cpu())
    back, kept = torch_npu._npu_moe_token_unpermute(every, places)
    assert torch.equal(back.cpu(), tokens.cpu())
    assert kept is every


# ---- caches ----


def test_slices_are_replaced_from_each_own_place_on() -> None:
    data, updates = torch.zeros(3, 2, 8, 4), torch.randn(3, 2, 2, 4)
    starts = torch.tensor([1, 6, 0])
    expected = data.clone()
    for batch, start in enumerate(starts.tolist()):
        expected[batch, :, start : start + 2] = updates[batch]
    on_card = data.npu()
    copy = torch_npu.scatter_update(on_card, starts.npu(), updates.npu(), 2)
    assert torch.equal(copy.cpu(), expected)
    assert not on_card.any()
    pairs = torch.tensor([[2, 1], [0, 6], [1, 0]])
    found = torch_npu.scatter_update_(on_card, pairs.npu(), updates.npu(), -2)
    assert found.data_ptr() == on_card.data_ptr()
    assert torch.equal(on_card[2, :, 1:3].cpu(), updates[0])


def test_a_prefetch_has_no_kernel() -> None:
    weight = half(4, 8).npu()
    result, kernels = recorded(lambda: torch_npu.npu_prefetch(weight, None, 64))
    assert (result, kernels) == (None, [])
    message = (
        "npu_prefetch: max_size must be positive and offset lie in [0, 64), not 64 and 64; pass "
        "how many bytes of the weight are to come"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}"):
        torch_npu.npu_prefetch(weight, None, 64, 64)


def test_all_of_them_are_functions_of_torch_npu() -> None:
    for name in (*composed.COMPOSED, *composed.OF_ATB):
        assert callable(getattr(torch_npu, name.partition(".")[0]))
    assert composed.declared().keys() == composed.COMPOSED.keys()
