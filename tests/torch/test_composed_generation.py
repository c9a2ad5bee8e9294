"""Operators of sampling, of states, of quantised experts and of compressed keys, made of others,
held against loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulated_card import torch, torch_npu

Tensor = Any


def half(*shape: int) -> Tensor:
    return torch.randn(shape).half()


def close(found: Tensor, expected: Tensor, step: float) -> None:
    torch.testing.assert_close(found.cpu().double(), expected.double(), rtol=step, atol=step)


# ---- states of linear attention ----

LENGTHS = [3, 1, 2]
ACCEPTED = [2, 1, 1]


def _states(q: Tensor, k: Tensor, v: Tensor, state: Tensor, more: dict[str, Tensor]) -> Any:
    """One token after another and head by head, in float64."""
    state, out, first = state.double().clone(), torch.zeros(v.shape).double(), 0
    blocks = more["ssm_state_indices"].tolist()
    for length, accepted in zip(LENGTHS, more.get("num_accepted_tokens", [1] * 3), strict=True):
        own = state[blocks[first + int(accepted) - 1]].clone()
        for token in range(first, first + length):
            for head in range(v.shape[1]):
                key, query = (x[token, head // 2].double() for x in (k, q))
                decay = torch.ones(key.shape).double()
                if "g" in more:
                    decay *= more["g"][token, head].double().exp()
                if "gk" in more:
                    decay *= more["gk"][token, head].double().exp()
                own[head] *= decay
                beta = more["beta"][token, head].double() if "beta" in more else 1.0
                own[head] += torch.outer(beta * (v[token, head].double() - own[head] @ key), key)
                out[token, head] = own[head] @ query * 0.5
            state[blocks[token]] = own
        first += length
    return out, state


@pytest.mark.parametrize("names", [(), ("g", "beta", "num_accepted_tokens"), ("gk",)])
def test_states_follow_the_gated_delta_rule(names: tuple[str, ...]) -> None:
    tokens, heads, columns = sum(LENGTHS), 4, 16
    q, k = (torch.nn.functional.normalize(torch.randn(tokens, 2, columns), dim=-1) for _ in "qk")
    given = [x.bfloat16() for x in (q, k, torch.randn(tokens, heads, 8))]
    state = torch.randn(8, heads, 8, columns).bfloat16()
    every = {
        "g": -torch.rand(tokens, heads),
        "gk": -torch.rand(tokens, heads, columns),
        "beta": torch.rand(tokens, heads).bfloat16(),
        "num_accepted_tokens": torch.tensor(ACCEPTED, dtype=torch.int32),
    }
    more = {name: every[name] for name in names}
    more["ssm_state_indices"] = torch.tensor([5, 0, 7, 2, 1, 4], dtype=torch.int32)
    expected, states = _states(*given, state, more)
    on_npu = {name: x.npu() for name, x in more.items()}
    on_npu["actual_seq_lengths"] = torch.tensor(LENGTHS, dtype=torch.int32).npu()
    own = state.npu()
    args = [x.npu() for x in given]
    found, new = torch_npu.npu_recurrent_gated_delta_rule_functional(
        *args, own, scale=0.5, **on_npu
    )
    close(found, expected, 2**-7)
    close(new, states, 2**-7)
    assert torch.equal(own.cpu(), state)
    again = torch_npu.npu_recurrent_gated_delta_rule(*args, own, scale=0.5, **on_npu)
    assert torch.equal(again, found)
    assert torch.equal(own, new)


def test_states_need_their_lengths() -> None:
    x = torch.zeros(1, 1, 16).bfloat16().npu()
    with pytest.raises(RuntimeError) as caught:
        torch_npu.npu_recurrent_gated_delta_rule(x, x, x, torch.zeros(1, 1, 16, 16).npu())
    assert str(caught.value) == (
        "npu_recurrent_gated_delta_rule: actual_seq_lengths and ssm_state_indices must be given, "
        "but are not both; pass the length of each sequence and the block of each token"
    )


# ---- sampling ----


def _sampled(row: list[float], k: int, p: float, least: float, q: list[float] | None) -> Any:
    """The chosen word and the words that are left, by the steps of the document."""
    order = sorted(range(len(row)), key=lambda word: -row[word])
    if not 1 <= k <= len(row) and p >= 1 and least < 1:
        order = [*range(len(row))]
    elif 1 <= k <= len(row):
        order = order[:k]
    shares = torch.tensor([row[word] for word in order]).double().softmax(0).tolist()
    if p < 1:
        behind = [sum(shares[:place]) for place in range(len(order))]
        order = [word for place, word in enumerate(order) if behind[place] < p or place == 0]
    largest = 1.0 if p <= 0 else max(shares)
    if least >= 1:
        order = order[:1]
    else:
        pairs = zip(order, shares, strict=False)
        order = [word for word, share in pairs if share >= largest * least or p <= 0]
    by_word = dict(zip(order, shares, strict=False))
    if least and least < 1 and not 1 <= k <= len(row) and p >= 1:
        every = torch.tensor(row).double().softmax(0).tolist()
        by_word = {word: every[word] for word in order}
    weights = [by_word[word] / (abs(q[i]) + 1e-8 if q else 1.0) for i, word in enumerate(order)]
    return order[weights.index(max(weights))], set(order)


@pytest.mark.parametrize("is_drawn", [False, True])
def test_the_next_word_of_each_row(is_drawn: bool) -> None:
    words = 12
    logits = torch.randn(7, words) * 3
    k = torch.tensor([0, 3, 5, 0, 12, 2000, 4], dtype=torch.int32)
    p = torch.tensor([1.0, 1.0, 0.6, 0.7, 0.0, 0.9, 0.9])
    least = torch.tensor([0.1, 0.0, 0.0, 0.3, 0.0, 1.0, 0.2])
    q = torch.rand(7, words) + 0.01 if is_drawn else None
    chosen, left = torch_npu.npu_top_k_top_p_sample(
        logits.npu(), k.npu(), p.npu(), None if q is None else q.npu(), is_need_logits=True,
        min_ps=least.npu(),
    )  # fmt: skip
    for row in range(7):
        word, words_left = _sampled(
            logits[row].tolist(), int(k[row]), p[row].item(), least[row].item(),
            None if q is None else q[row].tolist(),
        )  # fmt: skip
        assert int(chosen[row]) == word
        shown = left[row].cpu()
        assert set(torch.isfinite(shown).nonzero()[:, 0].tolist()) == words_left
        where = sorted(words_left)
        assert torch.equal(shown[where], logits[row][where])


def test_words_are_drawn_by_their_shares() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -50.0]]).expand(4000, -1)
    k, p = torch.full((4000,), 2, dtype=torch.int32), torch.ones(4000)
    seeds = torch.zeros(1, 2, dtype=torch.int64)
    torch.npu.manual_seed(3)
    chosen, none = torch_npu.npu_top_k_top_p_sample(
        logits.npu(), k.npu(), p.npu(), seeds.npu(), post_sample="multiNomial"
    )
    share = (chosen.cpu() == 1).double().mean().item()
    assert share == pytest.approx(torch.tensor([2.0, 1.0]).softmax(0)[0].item(), abs=0.03)
    assert set(chosen.tolist()) == {1, 2}
    assert none.numel() == 0


# ---- quantised experts, rotations and scales ----


@pytest.mark.parametrize("group_list_type", [0, 1])
@pytest.mark.parametrize("is_nz", [False, True])
def test_products_of_experts_are_added_by_token(group_list_type: int, is_nz: bool) -> None:
    counts, columns, tokens = [5, 0, 6], 64, 4
    rows = sum(counts)
    x = torch.randint(-9, 9, (rows + 2, 32), dtype=torch.int8)
    w = torch.randint(-9, 9, (3, 32, columns), dtype=torch.int8)
    scale, of_rows, logit = torch.rand(3, columns), torch.rand(rows + 2), torch.rand(rows + 2)
    index = torch.randint(0, tokens, (rows + 2,))
    shared = torch.randn(2, columns).bfloat16()
    groups = torch.tensor(counts) if group_list_type else torch.tensor(counts).cumsum(0)
    expected = torch.zeros(tokens, columns).double()
    for row in range(rows):
        expert = 0 if row < 5 else 2
        product = x[row].double() @ w[expert].double() * scale[expert].double()
        expected[index[row]] += product * of_rows[row].double() * logit[row].double()
    expected[1:3] += 0.5 * shared.double()
    weight = torch_npu.npu_format_cast(w.npu(), 29) if is_nz else w.npu()
    found = torch_npu.npu_grouped_matmul_finalize_routing(
        x.npu(), weight, groups.npu(), scale=scale.npu(), pertoken_scale=of_rows.npu(),
        shared_input=shared.npu(), logit=logit.npu(), row_index=index.npu(), output_bs=tokens,
        shared_input_weight=0.5, shared_input_offset=1, group_list_type=group_list_type,
    )  # fmt: skip
    assert found.dtype == torch.float32
    close(found, expected, 1e-4)


def test_a_rotation_before_quantisation() -> None:
    x, rotation = torch.randn(5, 256).bfloat16(), torch.randn(64, 64).bfloat16() / 8
    found, scale = torch_npu.npu_rotate_quant(x.npu(), rotation.npu())
    turned = (x.double().reshape(-1, 64) @ rotation.double()).reshape(5, 256)
    close(scale, turned.abs().amax(-1) / 127, 2**-7)
    close(found * scale[:, None], turned, 0.05)
    assert found.dtype == torch.int8
    with pytest.raises(NotImplementedError) as caught:
        torch_npu.npu_rotate_quant(x.npu(), rotation.npu(), scale_alg=1)
    assert str(caught.value) == (
        "npu_rotate_quant: scale_alg must be 0, not 1, which is not simulated; pass 0"
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, None])
def test_products_get_their_scales_and_bias(dtype: Any) -> None:
    x = torch.randint(-5000, 5000, (3, 16), dtype=torch.int32)
    columns, rows = torch.rand(16) / 100, torch.rand(3)
    bias = None if dtype is None else torch.randint(-99, 99, (16,)).to(dtype)
    levels = x.double() + (bias.double() if dtype == torch.int32 else 0)
    expected = levels * columns.double() * rows.double()[:, None]
    expected = expected + (bias.double() if dtype == torch.float32 else 0)
    found = torch_npu.npu_dequant_bias(
        x.npu(), columns.npu(), rows.npu(), None if bias is None else bias.npu(),
        output_dtype=torch.bfloat16,
    )  # fmt: skip
    assert found.dtype == torch.bfloat16
    close(found, expected, 2**-8)


# ---- compressed keys ----


def test_keys_are_compressed_by_weights_of_their_heads() -> None:
    x, weight, ends = half(23, 2, 8), half(6, 2), [9, 12, 23]
    expected, first = [], 0
    for last in ends:
        for start in range(first, last - 5, 3):
            rows = x[start : start + 6].double()
            expected.append((rows * weight.double()[..., None]).sum(0))
        first = last
    on_npu = [each.npu().requires_grad_() for each in (x, weight)]
    found = torch_npu.npu_nsa_compress(*on_npu, 6, 3, actual_seq_len=ends)
    close(found.detach(), torch.stack(expected), 2**-9)
    found.float().sum().backward()
    by_row = torch.zeros(23, 2).double()
    for start in (0, 3, 12, 15):
        by_row[start : start + 6] += weight.double()
    close(on_npu[0].grad, by_row[..., None].expand(-1, -1, 8), 2**-9)


def test_compressed_keys_choose_blocks() -> None:
    ends, of_keys, of_blocks = [5, 8], [12, 20], [4, 7]
    q, k, v = torch.randn(8, 4, 16), torch.randn(20, 2, 16), torch.randn(20, 2, 8)
    masks = torch.ones(5, 12).triu(6).byte(), torch.eye(5, 4).byte()
    found, chosen, largest, total = torch_npu.npu_nsa_compress_attention(
        q.npu(), k.npu(), v.npu(), 0.5, 4, 8, 4, 16, 2, topk_mask=masks[1].npu(),
        atten_mask=masks[0].npu(), actual_seq_qlen=ends, actual_cmp_seq_kvlen=of_keys,
        actual_sel_seq_kvlen=of_blocks,
    )  # fmt: skip
    for token in range(8):
        place, keys, blocks = (token, (0, 12), 4) if token < 5 else (token - 5, (12, 20), 3)
        for group in range(2):
            importance = torch.zeros(blocks).double()
            for head in (2 * group, 2 * group + 1):
                scores = k[slice(*keys), group].double() @ q[token, head].double() * 0.5
                scores = scores - 40000.0 * masks[0][place, : len(scores)]
                shares = scores.softmax(0)
                close(found[token, head], shares @ v[slice(*keys), group].double(), 1e-5)
                close(largest[token, head], scores.max().expand(8), 1e-5)
                sums = (scores - scores.max()).exp().sum()
                close(total[token, head], sums.expand(8), 1e-4)
                for block in range(blocks):
                    # A block of four strides and a key of two overlap in one or two of them.
                    for behind, times in enumerate((1, 2, 2, 2, 1)):
                        key = 4 * (block + 1) - behind
                        if key < len(shares):
                            importance[block] += shares[key] * times
            importance[masks[1][place, :blocks].bool()] = 23333.0
            wanted = importance.sort(descending=True, stable=True)[1][:2]
            assert chosen[token, group].tolist() == wanted.tolist()


def test_a_sequence_shorter_than_a_block_has_no_compressed_key() -> None:
    found = torch_npu.npu_nsa_compress(half(5, 2, 8).npu(), half(6, 2).npu(), 6, 3)
    assert (found.shape, found.dtype) == ((0, 2, 8), torch.float16)


# ---- what does not fit ----

X = torch.randn(4, 64).npu()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: torch_npu.npu_top_k_top_p_sample(X, X[:3, 0].int(), X[:, 0]),
            RuntimeError,
            "The size of tensor a (3) must match the size of tensor b (4) at non-singleton "
            "dimension 0\nnpu_top_k_top_p_sample: its tensors must fit together, not be logits "
            "(4, 64), top_k (3,), top_p (4,); pass those that its document describes",
        ),
        (
            lambda: torch_npu.npu_geglu(X[:, :7]),
            RuntimeError,
            "The size of tensor a (4) must match the size of tensor b (3) at non-singleton "
            "dimension 1\nnpu_geglu: its tensors must fit together, not be input (4, 7); pass "
            "those that its document describes",
        ),
        (
            lambda: torch_npu.npu_top_k_top_p_sample(X, X[:, 0].int(), X[:, 0], post_sample="max"),
            ValueError,
            "npu_top_k_top_p_sample: post_sample must be qSample, multiNomial or None, not 'max'; "
            "choose one of these",
        ),
        (
            lambda: torch_npu.npu_cross_entropy_loss(X, X[:, 0].long(), reduction="avg"),
            ValueError,
            "npu_cross_entropy_loss: reduction must be mean, sum or none, not 'avg'; choose one of "
            "these",
        ),
        (
            lambda: torch_npu.npu_dequant_bias(X, X[0], None, None),
            RuntimeError,
            "npu_dequant_bias: x must be torch.int32, not torch.float32; pass an integer product",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == message
