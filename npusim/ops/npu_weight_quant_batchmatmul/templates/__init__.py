"""The kernels of npu_weight_quant_batchmatmul, one module each: `tile` and `build`."""
