"""int8 rows times int4 weights: rows written as two int4 a number, and what their products become.

.. code-block:: text

    x = 16 hi + lo + 8,   hi = floor(x / 16),   lo = (x & 15) - 8        both in [-8, 7]

The cube multiplies int4 by int4. Row m of x becomes rows 2m, hi, and 2m + 1, lo; the fixpipe scales
the sums of both and rounds them to float16, group of k after group, each added in float16 to what
is there already. Vector cores then put them together: 16 hi + lo, and the 8 is in the numbers of
the columns that the caller adds, 8 times the sum of each column of the weight, scaled.

ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4/op_kernel, quant_batch_matmul_v4_msd.h;
ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel, grouped_matmul_antiquant_a8w4_msd*.h.
"""
