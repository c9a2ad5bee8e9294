"""A tiny Llama and a tiny Qwen3 of transformers on a card: in their own data type, W8A8 and W4A16.

Nothing is downloaded: a model is a configuration and random weights. First each runs unchanged.
Then its layers are replaced by those for which a card has operators, with weights of bf16, int8 or
int4; it reads two prompts, generates, and decodes one more token, step by step and as a graph of
torchair. For a card, or for a simulated one:

    python -m npusim.torch [--device DEVICE] examples/tiny_models.py

Atlas inference has fp16 in place of bf16, int8 with static scales, and no int4; its rotary
embedding and attention stay those of transformers, as products and softmax.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch_npu
import torchair
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

SIZE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    # With smaller random weights a model repeats what it reads.
    "initializer_range": 0.05,
}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PROMPTS, WORDS = (2, 9), 4
"""How many prompts of how many words, and how many words are written on."""
AS_IT_STANDS = "as it stands"
CONFIGS = {"Llama": LlamaConfig(**SIZE), "Qwen3": Qwen3Config(**SIZE)}
GROUP = 64
"""Rows of an int4 weight that share a scale."""
MASK = 2048
"""Rows and columns of the mask that hides later tokens, whatever the lengths are."""


def is_inference() -> bool:
    """Whether the card is one of Atlas inference."""
    return "310P" in torch.npu.get_device_name()


# ---- layers with operators of the card ----


class W8A8(nn.Module):
    """A Linear layer with an int8 weight; its inputs become int8 too, with a scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, self.scale = int8_of(linear.weight)
        # In FRACTAL_NZ (29), as the cube reads it.
        self.weight = torch_npu.npu_format_cast(weight, 29).t()
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows, row_scale = torch_npu.npu_dynamic_quant(x.flatten(0, -2))
        y = torch_npu.npu_quant_matmul(
            rows,
            self.weight,
            self.scale,
            pertoken_scale=row_scale,
            bias=self.bias,
            output_dtype=x.dtype,
        )
        return y.unflatten(0, x.shape[:-1])


class StaticW8A8(nn.Module):
    """The same for Atlas inference: one scale for all rows, by the *largest* input seen before."""

    def __init__(self, linear: nn.Linear, largest: float) -> None:
        super().__init__()
        weight, scale = int8_of(linear.weight)
        self.weight = torch_npu.npu_format_cast(weight, 29).t()
        self.x_scale = linear.weight.new_tensor([127 / largest])
        # The product is scaled by both at once.
        self.scale = torch_npu.npu_trans_quant_param(scale / self.x_scale.float())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = torch_npu.npu_quantize(x, self.x_scale, None, torch.qint8, -1, False)
        y = torch_npu.npu_quant_matmul(rows, self.weight, self.scale, output_dtype=x.dtype)
        return y if self.bias is None else y + self.bias


class W4A16(nn.Module):
    """A Linear layer with a weight of int4, of which `GROUP` rows share a scale."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        groups = linear.weight.float().unflatten(1, (-1, GROUP))
        scale = (groups.abs().amax(2, keepdim=True) / 7).to(linear.weight.dtype)
        numbers = (groups / scale.float()).round().clamp(-8, 7).flatten(1).int()
        self.weight = torch_npu.npu_convert_weight_to_int4pack(numbers.t().contiguous())
        self.scale = scale[..., 0].t().contiguous()
        # With inputs of bf16, a bias is float32.
        self.bias = None if linear.bias is None else linear.bias.float()

    def forward(self, x: Tensor) -> Tensor:
        y = torch_npu.npu_weight_quant_batchmatmul(
            x.flatten(0, -2),
            self.weight,
            self.scale,
            bias=self.bias,
            antiquant_group_size=GROUP,
        )
        return y.unflatten(0, x.shape[:-1])


class Norm(nn.Module):
    """Rows divided by their root mean square, in one kernel."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return torch_npu.npu_rms_norm(x, self.weight, self.epsilon)[0]


class MLP(nn.Module):
    """The gate and what it weighs as one product, and their swiglu as one kernel."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_and_up = stacked(mlp.gate_proj, mlp.up_proj)
        self.down = mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch_npu.npu_swiglu(self.gate_and_up(x), -1))


class Attention(nn.Module):
    """Queries, keys and values as one product, then rotary embedding and attention as kernels.

    Qwen3 has norms of each head's queries and keys, which Llama does without.
    """

    def __init__(self, attention: Any, config: Any, later: Tensor) -> None:
        super().__init__()
        self.layer, self.head, self.later = attention.layer_idx, attention.head_dim, later
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv = stacked(attention.q_proj, attention.k_proj, attention.v_proj)
        self.q_norm, self.k_norm = (
            attention.get_submodule(name) if hasattr(attention, name) else nn.Identity()
            for name in ("q_norm", "k_norm")
        )
        self.o = attention.o_proj

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """As the attention that it replaces; the mask is of the tokens that are seen, or None."""
        heads = self.qkv(hidden_states).unflatten(-1, (-1, self.head)).transpose(1, 2)
        query, key, value = heads.split([self.heads, self.kv_heads, self.kv_heads], 1)
        cos, sin = (part.unsqueeze(1) for part in position_embeddings)
        query = torch_npu.npu_rotary_mul(self.q_norm(query), cos, sin)
        key = torch_npu.npu_rotary_mul(self.k_norm(key), cos, sin)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer)
        hidden: dict[str, Any] = {}
        if attention_mask is not None:
            hidden = {"atten_mask": ~attention_mask}
        elif query.shape[2] > 1:
            hidden = {"atten_mask": self.later, "sparse_mode": 3}
        # The document takes no other layout of the output with one token.
        is_single = query.shape[2] == 1
        y, _ = torch_npu.npu_fused_infer_attention_score(
            query,
            key,
            value,
            num_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            input_layout="BNSD" if is_single else "BNSD_BSND",
            scale=self.head**-0.5,
            **hidden,
        )
        return self.o((y.transpose(1, 2) if is_single else y).flatten(2)), None


def stacked(*layers: nn.Linear) -> nn.Linear:
    """One Linear layer whose outputs are those of *layers*, one after the other."""
    weight = torch.cat([layer.weight for layer in layers])
    biases = [layer.bias for layer in layers if layer.bias is not None]
    found = nn.Linear(*weight.shape[::-1], bias=bool(biases), device="meta")
    found.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        found.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return found


def int8_of(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of *weight* as int8, and a scale for each."""
    scale = weight.float().abs().amax(1, keepdim=True) / 127
    return (weight.float() / scale).round().to(torch.int8), scale[:, 0]


# ---- a model for the card ----


def for_card(model: Any, kind: str, prompts: Tensor) -> Any:
    """*model*, which is on the card, with layers for it; *prompts* show how large inputs become."""
    later = torch.ones(MASK, MASK, dtype=torch.bool).triu(1).npu()
    for layer in model.model.layers:
        layer.mlp = MLP(layer.mlp)
        if not is_inference():
            layer.self_attn = Attention(layer.self_attn, model.config, later)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            model.set_submodule(name, Norm(module))
    if kind not in TYPES:
        largest = largest_inputs(model, prompts) if is_inference() else {}
        for name in linear_layers(model):
            linear = model.get_submodule(name)
            model.set_submodule(name, linear_of(linear, kind, largest.get(name)))
    return model


def linear_layers(model: Any) -> list[str]:
    """Those of the decoder layers, by name; what makes words of numbers keeps its type."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    ]


def linear_of(linear: nn.Linear, kind: str, largest: float | None) -> nn.Module:
    """A layer that stands for *linear* with a weight of that *kind*."""
    if kind == "W4A16":
        return W4A16(linear)
    return W8A8(linear) if largest is None else StaticW8A8(linear, largest)


def largest_inputs(model: Any, prompts: Tensor) -> dict[str, float]:
    """Linear layer -> the largest number that it is given when *model* reads *prompts*."""
    found: dict[str, float] = {}
    hooks = []
    for name in linear_layers(model):

        def see(_: nn.Module, inputs: Any, name: str = name) -> None:
            found[name] = inputs[0].abs().max().item()

        hooks.append(model.get_submodule(name).register_forward_pre_hook(see))
    model(prompts)
    for hook in hooks:
        hook.remove()
    return found


# ---- what is printed ----


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What *work* gives, and how many microseconds the card took for it."""
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    found = work()
    end.record()
    torch.npu.synchronize()
    return found, 1e3 * start.elapsed_time(end)


def off(found: Tensor, exact: Tensor) -> float:
    """How far *found* is from *exact*: root mean squares, divided."""
    return float((found.cpu().float() - exact).norm() / exact.norm())


def report(name: str, kind: str, model: Any, prompts: Tensor, exact: Tensor) -> None:
    """One line: what *model* makes of *prompts*, and how long reading and a token take."""
    read, read_us = timed(lambda: model(prompts, use_cache=True))
    last = read.logits[:, -1:].argmax(-1)
    graph = torch.compile(model, backend=torchair.get_npu_backend())
    caches = read.past_key_values, deepcopy(read.past_key_values)
    eager, eager_us = timed(lambda: model(last, past_key_values=caches[0]).logits)
    compiled, graph_us = timed(lambda: graph(last, past_key_values=caches[1]).logits)
    words = model.generate(prompts, max_new_tokens=WORDS, do_sample=False, pad_token_id=0)
    print(
        f"{name:6} {kind:13} {off(read.logits, exact):7.2%} off  reads in {read_us:6.1f} us, "
        f"a token in {eager_us:6.1f} us, as a graph {graph_us:6.1f} us"
        f"{'' if torch.equal(eager, compiled) else ' of other numbers'}  "
        f"writes {words[0, prompts.shape[1] :].tolist()}"
    )


@torch.inference_mode()
def main() -> None:
    """Every model in every kind that the card has."""
    short = "fp16" if is_inference() else "bf16"
    print(f"{torch.npu.get_device_name()}, logits next to those of the CPU in float32:")
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        plain = AutoModelForCausalLM.from_config(config, dtype=TYPES[short]).eval()
        prompts = torch.randint(config.vocab_size, PROMPTS)
        exact = deepcopy(plain).float()(prompts).logits
        for kind in (AS_IT_STANDS, short, "W8A8", "W4A16"):
            model, on_card = deepcopy(plain).npu(), prompts.npu()
            if kind != AS_IT_STANDS:
                try:
                    model = for_card(model, kind, on_card)
                except RuntimeError as refusal:
                    print(f"{name:6} {kind:13} {str(refusal).splitlines()[-1]}")
                    continue
            report(name, kind, model, on_card, exact)


if __name__ == "__main__":
    main()
