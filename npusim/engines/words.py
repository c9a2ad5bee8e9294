"""The words in an engine's lists of kernels: what each launches for a layer, or before and after.

Kernels pass values by name: an earlier word must produce what a later one needs.
"""

from __future__ import annotations

__all__ = ["ALL", "WORDS"]

ALL = "all"
"""In the list of words launched singly: every kernel."""

WORDS: dict[str, str] = {
    # ---- norms and quantisation ----
    "rms_norm": "rows over their root mean square",
    "rms_norm_quant": "the same, quantised by a fixed scale",
    "add": "rows and residual, added",
    "add_rms_norm": "both in one kernel",
    "add_rms_norm_quant": "the same, quantised by a fixed scale",
    "add_rms_norm_dynamic_quant": "the same, quantised by a scale for each row",
    "output_norm": "the norm of what attention or products give, of models that have it",
    "quantize": "rows by a fixed scale, a kernel of its own",
    "dynamic_quant": "rows by a scale for each, a kernel of its own",
    # ---- products ----
    "qkv": "queries, keys and values in one product",
    "o": "heads back to rows",
    "gate_up": "gate and up in one product",
    "down": "back to rows",
    "swiglu": "gate and up to one half",
    "swiglu_quant": "the same, quantised by a scale for each row",
    "all_reduce": "the sum over the cards of a layer; nothing on one card",
    # ---- heads ----
    "slice_q": "queries in one piece",
    "slice_k": "keys in one piece",
    "slice_v": "values in one piece",
    "split": "all three by one kernel",
    "q_norm": "norm of each head of queries, of models that have it",
    "k_norm": "norm of each head of keys, of models that have it",
    "qk_norm": "both by one kernel",
    "rope": "queries and keys turned by their positions",
    "qk_norm_rope": "split, norms and rope by one kernel; by slices and rope without norms",
    "cache_write": "keys and values into their pages",
    "rope_and_cache": "rope and cache_write by one kernel",
    "attention": "queries over the pages of the caches",
    "copy_heads": "what attention gives, copied to where the product reads",
    # ---- latent attention ----
    "qkv_a": "the short rows of queries, and of keys and values",
    "slice_latent": "both in one piece",
    "q_a_norm": "norm of the short row of queries",
    "q_b": "queries from their short row",
    "absorb_k": "queries times the weight that would expand keys",
    "latent_rope": "the turned part of queries",
    "kv_norm_rope_cache": "norm, rope and cache of the short row of keys and values",
    "mla_preprocess": "all of these by one kernel; without int8 weights, by kernels",
    "latent_attention": "queries over the short rows in the caches",
    "absorb_v": "what it gives times the weight that would expand values",
    "expand_kv": "keys and values of all heads from their short rows",
    "expanded_attention": "queries over the keys and values of all heads",
    "zero_heads": "the rows that attention writes to, filled with zeros",
    "copy_rows": "what the product gives, copied",
    # ---- experts ----
    "gate_cast": "rows as fp32, for the gate",
    "gate": "how much of each token each expert gets, in fp32",
    "gate_short": "the same in the type of the activations",
    "gating_top_k": "the experts of each token",
    "gating_softmax": "the same by a softmax over all",
    "ids_cast": "numbers of experts as int32",
    "weights_cast": "weights of experts as fp32",
    "gather_tokens": "tokens of all cards that decode apart; nothing on one",
    "scatter_tokens": "their sums back; nothing on one",
    "init_routing": "tokens sorted by expert",
    "init_routing_quant": "the same, quantised by a scale for each row",
    "counts_cast": "tokens of each expert as int64",
    "counts_sum": "their running sum",
    "pad_tokens": "tokens padded to a multiple of the cards, and cut",
    "experts_up": "gate and up of all experts in one grouped product",
    "experts_swiglu": "gate and up of each row to one half",
    "experts_swiglu_quant": "the same, quantised by a scale for each row",
    "experts_quant": "rows by a scale for each, a kernel of its own",
    "experts_up_swiglu_quant": "grouped product, swiglu and quantisation by one kernel",
    "experts_down": "back to rows, in one grouped product",
    "abs_index": "places of sorted rows without sign",
    "unpermute": "rows back to their tokens, weighed and added",
    "dispatch": "tokens to the cards of their experts",
    "combine": "rows back to the cards of their tokens, weighed and added",
    "all_gather": "rows of all cards of a layer",
    "all_to_all": "rows to the cards of their experts, by two exchanges with counts first",
    "all_to_all_back": "rows back",
    "shared_quant": "rows by a scale for each, for the expert of all tokens; none without it",
    "shared_gate_up": "gate and up of the expert of all tokens",
    "shared_swiglu": "gate and up of it to one half",
    "shared_swiglu_quant": "the same, quantised by a scale for each row",
    "shared_down": "back to rows",
    "muls_add": "what both give, added",
    # ---- both ends ----
    "rotary_tables": "cosines and sines of the positions",
    "embedding_mask": "ids of words that other cards have, masked; nothing on one card",
    "embedding": "rows of the table of words",
    "take_rows": "the last row of each request",
    "lm_head": "rows times the table of words",
    "gather_logits": "parts of all cards in one piece; nothing on one card",
    "cast_logits": "as fp32",
    "argmax": "the likeliest word",
}
"""Word -> what it does."""
