"""Kernel IFA: attention of single tokens to keys and values of int8, which nothing dequantises.

.. code-block:: text

    vector cores  query, divided by its largest magnitude, in two digits of int8       (rows x 2)
    cube core     S = digits @ K^T, int32                                to a workspace
    vector cores  S of both digits together; maximum, exp, sum; P in two digits of int8
    cube core     digits @ V, int32
    vector cores  O = O * shrink + both digits together * scale

Sources: ops-transformer@3a280bc attention/incre_flash_attention/op_kernel/arch22,
incre_flash_attention_preload.h. Assumed: that it takes all calls that are simulated; tiles, slots,
buffers, and the split of rows over cores, which are those of kernel FIA, its successor; and which
flag says that the digits of a query are there.
"""
