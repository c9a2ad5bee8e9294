"""Functions of torch_npu that npusim.torch computes and times, and that are no operators here.

They are made of several kernels, or of cards that communicate.
"""

from __future__ import annotations

__all__ = ["OF_SEVERAL_CARDS", "UNDER_TORCH"]

UNDER_TORCH = frozenset(
    (
        *("empty_with_format", "fast_gelu", "npu_add_layer_norm", "npu_add_rms_norm_v2"),
        *("npu_add_rms_norm_v2_functional", "npu_all_gather_base_mm", "npu_apply_adam"),
        *("npu_apply_adam_w", "npu_bmmV2", "npu_bmm_v2_mat1_backward", "npu_bmm_v2_mat2_backward"),
        *("npu_broadcast", "npu_confusion_transpose", "npu_confusion_transpose_backward"),
        *("npu_deep_norm", "npu_dtype_cast", "npu_dtype_cast_backward", "npu_format_cast_"),
        *(
            "npu_fusion_attention_grad",
            "npu_fusion_attention_grad_v2",
            "npu_fusion_attention_grad_v3",
        ),
        *("npu_fusion_attention_v3", "npu_gemma_rms_norm", "npu_group_norm_silu"),
        *("npu_kv_rmsnorm_rope_cache", "npu_kv_rmsnorm_rope_cache_v2", "npu_layer_norm_eval"),
        *(
            "npu_lightning_indexer",
            "npu_linear",
            "npu_linear_backward",
            "npu_mish",
            "npu_mla_prolog",
        ),
        *("npu_mla_prolog_v2", "npu_mla_prolog_v3", "npu_mla_prolog_v3_functional"),
        *("npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base", "npu_moe_compute_expert_tokens"),
        *("npu_moe_distribute_combine", "npu_moe_distribute_combine_v2"),
        *("npu_moe_distribute_dispatch", "npu_moe_distribute_dispatch_v2", "npu_moe_init_routing"),
        *("npu_moe_token_permute_grad", "npu_moe_token_unpermute_grad", "npu_one_hot", "npu_pad"),
        *("npu_prefetch", "npu_prompt_flash_attention", "npu_reshape", "npu_scaled_masked_softmax"),
        *(
            "npu_scatter_nd_update_",
            "npu_silu",
            "npu_slice",
            "npu_softmax_cross_entropy_with_logits",
        ),
        *("npu_sort_v2", "npu_sparse_flash_attention", "npu_transpose", "scatter_update"),
        *("scatter_update_", "unsafe_empty_with_format"),
    )
)
OF_SEVERAL_CARDS = ("all_gather", "all_reduce", "distribute", "reduce_scatter")
"""What the names of functions have in them that are called on several cards at once."""
