"""Host implementations of operations for which neither npusim nor torch's CPU backend has a kernel.

Each function takes tensors on the host. On the card it counts as one operation that is not timed,
by its own name (:mod:`npusim.torch.fallback`, :mod:`npusim.torch.hosted`).
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.torch.host import (
    activations,
    batch_norms,
    boxes,
    cells,
    comparisons,
    convolutions,
    indices,
    optimizers,
    packing,
    regions,
    renorms,
    rotated,
    workers,
)

__all__ = ["GRADIENTS", "OF_TORCH", "OF_TORCH_NPU"]

Function = Callable[..., object]

OF_TORCH: dict[str, Function] = {
    "aten._log_softmax.default": activations.log_softmax,
    "aten._fused_adamw_.default": optimizers.fused_adamw,
    "aten._nnpack_spatial_convolution.default": convolutions.nnpack,
    "aten._softmax.default": activations.softmax,
    "aten._softmax_backward_data.default": activations.softmax_backward,
    "aten._log_softmax_backward_data.default": activations.log_softmax_backward,
    "aten._thnn_fused_gru_cell.default": cells.gru_cell,
    "aten._thnn_fused_gru_cell_backward.default": cells.gru_cell_backward,
    "aten._thnn_fused_lstm_cell.default": cells.lstm_cell,
    "aten._thnn_fused_lstm_cell_backward_impl.default": cells.lstm_cell_backward,
    "aten.batch_norm_backward_elemt.default": batch_norms.backward_elemt,
    "aten.batch_norm_backward_reduce.default": batch_norms.backward_reduce,
    "aten.batch_norm_elemt.default": batch_norms.elemt,
    "aten.batch_norm_elemt.out": batch_norms.elemt_into,
    "aten.batch_norm_gather_stats.default": batch_norms.gather_stats,
    "aten.batch_norm_gather_stats_with_counts.default": batch_norms.gather_stats_with_counts,
    "aten.batch_norm_stats.default": batch_norms.stats,
    "aten.hardsigmoid.default": activations.hardsigmoid,
    "aten.hardsigmoid.out": activations.hardsigmoid_into,
    "aten.one_hot.default": indices.one_hot,
    "aten.renorm.default": renorms.renorm,
    "aten.renorm.out": renorms.renorm_into,
    "aten.renorm_.default": renorms.renorm_,
    **comparisons.OF_NUMBERS,
}
"""Operation that torch implements only for other accelerators, or computes differently from a card
-> the function that computes it."""
OF_TORCH_NPU: dict[str, Function] = {
    "_npu_ciou": boxes.ciou_with_angles,
    "batch_norm_gather_stats_update": batch_norms.gather_stats_update,
    "batch_norm_reduce": batch_norms.reduce,
    "npu_anchor_response_flags": boxes.anchor_response_flags,
    "npu_attention_worker_combine": workers.attention_worker_combine,
    "npu_batch_nms": regions.batch_nms,
    "npu_bounding_box_decode": boxes.bounding_box_decode,
    "npu_bounding_box_encode": boxes.bounding_box_encode,
    "npu_ciou": boxes.ciou,
    "npu_diou": boxes.diou,
    "npu_diou_backward": boxes.diou_backward,
    "npu_ffn_worker_batching": workers.ffn_worker_batching,
    "npu_giou": boxes.giou,
    "npu_giou_backward": boxes.giou_backward,
    "npu_grid_assign_positive": boxes.grid_assign_positive,
    "npu_ifmr": packing.ifmr,
    "npu_iou": boxes.iou,
    "npu_masked_fill_range": packing.masked_fill_range,
    "npu_nms_rotated": rotated.nms,
    "npu_nms_v4": regions.nms_v4,
    "npu_nms_with_mask": regions.nms_with_mask,
    "npu_ptiou": boxes.iou,
    "npu_random_choice_with_mask": packing.random_choice_with_mask,
    "npu_renorm_backward": renorms.renorm_backward,
    "npu_roi_align": regions.roi_align,
    "npu_roi_alignbk": regions.roi_align_backward,
    "npu_rotated_box_decode": rotated.box_decode,
    "npu_rotated_box_encode": rotated.box_encode,
    "npu_rotated_iou": rotated.iou,
    "npu_rotated_overlaps": rotated.overlaps,
    "npu_sign_bits_pack": packing.sign_bits_pack,
    "npu_sign_bits_unpack": packing.sign_bits_unpack,
    "npu_yolo_boxes_encode": boxes.yolo_boxes_encode,
}
"""Operator of torch_npu -> the function that computes it."""
GRADIENTS = {
    "npu_diou": "input, gtboxes: npu_diou_backward(grad, input, gtboxes, trans, is_cross, mode)",
    "npu_giou": "input, gtboxes: npu_giou_backward(grad, input, gtboxes, trans, is_cross, mode)",
}
"""Operator of torch_npu -> the operator that computes its gradients (op-plugin, derivatives.yaml).
"""
