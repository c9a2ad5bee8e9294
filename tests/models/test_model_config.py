"""A config.json read: sizes of every family, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from configs import FAMILIES, config

from npusim.models import ConfigError, load
from npusim.models.config import FAMILIES as KNOWN
from npusim.models.shapes import Experts, Heads, Latent


def test_there_is_a_config_of_every_family() -> None:
    assert set(FAMILIES) == set(KNOWN)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_its_sizes(name: str) -> None:
    shapes = load(config(name)).shapes

    assert (shapes.architecture, shapes.hidden, shapes.layers) == (name, 512, 3)
    assert (shapes.experts is not None) == ("Moe" in name or "Deepseek" in name or "Mix" in name)
    assert isinstance(shapes.attention, Latent) == name.startswith("Deepseek")
    assert shapes.has_output_norms == (name[:5] in ("Glm4F", "Gemma") and "GemmaF" not in name)
    assert shapes.is_tied == name.startswith("Gemma")


def test_keys_that_are_left_out_have_the_defaults_of_transformers() -> None:
    plain = load(config("LlamaForCausalLM", head_dim=..., num_key_value_heads=...)).shapes

    assert plain.attention == Heads(8, 8, 64)
    assert load(config("Qwen3ForCausalLM", head_dim=...)).shapes.attention == Heads(8, 4, 128, True)


def test_windows_are_of_the_layers_that_have_them() -> None:
    shares = {
        name: load(config(name)).shapes.attention.window_share
        for name in ("MistralForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
    }
    assert shares == {
        "MistralForCausalLM": 1.0,
        "Gemma2ForCausalLM": 0.5,
        "Gemma3ForCausalLM": pytest.approx(5 / 6),
    }
    assert load(config("MistralForCausalLM", sliding_window=None)).shapes.attention.window is None


def test_some_layers_of_a_mixture_are_dense() -> None:
    deepseek = load(config("DeepseekV3ForCausalLM")).shapes
    qwen = load(config("Qwen3MoeForCausalLM", mlp_only_layers=[0])).shapes

    assert deepseek.experts == Experts(16, 4, 256, 256, 2, 4, 2, is_sigmoid=True)
    assert deepseek.dense_layers == qwen.dense_layers == 1
    every = load(config("Qwen3MoeForCausalLM", num_hidden_layers=4, decoder_sparse_step=2)).shapes
    assert every.experts is not None
    assert (every.experts.layers, every.dense_layers) == (2, 2)


def test_weights_are_as_many_as_the_model_is_known_for() -> None:
    whole = config(
        "LlamaForCausalLM",
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
    )
    shapes = load(whole).shapes
    weights = shapes.layers * (shapes.attention_weights + shapes.dense_weights)
    assert weights + shapes.word_weights == pytest.approx(8.03e9, rel=1e-3)


def test_weights_of_latent_attention_are_those_of_its_products() -> None:
    queries = 256 * (512 + 8 * 192)
    keys = 512 * (512 + 64) + 512 * 8 * 256
    assert load(config("DeepseekV3ForCausalLM")).shapes.attention_weights == (
        queries + keys + 8 * 128 * 512
    )
    direct = load(config("DeepseekV2ForCausalLM")).shapes.attention_weights
    assert direct == 512 * 8 * 192 + keys + 8 * 128 * 512


def test_a_config_is_a_file_its_folder_or_a_dict(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))

    assert load(tmp_path) == load(str(tmp_path / "config.json")) == load(config())


# ---- what is refused ----

KEYS = "hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, vocab_size"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown class": (
        config() | {"architectures": ["Qwen4ForCausalLM"]},
        "architectures must name a model that is known, not 'Qwen4ForCausalLM'; did you mean "
        f"Qwen3ForCausalLM? known: {', '.join(KNOWN)}",
    ),
    "no class": (
        config() | {"architectures": None},
        "architectures must be a list with the name of a class, not None; known: "
        f"{', '.join(KNOWN)}",
    ),
    "missing keys": (
        config(hidden_size=..., vocab_size=...),
        f"a config of Qwen3ForCausalLM must have {KEYS}, but hidden_size, vocab_size are missing; "
        "take the whole config.json of the model",
    ),
    "a missing key of latent attention": (
        config("DeepseekV3ForCausalLM", kv_lora_rank=...),
        f"a config of DeepseekV3ForCausalLM must have {KEYS}, kv_lora_rank, qk_rope_head_dim, "
        "qk_nope_head_dim, v_head_dim, n_routed_experts, num_experts_per_tok, "
        "moe_intermediate_size, but kv_lora_rank is missing; take the whole config.json of the "
        "model",
    ),
    "no number": (
        config(num_hidden_layers="3"),
        "num_hidden_layers must be a whole number from 1 to 4294967296, not '3'; correct it",
    ),
    "true": (
        config(vocab_size=True),
        "vocab_size must be a whole number from 1 to 4294967296, not True; correct it",
    ),
    "no flag": (
        config(tie_word_embeddings=1),
        "tie_word_embeddings must be true or false, not 1; correct it",
    ),
    "heads that do not fit": (
        config(num_key_value_heads=3),
        "num_attention_heads must be a multiple of num_key_value_heads = 3, not 8; correct one of "
        "them",
    ),
    "rows that do not fit heads": (
        config("LlamaForCausalLM", head_dim=..., hidden_size=500),
        "hidden_size must be a multiple of num_attention_heads = 8 where there is no head_dim, not "
        "500; correct one of them, or give head_dim",
    ),
    "no list": (
        config("Qwen3MoeForCausalLM", mlp_only_layers=3),
        "mlp_only_layers must be a list, not 3; correct it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_refused_with_what_is_wrong(case: str) -> None:
    wrong, message = WRONG[case]
    with pytest.raises(ConfigError, match=f"^{re.escape(f'models: config: {message}')}$"):
        load(wrong)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, message in (
        ("{", "must be JSON, as transformers writes it; download it again"),
        ("[]", r"must be an object of JSON, not \[\]; pass a config.json"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"^models: 'config.json': {message}$"):
            load(path)
    with pytest.raises(ConfigError, match=r"^models: 'nothing': must be a file that can be read"):
        load(tmp_path / "nothing")
    with pytest.raises(TypeError, match=r"^models: a config must be a path or a dict, not 3; "):
        load(3)  # type: ignore[arg-type]
