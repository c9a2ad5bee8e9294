"""A transformers config.json, read as far as kernels depend on it.

A family is a row of the table below: the kind of its attention, and the keys of its experts. Keys
that a config omits have the default of the class of transformers, if that class has one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from npusim.data.errors import shown
from npusim.data.files import content
from npusim.models.shapes import Experts, Heads, Latent, Shapes

__all__ = ["ConfigError", "read"]

MOST_BYTES = 1 << 20
"""The largest file that is read: a config.json has some kilobytes."""
MOST = 1 << 32
"""The largest number that is accepted: no size of a model is as large."""
CONFIG = "config.json"


class ConfigError(ValueError):
    """A config.json cannot be read, or describes an unknown model."""


def read(config: str | os.PathLike[str] | Mapping[str, Any]) -> Shapes:
    """The shapes of the model that *config* describes: a file, its folder, or its contents.

    Raises ConfigError.
    """
    if isinstance(config, Mapping):
        return _Reader("config", config).shapes()
    if not isinstance(config, str | os.PathLike):
        raise TypeError(
            f"models: a config must be a path or a dict, not {shown(config)}; pass a config.json"
        )
    path = Path(config).expanduser()
    path = path / CONFIG if path.is_dir() else path
    return _Reader(shown(path.name), _tree(path)).shapes()


def _tree(path: Path) -> Mapping[str, Any]:
    who = f"models: {shown(path.name)}"
    try:
        tree = json.loads(content(path, MOST_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{who}: must be a file that can be read, but: {error.strerror}; "
            f"check the path {shown(str(path))}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{who}: must be JSON, as transformers writes it; download it again"
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{who}: must be an object of JSON, not {shown(tree)}; pass a config.json"
        )
    return tree


# ---- families ----


@dataclass(frozen=True, slots=True)
class _Family:
    """The common properties of the models of one architecture."""

    attention: Callable[[_Reader], Heads | Latent]
    experts: Callable[[_Reader], Experts] | None = None
    has_output_norms: bool = False
    is_tied: bool = False
    """Whether input and output embeddings are tied if the config does not say."""


class _Reader:
    """A config whose entries are checked when they are read."""

    def __init__(self, who: str, tree: Mapping[str, Any]) -> None:
        self._who, self._tree = f"models: {who}", tree

    def shapes(self) -> Shapes:
        """The whole decoder; raises ConfigError with every missing key."""
        name = self._architecture()
        family = FAMILIES[name]
        keys = [*ALWAYS, *(LATENT_KEYS if family.attention is _latent else ())]
        keys += EXPERT_KEYS.get(name, ())
        missing = [key for key in keys if self._tree.get(key) is None]
        if missing:
            raise ConfigError(
                f"{self._who}: a config of {name} must have {', '.join(keys)}, but "
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
                f"take the whole config.json of the model"
            )
        experts = family.experts(self) if family.experts else None
        return Shapes(
            architecture=name,
            hidden=self.size("hidden_size"),
            layers=self.size("num_hidden_layers"),
            vocabulary=self.size("vocab_size"),
            longest=self.size("max_position_embeddings", LONGEST),
            attention=family.attention(self),
            intermediate=self.size("intermediate_size"),
            experts=experts if experts and experts.layers else None,
            has_output_norms=family.has_output_norms,
            is_tied=self.flag("tie_word_embeddings", family.is_tied),
        )

    def _architecture(self) -> str:
        known = ", ".join(FAMILIES)
        found = self._tree.get("architectures")
        if not isinstance(found, list) or not found or not isinstance(found[0], str):
            raise ConfigError(
                f"{self._who}: architectures must be a list with the name of a class, not "
                f"{shown(found)}; known: {known}"
            )
        name = found[0]
        if name not in FAMILIES:
            near = get_close_matches(name, FAMILIES, n=1, cutoff=0.85)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"{self._who}: architectures must name a model that is known, not {shown(name)}; "
                f"{hint}known: {known}"
            )
        return name

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """The whole number at *key*, or *default* if it is missing."""
        value = self._tree.get(key)
        value = default if value is None else value
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value is None or not least <= value <= MOST:
            raise ConfigError(
                f"{self._who}: {key} must be a whole number from {least} to {MOST}, not "
                f"{shown(value)}; correct it"
            )
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """The boolean at *key*."""
        value = self._tree.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ConfigError(
                f"{self._who}: {key} must be true or false, not {shown(value)}; correct it"
            )
        return value

    def has(self, key: str) -> bool:
        """Whether *key* has a value."""
        return self._tree.get(key) is not None

    def word(self, key: str) -> object:
        """The value at *key*."""
        return self._tree.get(key)

    def refuse(self, text: str) -> ConfigError:
        """An error with *text* about this config."""
        return ConfigError(f"{self._who}: {text}")


LONGEST = 4096
"""For configs without the longest request, which GPT-2 and others have under other keys."""


def _heads(own: _Reader) -> Heads:
    count = own.size("num_attention_heads")
    kv_count = own.size("num_key_value_heads", count)
    if count % kv_count:
        raise own.refuse(
            f"num_attention_heads must be a multiple of num_key_value_heads = {kv_count}, not "
            f"{count}; correct one of them"
        )
    hidden = own.size("hidden_size")
    if not own.has("head_dim") and hidden % count:
        raise own.refuse(
            f"hidden_size must be a multiple of num_attention_heads = {count} where there is no "
            f"head_dim, not {hidden}; correct one of them, or give head_dim"
        )
    return Heads(count, kv_count, own.size("head_dim", max(1, hidden // count)))


def _normed_heads(own: _Reader) -> Heads:
    plain = _heads(own)
    size = own.size("head_dim", 128)  # Qwen3Config's default is not hidden / heads
    return Heads(plain.count, plain.kv_count, size, has_norms=True)


def _windowed_heads(own: _Reader) -> Heads:
    """Sliding windows: Gemma 2 in every other layer, Gemma 3 in five of six, Mistral in all."""
    plain = _heads(own)
    if not own.has("sliding_window"):
        return plain
    share = 1.0
    if own.word("architectures") == ["Gemma2ForCausalLM"]:
        share = 0.5
    elif own.word("architectures") == ["Gemma3ForCausalLM"]:
        share = 1 - 1 / own.size("sliding_window_pattern", 6)
    has_norms = share not in (0.5, 1.0)
    window = own.size("sliding_window")
    return Heads(plain.count, plain.kv_count, plain.size, has_norms, window, share)


def _latent(own: _Reader) -> Latent:
    q_rank = own.size("q_lora_rank") if own.has("q_lora_rank") else None
    return Latent(
        own.size("num_attention_heads"),
        q_rank,
        own.size("kv_lora_rank"),
        own.size("qk_rope_head_dim"),
        own.size("qk_nope_head_dim"),
        own.size("v_head_dim"),
    )


def _mixtral(own: _Reader) -> Experts:
    return Experts(
        own.size("num_local_experts"),
        own.size("num_experts_per_tok"),
        own.size("intermediate_size"),
        0,
        own.size("num_hidden_layers"),
    )


def _qwen_moe(own: _Reader) -> Experts:
    layers, step = own.size("num_hidden_layers"), own.size("decoder_sparse_step", 1)
    dense = own.word("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise own.refuse(f"mlp_only_layers must be a list, not {shown(dense)}; correct it")
    sparse = [each for each in range(layers) if each not in dense and (each + 1) % step == 0]
    return Experts(
        own.size("num_experts"),
        own.size("num_experts_per_tok"),
        own.size("moe_intermediate_size"),
        own.size("shared_expert_intermediate_size", 0, least=0),
        len(sparse),
    )


def _deepseek(own: _Reader) -> Experts:
    layers, shared = own.size("num_hidden_layers"), own.size("n_shared_experts", 0, least=0)
    intermediate = own.size("moe_intermediate_size")
    dense = own.size("first_k_dense_replace", 0, least=0)
    sparse = range(dense, layers, own.size("moe_layer_freq", 1))
    return Experts(
        own.size("n_routed_experts"),
        own.size("num_experts_per_tok"),
        intermediate,
        shared * intermediate,
        len(sparse),
        own.size("n_group", 1),
        own.size("topk_group", 1),
        is_sigmoid=own.word("scoring_func") == "sigmoid",
    )


ALWAYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
)  # fmt: skip
LATENT_KEYS = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
EXPERT_KEYS = {
    "MixtralForCausalLM": ("num_local_experts", "num_experts_per_tok"),
    "Qwen2MoeForCausalLM": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "Qwen3MoeForCausalLM": ("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "DeepseekV2ForCausalLM": ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
    "DeepseekV3ForCausalLM": ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
}
FAMILIES = {
    "LlamaForCausalLM": _Family(_heads),
    "MistralForCausalLM": _Family(_windowed_heads),
    "Qwen2ForCausalLM": _Family(_heads),
    "Qwen3ForCausalLM": _Family(_normed_heads),
    "Glm4ForCausalLM": _Family(_heads, has_output_norms=True),
    "GemmaForCausalLM": _Family(_heads, is_tied=True),
    "Gemma2ForCausalLM": _Family(_windowed_heads, has_output_norms=True, is_tied=True),
    "Gemma3ForCausalLM": _Family(_windowed_heads, has_output_norms=True, is_tied=True),
    "MixtralForCausalLM": _Family(_heads, _mixtral),
    "Qwen2MoeForCausalLM": _Family(_heads, _qwen_moe),
    "Qwen3MoeForCausalLM": _Family(_normed_heads, _qwen_moe),
    "DeepseekV2ForCausalLM": _Family(_latent, _deepseek),
    "DeepseekV3ForCausalLM": _Family(_latent, _deepseek),
}
"""Architecture, as named in `architectures` -> its family (transformers, models/*/configuration_*
and modeling_*, of that class)."""
