"""The kernels of matmul, one module a template: `tile` and `build`."""
