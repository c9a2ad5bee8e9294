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
    "output_norm": "the norm of the output of attention or products, in models that have it",
    "quantize": "quantisation of rows by a fixed scale, as a separate kernel",
    "dynamic_quant": "quantisation of rows by a scale for each, as a separate kernel",
    # ---- products ----
    "qkv": "queries, keys and values in one product",
    "o": "the output projection of attention",
    "gate_up": "the gate and up projections in one product",
    "down": "the down projection",
    "swiglu": "SwiGLU of gate and up",
    "swiglu_quant": "the same, quantised by a scale for each row",
    "all_reduce": "the sum over the cards of a layer; nothing on one card",
    # ---- heads ----
    "slice_q": "queries, copied to be contiguous",
    "slice_k": "keys, copied to be contiguous",
    "slice_v": "values, copied to be contiguous",
    "split": "all three by one kernel",
    "q_norm": "the norm of each head of queries, in models that have it",
    "k_norm": "the norm of each head of keys, in models that have it",
    "qk_norm": "both by one kernel",
    "rope": "rotary embedding of queries and keys",
    "qk_norm_rope": "split, norms and rope by one kernel; by slices and rope without norms",
    "cache_write": "keys and values written to their pages",
    "rope_and_cache": "rope and cache_write by one kernel",
    "attention": "attention of queries to the pages of the caches",
    "copy_heads": "the output of attention, copied to where the product reads it",
    # ---- latent attention ----
    "qkv_a": "the compressed rows of queries, and of keys and values",
    "slice_latent": "both, copied to be contiguous",
    "q_a_norm": "the norm of the compressed row of queries",
    "q_b": "queries from their compressed row",
    "absorb_k": "queries times the weight that would expand keys",
    "latent_rope": "rotary embedding of the rotated part of queries",
    "kv_norm_rope_cache": "norm, rope and cache of the compressed row of keys and values",
    "mla_preprocess": "all of these in one kernel; without int8 weights, as separate kernels",
    "latent_attention": "attention of queries to the compressed rows in the caches",
    "absorb_v": "its output times the weight that would expand values",
    "expand_kv": "keys and values of all heads from their compressed rows",
    "expanded_attention": "attention of queries to the keys and values of all heads",
    "zero_heads": "the rows that attention writes to, filled with zeros",
    "copy_rows": "the output of the product, copied",
    # ---- experts ----
    "gate_cast": "rows as fp32, for the gate",
    "gate": "the score of each expert for each token, in fp32",
    "gate_short": "the same in the type of the activations",
    "gating_top_k": "the experts of each token",
    "gating_softmax": "the same by a softmax over all",
    "ids_cast": "ids of experts as int32",
    "weights_cast": "the weights of experts as fp32",
    "gather_tokens": "tokens of all cards that decode separately; nothing on one",
    "scatter_tokens": "their sums back; nothing on one",
    "init_routing": "tokens sorted by expert",
    "init_routing_quant": "the same, quantised by a scale for each row",
    "counts_cast": "tokens of each expert as int64",
    "counts_sum": "their running sum",
    "pad_tokens": "tokens padded to a multiple of the cards, and cut",
    "experts_up": "the gate and up projections of all experts in one grouped product",
    "experts_swiglu": "SwiGLU of each row",
    "experts_swiglu_quant": "the same, quantised by a scale for each row",
    "experts_quant": "quantisation of rows by a scale for each, as a separate kernel",
    "experts_up_swiglu_quant": "grouped product, swiglu and quantisation by one kernel",
    "experts_down": "the down projections of all experts in one grouped product",
    "abs_index": "indices of sorted rows without sign",
    "unpermute": "rows back to their tokens, weighted and added",
    "dispatch": "tokens to the cards of their experts",
    "combine": "rows back to the cards of their tokens, weighted and added",
    "all_gather": "rows of all cards of a layer",
    "all_to_all": "rows to the cards of their experts, in two exchanges, with counts first",
    "all_to_all_back": "rows back",
    "shared_quant": "rows for the shared expert, by a scale for each; nothing without it",
    "shared_gate_up": "the gate and up projections of the shared expert",
    "shared_swiglu": "SwiGLU in the shared expert",
    "shared_swiglu_quant": "the same, quantised by a scale for each row",
    "shared_down": "the down projection of the shared expert",
    "muls_add": "the outputs of both, added",
    # ---- both ends ----
    "rotary_tables": "cosines and sines of the positions",
    "embedding_mask": "ids of tokens that other cards hold, masked; nothing on one card",
    "embedding": "rows of the table of tokens",
    "take_rows": "the last row of each request",
    "lm_head": "rows times the table of tokens",
    "gather_logits": "the parts of all cards put together; nothing on one card",
    "cast_logits": "logits as fp32",
    "argmax": "the most likely token",
}
"""Word -> what it does."""
