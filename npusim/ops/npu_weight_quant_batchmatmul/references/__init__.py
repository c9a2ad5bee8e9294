"""npu_weight_quant_batchmatmul on whole arrays in plain numpy, one module a family of templates.

Every `+`, `*` and `/` on a float32 array is one IEEE operation of the vector pipe, rounded to
nearest even; each line rounds as often as it has operators.
"""
