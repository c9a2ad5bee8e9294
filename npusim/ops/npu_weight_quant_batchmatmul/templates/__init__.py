"""The kernels of npu_weight_quant_batchmatmul: `tile` and `build` of each, and what they share."""
