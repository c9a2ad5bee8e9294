"""The kernels of quant_batch_matmul_v4: int8 times int4, and int4 with scales of groups.

========  ==========================================================================================
msd       int8 times int4: vector cores write x1 as two int4 a number, see `_int4_matmul`
pergroup  int4 times int4 with scales and offsets of groups of k, which vector cores apply
========  ==========================================================================================

ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4, op_host/op_tiling and op_kernel.
"""
