"""The kernels of npu_grouped_matmul, one module a template: `tile` and `build`."""
