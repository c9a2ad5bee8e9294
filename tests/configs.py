"""A small config of every family, as transformers writes them, and steps that take no time."""

from __future__ import annotations

from typing import Any

BASE = {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 1024,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
}
LATENT = {
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
DEEPSEEK = {
    **LATENT,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
QWEN_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
MORE: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": 256},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "Glm4ForCausalLM": {},
    "GemmaForCausalLM": {"head_dim": 256},
    "Gemma2ForCausalLM": {"sliding_window": 256},
    "Gemma3ForCausalLM": {"sliding_window": 256},
    "MixtralForCausalLM": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen2MoeForCausalLM": {**QWEN_EXPERTS, "shared_expert_intermediate_size": 512},
    "Qwen3MoeForCausalLM": QWEN_EXPERTS,
    "DeepseekV2ForCausalLM": {**DEEPSEEK, "q_lora_rank": None},
    "DeepseekV3ForCausalLM": {**DEEPSEEK, "scoring_func": "sigmoid", "n_group": 4, "topk_group": 2},
}
FAMILIES = tuple(MORE)


def config(architecture: str = "Qwen3ForCausalLM", **changes: Any) -> dict[str, Any]:
    """The config of that family, with *changes*; what is changed to `...` is left out."""
    found = {"architectures": [architecture], **BASE, **MORE[architecture], **changes}
    return {name: value for name, value in found.items() if value is not ...}
