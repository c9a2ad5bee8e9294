"""Operators of serving that are made of others, held against float64 and plain loops."""

from __future__ import annotations

import re
from typing import Any

import pytest
from simulated_card import recorded, torch, torch_npu

Tensor = Any


def half(*shape: int, dtype: Any = torch.float16) -> Tensor:
    return torch.randn(shape).to(dtype)


def close(found: Tensor, expected: Tensor, step: float) -> None:
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=step, atol=step)


# ---- activations ----


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_a_half_row_times_the_other(approximate: str) -> None:
    x = half(3, 5, 16)
    first, second = x.double().chunk(2, -1)
    expected = torch.nn.functional.gelu(first, approximate=approximate) * second
    close(torch_npu.npu_gelu_mul(x.npu(), approximate=approximate), expected, 2**-9)


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_clipped_swiglu_of_the_rows_of_all_groups(interleaved: bool) -> None:
    x = 8 * half(6, 8)
    a, b = (x[:, 0::2], x[:, 1::2]) if interleaved else x.chunk(2, -1)
    a, b = a.double().clamp(max=3.0), b.double().clamp(-3.0, 3.0)
    expected = a / (1 + (-1.5 * a).exp()) * (b + 0.5)
    expected[4:] = 0
    found = torch_npu.npu_clipped_swiglu(
        x.npu(), group_index=torch.tensor([1, 3]).npu(), alpha=1.5, limit=3.0, bias=0.5,
        interleaved=interleaved,
    )  # fmt: skip
    close(found, expected, 2**-9)


def test_group_norm_times_its_sigmoid_has_a_gradient() -> None:
    x, weight, bias = torch.randn(2, 4, 6), torch.randn(4), torch.randn(4)
    on_npu = [each.npu().requires_grad_() for each in (x, weight, bias)]
    found, mean, _ = torch_npu.npu_group_norm_swish(on_npu[0], 2, *on_npu[1:], swish_scale=2.0)
    on_cpu = [each.double().requires_grad_() for each in (x, weight, bias)]
    normed = torch.nn.functional.group_norm(on_cpu[0], 2, *on_cpu[1:])
    expected = normed * torch.sigmoid(2.0 * normed)
    close(found.detach(), expected.detach(), 1e-5)
    close(mean, x.reshape(2, 2, -1).double().mean(-1), 1e-5)
    found.sum().backward()
    expected.sum().backward()
    for own, other in zip(on_npu, on_cpu, strict=True):
        close(own.grad, other.grad, 1e-4)


# ---- parts of attention ----


def test_parts_of_the_keys_are_joined() -> None:
    scores, values = torch.randn(6, 10), torch.randn(10, 4)
    parts = [(scores[:, here], values[here]) for here in (slice(0, 7), slice(7, 10))]
    sums = [x.logsumexp(-1) for x, _ in parts]
    outputs = [x.softmax(-1) @ v for x, v in parts]
    found, total = torch_npu.npu_attention_update(
        [x.npu() for x in sums], [x.npu() for x in outputs], 1
    )
    close(found, scores.double().softmax(-1) @ values.double(), 1e-5)
    close(total, scores.double().logsumexp(-1), 1e-5)
    assert torch_npu.npu_attention_update([sums[0].npu()], [outputs[0].npu()], 0)[1].numel() == 0


@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_two_steps_of_ring_attention_are_one(layout: str) -> None:
    tokens, batches, heads, columns = 3, 2, 2, 4
    scores, values = torch.randn(batches, heads, tokens, 10), torch.randn(batches, heads, 10, 4)
    given = []
    for here in (slice(0, 6), slice(6, 10)):
        x = scores[..., here]
        largest = x.amax(-1, keepdim=True)
        total = (x - largest).exp().sum(-1, keepdim=True)
        output = x.softmax(-1) @ values[..., here, :]
        given.append((output, largest.expand(-1, -1, -1, 8), total.expand(-1, -1, -1, 8)))

    def laid(x: Tensor, is_output: bool) -> Tensor:
        if layout == "TND":
            return x.permute(0, 2, 1, 3).flatten(0, 1).contiguous()
        if is_output:
            return x.permute(2, 0, 1, 3).reshape(tokens, batches, heads * columns)
        return x.contiguous()

    args = [laid(x, place == 0).npu() for part in given for place, x in enumerate(part)]
    found, largest, total = torch_npu.npu_ring_attention_update(*args, input_layout=layout)
    close(found, laid(scores.double().softmax(-1) @ values.double(), True), 1e-5)
    close(largest, laid(scores.amax(-1, keepdim=True).expand(-1, -1, -1, 8), False), 0.0)
    expected = (scores - scores.amax(-1, keepdim=True)).double().exp().sum(-1, keepdim=True)
    close(total, laid(expected.expand(-1, -1, -1, 8), False), 1e-5)


def test_softmax_with_a_mask_and_biases_and_in_place() -> None:
    x, mask, bias = torch.randn(2, 3, 4, 5), torch.randn(2, 1, 4, 5), torch.randn(1, 3, 4, 5)
    found = torch_npu.npu_masked_softmax_with_rel_pos_bias(x.npu(), mask.npu(), bias.npu(), 0.5)
    close(found, (0.5 * x.double() + mask + bias).softmax(-1), 1e-5)
    logits, grad, values = torch.randn(2, 4, 6), torch.randn(2, 4, 3), torch.randn(2, 6, 3)
    own = logits.npu()
    torch_npu.npu_attn_softmax_(own)
    close(own, logits.double().softmax(-1), 1e-5)
    torch_npu.npu_attn_softmax_backward_(own, grad.npu(), values.npu())
    wide = logits.double().requires_grad_()
    (wide.softmax(-1) @ values.double()).backward(grad.double())
    close(own, wide.grad, 1e-5)


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_attention_to_named_blocks_and_its_gradient(layout: str) -> None:
    batches, heads, tokens, keys, columns = 2, 4, 24, 256, 16
    q, grad = half(batches, heads, tokens, columns), half(batches, heads, tokens, columns)
    k, v = half(batches, 2, keys, columns), half(batches, 2, keys, columns)
    mask = torch.randint(0, 2, (batches, heads, 3, 2), dtype=torch.int8)
    mask[..., 0] = 1
    seen = mask.bool().repeat_interleave(8, 2).repeat_interleave(128, 3)

    def laid(x: Tensor) -> Tensor:
        return x if layout == "BNSD" else x.transpose(1, 2).flatten(0, 1).contiguous()

    given = [laid(x).npu() for x in (q, k, v)]
    lengths = {"actual_seq_lengths": [tokens] * 2, "actual_seq_lengths_kv": [keys] * 2}
    layouts = {"q_input_layout": layout, "kv_input_layout": layout}
    output, lse = torch_npu.npu_block_sparse_attention(
        *given, mask.npu(), [8, 128], num_key_value_heads=2, scale_value=0.25, softmax_lse_flag=1,
        **lengths, **layouts,
    )  # fmt: skip
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    every = [x.repeat_interleave(2, 1) for x in wide[1:]]
    scores = (wide[0] @ every[0].mT * 0.25).masked_fill(~seen, -torch.inf)
    expected = scores.softmax(-1) @ every[1]
    close(output, laid(expected.detach()), 2**-8)
    close(lse, laid(scores.detach().logsumexp(-1, keepdim=True)), 1e-3)
    found = torch_npu.npu_block_sparse_attention_backward(
        laid(grad).npu(), *given, output, lse, mask.npu(), block_shape=[8, 128],
        num_key_value_heads=2, scale_value=0.25, **lengths, **layouts,
    )  # fmt: skip
    expected.backward(grad.double())
    for own, other in zip(found, wide, strict=True):
        close(own, laid(other.grad), 2**-7)


def test_attention_to_chosen_blocks() -> None:
    q, k, v = half(3, 4, 8), half(20, 2, 8), half(20, 2, 6)
    chosen = torch.tensor([[[0, 1], [1, 2]], [[2, 0], [0, 1]], [[0, 0], [1, 1]]], dtype=torch.int32)
    ends, of_keys = [2, 3], [12, 20]
    found, largest, _ = torch_npu.npu_nsa_select_attention(
        q.npu(), k.npu(), v.npu(), chosen.npu(), 0.5, 4, 4, 2,
        actual_seq_qlen=ends, actual_seq_kvlen=of_keys,
    )  # fmt: skip
    for token in range(3):
        first = 0 if token < ends[0] else of_keys[0]
        for head in range(4):
            rows = [
                first + 4 * block + x
                for block in chosen[token, head // 2].tolist()
                for x in range(4)
            ]
            scores = k[rows, head // 2].double() @ q[token, head].double() * 0.5
            close(found[token, head], scores.softmax(0) @ v[rows, head // 2].double(), 2**-8)
            assert largest[token, head].tolist() == pytest.approx(
                [scores.max().item()] * 8, abs=1e-4
            )


# ---- rotations, sampling and routes ----


@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("cache_mode", ["default", "interleave"])
def test_a_rotation_by_positions_of_three_kinds(mode: str, cache_mode: str) -> None:
    tokens, turned, size, sections = 5, 16, 24, [2, 3, 3]
    positions = torch.randint(0, 9, (3, tokens))
    table = half(9, turned)
    query, key = half(tokens, 2 * size), half(tokens, size)
    of_kinds = table[positions].double().chunk(2, -1)
    kinds = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    if cache_mode == "interleave":
        kinds = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    cos, sin = (x.permute(1, 2, 0)[:, torch.arange(8), kinds][:, None] for x in of_kinds)
    found = torch_npu.npu_mrope(
        positions.npu(), query.npu(), key.npu(), table.npu(), size,
        mrope_section=sections, rotary_mode=mode, cache_mode=cache_mode,
    )  # fmt: skip
    for own, x in zip(found, (query, key), strict=True):
        heads = x.reshape(tokens, -1, size).double()
        part = heads[..., :turned]
        a, b = part.chunk(2, -1) if mode == "half" else (part[..., 0::2], part[..., 1::2])
        pair = a * cos - b * sin, b * cos + a * sin
        new = torch.cat(pair, -1) if mode == "half" else torch.stack(pair, -1).flatten(-2)
        close(own, torch.cat([new, heads[..., turned:]], -1).reshape(x.shape), 2**-7)


def test_a_rotation_refuses_other_modes() -> None:
    x = half(2, 16).npu()
    message = "npu_mrope: cache_mode only support default or interleave, not none; choose one"
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        torch_npu.npu_mrope(torch.arange(2).npu(), x, x, x, 16, cache_mode="none")


def test_the_best_words_stay() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0, 3.0], [0.0, 0.0, 9.0, 1.0]])
    k, p = torch.tensor([3, 4], dtype=torch.int32), torch.tensor([0.9, 0.5])
    found = torch_npu.npu_top_k_top_p(logits.npu(), p.npu(), k.npu()).cpu()
    none = -torch.inf
    assert found.tolist() == [[none, 4.0, none, 3.0], [none, none, 9.0, none]]
    assert torch_npu.npu_top_k_top_p(logits.npu(), None, k.npu()).cpu().tolist() == [
        [none, 4.0, 2.0, 3.0],
        [0.0, 0.0, 9.0, 1.0],
    ]


def test_exponential_numbers_are_positive() -> None:
    x = torch.empty(1000).npu()
    torch_npu.npu_sim_exponential_(x, 2.0)
    assert x.min() > 0
    assert 0.4 < x.mean() < 0.6
    assert not torch_npu.npu_sim_exponential_(x, float("inf")).any()
    message = (
        "npu_sim_exponential_ expects lambd > 0.0, but found lambd=0.0\n"
        "npu_sim_exponential_: lambd must be positive, not 0.0; pass another"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        torch_npu.npu_sim_exponential_(x, 0.0)


@pytest.mark.parametrize("columns", [8, 4200])
def test_gates_of_short_and_of_long_rows(columns: int) -> None:
    x = torch.randn(3, columns)
    done = torch.tensor([False, True, False])
    wide = x.double().softmax(-1)
    values, order = wide.sort(-1, descending=True)
    for renorm in (0, 1):
        weights, experts, whole = torch_npu.npu_moe_gating_top_k_softmax_v2(
            x.npu(), k=2, finished=done.npu(), renorm=renorm, output_softmax=True
        )
        best = x.double().gather(-1, order[:, :2]).softmax(-1) if renorm else values[:, :2]
        close(weights, best, 1e-5)
        assert experts.cpu()[0].tolist() == order[0, :2].tolist()
        assert experts.cpu()[1].tolist() == [columns, columns]
        assert whole.numel() == (0 if renorm else x.numel())
    rows = torch_npu.npu_moe_gating_top_k_softmax(x.npu(), None, 2)[2]
    assert rows.cpu().tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("quant_mode", [0, 1])
def test_rows_for_experts_as_int8(quant_mode: int) -> None:
    x, chosen = half(4, 32), torch.tensor([[1, 0], [2, 1], [0, 2], [2, 0]], dtype=torch.int32)
    scale, offset = torch.tensor([20.0]), torch.tensor([1.0])
    given = {"scale": scale.npu(), "offset": offset.npu()} if quant_mode == 0 else {}
    rows, places, counts, before, scales = torch_npu.npu_moe_init_routing_quant(
        x.npu(), chosen.npu(), active_num=8, expert_num=3, expert_tokens_num_mode=2,
        quant_mode=quant_mode, **given,
    )  # fmt: skip
    order = chosen.flatten().argsort(stable=True)
    wide = x[order // 2].double()
    expected = wide * 20 + 1 if quant_mode == 0 else wide / (wide.abs().amax(-1, True) / 127)
    assert (rows.cpu().double() - expected.clamp(-128, 127)).abs().max() <= 0.51
    assert places.cpu().tolist() == order.argsort().tolist()
    assert (counts.tolist(), before.numel()) == ([3, 2, 3], 0)
    assert scales.numel() == (0 if quant_mode == 0 else 8)


# ---- products and caches ----


@pytest.mark.parametrize("activation", ["gelu", "silu", "swiglu"])
def test_a_feed_forward_of_experts_is_two_launches_of_products(activation: str) -> None:
    x, first, second = half(6, 32), half(2, 32, 64) / 4, half(2, 64, 32) / 4
    second = second[:, : 32 if activation == "swiglu" else 64].contiguous()
    bias = half(2, 64)
    found, kernels = recorded(
        lambda: torch_npu.npu_ffn(
            x.npu(), first.npu(), second.npu(), activation, expert_tokens=[2, 4], bias1=bias.npu()
        )
    )
    assert kernels.count("npu_grouped_matmul") == 2
    for expert, rows in enumerate((slice(0, 2), slice(2, 6))):
        hidden = x[rows].double() @ first[expert].double() + bias[expert]
        if activation == "swiglu":
            a, b = hidden.chunk(2, -1)
            hidden = torch.nn.functional.silu(a) * b
        else:
            hidden = getattr(torch.nn.functional, activation)(hidden)
        close(found[rows], hidden @ second[expert].double(), 2**-6)


def test_a_feed_forward_of_int8() -> None:
    """Its levels are rounded to float16 after each step, which moves some by one."""
    x = torch.randint(-99, 99, (64, 32), dtype=torch.int8)
    first, second = (torch.randint(-99, 99, (32, 64), dtype=torch.int8) for _ in range(2))
    second = second.t().contiguous()
    factors = torch.full((64,), 0.01)
    found = torch_npu.npu_ffn(
        x.npu(), first.npu(), second.npu(), "relu",
        scale=torch.tensor([0.3]).npu(), offset=torch.tensor([0.7]).npu(),
        deq_scale1=torch_npu.npu_trans_quant_param(factors.npu()),
        deq_scale2=torch_npu.npu_trans_quant_param(factors[:32].npu()),
    )  # fmt: skip
    cut = (factors.view(torch.int32) & ~0x1FFF).view(torch.float32).double()
    hidden = (x.double() @ first.double() * cut).half().relu()
    scale, offset = torch.tensor([0.3]).half(), torch.tensor([0.7]).half()
    levels = (hidden * scale + offset).round().clamp(-128, 127).double()
    exact = (hidden.double() * 0.3 + 0.7).round().clamp(-128, 127)
    assert not torch.equal(levels, exact)
    close(found, levels @ second.double() * cut[:32], 2**-9)


def test_a_feed_forward_refuses_other_activations() -> None:
    x = half(16, 16).npu()
    message = (
        "npu_ffn: activation must be one of fastgelu, gelu, relu, silu, geglu, swiglu, reglu, not "
        "tanh; choose one of these"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        torch_npu.npu_ffn(x, x, x, "tanh")


def test_a_quantised_product_and_gelu() -> None:
    x, y = (torch.randint(-9, 9, (32, 32), dtype=torch.int8) for _ in range(2))
    rows, columns = torch.rand(32) / 9, torch.rand(32) / 9
    found = torch_npu.npu_quant_matmul_gelu(x.npu(), y.npu(), rows.npu(), columns.npu())
    product = x.double() @ y.double() * columns * rows[:, None]
    close(found, torch.nn.functional.gelu(product), 2**-8)
    batches = torch.stack([x, y]).npu(), torch.stack([y, x]).npu()
    summed = torch_npu.npu_quant_matmul_reduce_sum(
        *batches, x1_scale=torch.stack([rows, rows]).npu(), x2_scale=columns.bfloat16().npu()
    )
    cut = columns.bfloat16().double()
    expected = (x.double() @ y.double() + y.double() @ x.double()) * cut * rows[:, None]
    close(summed, expected, 2**-5)


def test_a_norm_as_int8_and_a_kronecker_product_as_int4() -> None:
    x, gamma, beta = half(3, 32), half(32), half(32)
    found = torch_npu.npu_rms_norm_quant(
        x.npu(), gamma.npu(), beta.npu(), torch.tensor([0.5]).half().npu(),
        torch.tensor([3], dtype=torch.int8).npu(), 1e-6,
    )  # fmt: skip
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gamma + beta
    assert (found.cpu().double() - (normed / 0.5 + 3)).abs().max() < 0.52
    narrow = torch_npu.npu_rms_norm_quant(
        x.npu(), gamma.npu(), beta.npu(), torch.tensor([0.5]).half().npu(),
        torch.tensor([0], dtype=torch.int8).npu(), 1e-6, dst_dtype=torch.quint4x2,
    )  # fmt: skip
    assert (unpacked(narrow) - (normed / 0.5).clamp(-8, 7)).abs().max() < 0.52
    tokens, left, right = half(4, 8, 16), half(8, 8), half(16, 16)
    given = tokens.npu(), left.npu(), right.npu()
    packed, scale = torch_npu.npu_kronecker_quant(*given, dst_dtype=torch.int32)
    turned = left.double() @ tokens.double() @ right.double()
    close(scale, turned.abs().amax((1, 2)) / 7, 2**-8)
    expected = turned / scale.cpu().double()[:, None, None]
    assert (unpacked(packed) - expected).abs().max() < 0.6


def unpacked(words: Tensor) -> Tensor:
    """The eight int4 of each int32, the lowest bits first."""
    digits = (words.cpu()[..., None] >> torch.arange(0, 32, 4)) & 15
    return (((digits + 8) & 15) - 8).flatten(-2)


@pytest.mark.parametrize(
    ("function", "shapes", "option", "words"),
    [
        ("npu_quant_scatter", [(2, 4, 32)] * 4, {"reduce": "add"},
         "reduce must be 'update', not 'add', which is not simulated; pass 'update'"),
        ("npu_quant_scatter_", [(2, 4, 32)] * 4, {"reduce": "add"},
         "reduce must be 'update', not 'add', which is not simulated; pass 'update'"),
        ("npu_rms_norm_quant", [(4, 32)] * 5, {"dst_dtype": torch.int32},
         "dst_dtype must be 'quint4x2' or 'int8' or None, not 'int32', which is not simulated; "
         "pass None"),
        ("npu_kronecker_quant", [(2, 4, 8), (4, 4), (8, 8)], {"dst_dtype": torch.int8},
         "dst_dtype must be 'int32' or None, not 'int8', which is not simulated; pass None"),
        ("npu_ring_attention_update", [(4, 4)] * 6, {"input_layout": "BSND"},
         "input_layout must be 'SBH' or 'TND', not 'BSND', which is not simulated; pass 'TND'"),
        ("npu_lightning_indexer", [(1, 2, 4, 16), (1, 8, 1, 16), (1, 2, 4)], {"sparse_mode": 4},
         "sparse_mode must be 0 or 3, not 4, which is not simulated; pass 3"),
        ("npu_lightning_indexer", [(1, 2, 4, 16), (1, 8, 1, 16), (1, 2, 4)], {"pre_tokens": 5},
         f"pre_tokens must be {2**63 - 1}, not 5, which is not simulated; pass {2**63 - 1}"),
        ("npu_rotated_iou", [(1, 1, 5)] * 2, {"v_threshold": 0.5},
         "v_threshold must be 0.0, not 0.5, which is not simulated; pass 0.0"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_simulated_is_never_ignored(
    function: str, shapes: list[tuple[int, ...]], option: dict[str, Any], words: str
) -> None:
    name = function.rstrip("_")
    with pytest.raises(NotImplementedError, match=f"^{re.escape(f'{name}: {words}')}$"):
        getattr(torch_npu, function)(*(half(*shape).npu() for shape in shapes), **option)


def test_updates_are_quantised_on_their_way() -> None:
    cache = torch.zeros(2, 4, 32, dtype=torch.int8)
    updates, scales = half(2, 1, 32, dtype=torch.bfloat16), torch.full((1, 1, 32), 0.25).bfloat16()
    given = torch.tensor([1, 3], dtype=torch.int32).npu(), updates.npu(), scales.npu()
    found = torch_npu.npu_quant_scatter(cache.npu(), *given)
    own = cache.npu()
    torch_npu.npu_quant_scatter_(own, *given)
    for batch, place in enumerate((1, 3)):
        cache[batch, place] = (updates[batch, 0].float() / 0.25).round().to(torch.int8)
    assert torch.equal(found.cpu(), cache)
    assert torch.equal(own.cpu(), cache)


def test_rows_are_gathered_and_their_gradients_added() -> None:
    x, index = torch.randn(5, 4), torch.tensor([[1, 1, 4]])
    own = x.npu().requires_grad_()
    found = torch_npu.npu_gather_sparse_index(own, index.npu())
    assert torch.equal(found.detach().cpu(), x[index])
    found.sum().backward()
    assert own.grad.cpu()[:, 0].tolist() == [0.0, 2.0, 0.0, 0.0, 1.0]
