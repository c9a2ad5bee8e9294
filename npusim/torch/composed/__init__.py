"""Operators of torch_npu composed of torch's operations and of operators that npusim simulates.

Their fused kernels are not simulated, because they are not public or not implemented yet. The
docstring of each function or module describes what runs instead, and what is assumed about values
and time. Each part is a separate launch with its own time, and appears under its own name in
profiles. Gradients are those of the parts.

A function has the parameters of the operator's schema, which torch_npu publishes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from npusim.ops import TorchFunction
from npusim.published import schemas
from npusim.torch import logits
from npusim.torch.composed import (
    activations,
    atb,
    atb_attention,
    attention,
    block_sparse,
    caches,
    convolutions,
    delta_rule,
    dropout,
    experts,
    feed_forward,
    fusion_attention,
    latent,
    layouts,
    legacy,
    losses,
    merging,
    native_sparse,
    norms,
    optimisers,
    pooling,
    products,
    quantised,
    rotations,
    routing,
    routing_gradients,
    sampling,
    sparse,
)

__all__ = ["COMPOSED", "OF_ATB", "PARTS", "declared"]

Composed = Callable[..., object]

COMPOSED: dict[str, Composed] = {
    "_npu_dropout": dropout.npu_dropout,
    "_npu_dropout_gen_mask.Tensor": dropout.npu_dropout_gen_mask,
    "_npu_fused_infer_attention_score_get_max_workspace": attention.first_workspace,
    "_npu_fused_infer_attention_score_infer_output": attention.first_infer_output,
    "_npu_fused_infer_attention_score_v2_get_max_workspace": attention.second_workspace,
    "_npu_fused_infer_attention_score_v2_infer_output": attention.second_infer_output,
    "_npu_moe_token_unpermute": routing.token_unpermute,
    "copy_memory_": legacy.copy_memory_,
    "dropout_with_byte_mask": legacy.dropout_with_byte_mask,
    "npu_add_layer_norm": norms.add_layer_norm,
    "npu_add_rms_norm_v2": norms.add_rms_norm_v2,
    "npu_add_rms_norm_v2_functional": norms.add_rms_norm_v2_functional,
    "npu_alloc_float_status": legacy.alloc_float_status,
    "npu_apply_adam.out": optimisers.apply_adam,
    "npu_apply_adam_w.out": optimisers.apply_adam_w,
    "npu_attention_update": merging.attention_update,
    "npu_attn_softmax_": merging.attn_softmax_,
    "npu_attn_softmax_backward_": merging.attn_softmax_backward_,
    "npu_block_sparse_attention": block_sparse.block_sparse_attention,
    "npu_block_sparse_attention_backward": block_sparse.block_sparse_attention_backward,
    "npu_bert_apply_adam.out": legacy.bert_apply_adam,
    "npu_binary_cross_entropy_with_logits_backward": logits.backward,
    "npu_bmmV2": products.bmm_v2,
    "npu_bmm_v2_mat1_backward": products.bmm_v2_mat1_backward,
    "npu_bmm_v2_mat2_backward": products.bmm_v2_mat2_backward,
    "npu_broadcast": layouts.broadcast,
    "npu_chunk_gated_delta_rule": delta_rule.chunk_gated_delta_rule,
    "npu_clipped_swiglu": activations.clipped_swiglu,
    "npu_confusion_transpose": layouts.confusion_transpose,
    "npu_confusion_transpose_backward": layouts.confusion_transpose_backward,
    "npu_deep_norm": norms.deep_norm,
    "npu_conv2d": convolutions.convolution,
    "npu_conv2d_backward": convolutions.convolution_backward,
    "npu_conv3d": convolutions.convolution,
    "npu_conv3d_backward": convolutions.convolution_backward,
    "npu_conv_transpose2d": convolutions.convolution_transpose,
    "npu_convolution": convolutions.convolution,
    "npu_convolution_backward": convolutions.convolution_backward,
    "npu_convolution_transpose": convolutions.convolution_transpose,
    "npu_deformable_conv2d": convolutions.deformable_conv2d,
    "npu_deformable_conv2dbk": convolutions.deformable_conv2d_backward,
    "npu_dropout_backward": dropout.npu_dropout_backward,
    "npu_dtype_cast": layouts.dtype_cast,
    "npu_dtype_cast_backward": layouts.dtype_cast_backward,
    "npu_ffn": feed_forward.ffn,
    "npu_fused_cross_entropy_loss_with_max_sum": losses.cross_entropy_with_max_sum,
    "npu_fused_infer_attention_score.out": attention.first_out,
    "npu_fused_infer_attention_score_v2.out": attention.second_out,
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward": (
        losses.linear_cross_entropy_backward
    ),
    "npu_fused_linear_online_max_sum": losses.online_max_sum,
    "npu_fusion_attention_grad_v3": fusion_attention.npu_fusion_attention_grad_v3,
    "npu_fusion_attention_v3": fusion_attention.npu_fusion_attention_v3,
    "npu_gather_pa_kv_cache": caches.gather_pa_kv_cache,
    "npu_gather_pa_kv_cache_functional": caches.gather_pa_kv_cache_functional,
    "npu_gather_sparse_index": layouts.gather_sparse_index,
    "npu_gelu_mul": activations.gelu_mul,
    "npu_gemma_rms_norm": norms.gemma_rms_norm,
    "npu_group_norm_silu": norms.group_norm_silu,
    "npu_group_norm_swish": activations.group_norm_swish,
    "npu_grouped_matmul_swiglu_quant_v2": quantised.grouped_matmul_swiglu_quant_v2,
    "npu_kronecker_quant": quantised.kronecker_quant,
    "npu_indexing": legacy.indexing,
    "npu_kv_rmsnorm_rope_cache_v2": caches.kv_rmsnorm_rope_cache_v2,
    "npu_layer_norm_eval": norms.layer_norm_eval,
    "npu_lightning_indexer": sparse.lightning_indexer,
    "npu_linear": products.linear,
    "npu_linear_backward": products.linear_backward,
    "npu_masked_softmax_with_rel_pos_bias": merging.masked_softmax_with_rel_pos_bias,
    "npu_max.dim": legacy.max_dim,
    "npu_min.dim": legacy.min_dim,
    "npu_mish": torch.nn.functional.mish,
    "npu_mla_prolog": latent.mla_prolog,
    "npu_mla_prolog_v2": latent.mla_prolog_v2,
    "npu_mla_prolog_v3": latent.mla_prolog_v3,
    "npu_mla_prolog_v3_functional": latent.mla_prolog_v3_functional,
    "npu_moe_gating_top_k_softmax_v2": experts.gating_top_k_softmax_v2,
    "npu_moe_init_routing_quant": experts.init_routing_quant,
    "npu_moe_token_permute_grad": routing_gradients.permute_grad,
    "npu_moe_token_unpermute_grad": routing_gradients.unpermute_grad,
    "npu_mrope": rotations.mrope,
    "npu_nsa_select_attention": native_sparse.select_attention,
    "npu_one_hot": layouts.one_hot,
    "npu_pad": layouts.pad,
    "npu_prefetch": caches.prefetch,
    "npu_prompt_flash_attention": attention.prompt_flash_attention,
    "npu_ps_roi_pooling": pooling.ps_roi_pooling,
    "npu_ps_roi_pooling_backward": pooling.ps_roi_pooling_backward,
    "npu_quant_matmul_gelu": quantised.quant_matmul_gelu,
    "npu_quant_matmul_reduce_sum": quantised.quant_matmul_reduce_sum,
    "npu_quant_scatter": quantised.quant_scatter,
    "npu_quant_scatter_": quantised.quant_scatter_,
    "npu_reshape": layouts.reshape,
    "npu_ring_attention_update": merging.ring_attention_update,
    "npu_rms_norm_quant": quantised.rms_norm_quant,
    "npu_scaled_masked_softmax": norms.scaled_masked_softmax,
    "npu_silu": torch.nn.functional.silu,
    "npu_sim_exponential_": sampling.sim_exponential_,
    "npu_silu_": legacy.silu_,
    "npu_slice": layouts.sliced,
    "npu_softmax_cross_entropy_with_logits": norms.softmax_cross_entropy_with_logits,
    "npu_sort_v2": layouts.sort_v2,
    "npu_sparse_flash_attention": sparse.sparse_flash_attention,
    "npu_top_k_top_p": sampling.top_k_top_p,
    "npu_stride_add": legacy.stride_add,
    "npu_transpose": layouts.transpose,
    "scatter_update": caches.scatter_update,
    "scatter_update_": caches.scatter_update_,
}
"""Name in the namespace `npu`, with its overload -> the function that runs."""
OF_ATB: dict[str, Composed] = {
    "_npu_flash_attention": attention.flash_attention,
    "_npu_flash_attention_prefix_v2": atb_attention.flash_attention_prefix_v2,
    "_npu_flash_attention_qlens": attention.flash_attention_qlens,
    "_npu_flash_attention_unpad": attention.flash_attention_unpad,
    "_npu_flash_attention_unpad_v2": atb_attention.flash_attention_unpad_v2,
    "_npu_flash_attention_v2": atb_attention.flash_attention_v2,
    "_npu_flash_attention_v3": atb_attention.flash_attention_v3,
    "_npu_group_topk": atb.group_topk,
    "_npu_matmul_add_fp32": atb.matmul_add_fp32,
    "_npu_multi_head_latent_attention_get_workspace": attention.workspace,
    "_npu_paged_attention": attention.paged_attention,
    "_npu_paged_attention_get_workspace": attention.workspace,
    "_npu_paged_attention_mla": atb_attention.paged_attention_mla,
    "_npu_paged_attention_quant": atb_attention.paged_attention_quant,
    "_npu_paged_attention_splitfuse": attention.paged_attention_splitfuse,
    "_npu_paged_attention_v2": atb_attention.paged_attention_v2,
    "_npu_paged_attention_v2_get_workspace": attention.workspace,
    "_npu_quant_rms_norm": atb.quant_rms_norm,
    "_npu_quantize_per_tensor": atb.quantize_per_tensor,
    "_npu_reshape_and_cache_siso": atb.reshape_and_cache_siso,
    "_npu_rotary_embedding": atb.rotary_embedding,
    "npu_multi_head_latent_attention": atb_attention.latent_attention,
    "npu_paged_cache_load": atb.paged_cache_load,
    "npu_ring_mla": atb_attention.ring_mla,
}
"""Function of ATB in torch_npu -> the function that runs. They are not in the namespace `npu`."""
PARTS: dict[str, Composed] = {
    "npu_fusion_attention": fusion_attention.npu_fusion_attention,
    "npu_fusion_attention_grad": fusion_attention.npu_fusion_attention_grad,
    "npu_fusion_attention_grad_v2": fusion_attention.npu_fusion_attention_grad_v2,
    "npu_fusion_attention_v2": fusion_attention.npu_fusion_attention,
    "npu_kv_rmsnorm_rope_cache": caches.kv_rmsnorm_rope_cache,
    "npu_moe_compute_expert_tokens": routing.compute_expert_tokens,
    "npu_moe_gating_top_k_softmax": experts.gating_top_k_softmax,
    "npu_moe_init_routing": routing.init_routing,
    "npu_moe_token_permute": routing.token_permute,
}
"""Operator of npusim -> the function that runs if its kernel rejects a call that a card accepts."""


def declared() -> dict[str, TorchFunction]:
    """The functions of torch_npu that are defined here, by their full names."""
    found = {}
    for schema in schemas():
        name = schema.partition("(")[0]
        if name in COMPOSED:
            found[name] = TorchFunction(schema=schema, aclnn=lambda _: "", outputs=lambda *_: ())
    return found
