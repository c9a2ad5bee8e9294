"""What the operators share that scale rows by their root mean square.

.. code-block:: text

    r = 1 / sqrt(mean(x * x) + epsilon)
    y = x * r * gamma

``contract`` holds what all of them ask of gamma and epsilon, ``rows`` which rows a core gets,
``sums`` the two orders in which the vendor's kernels add up a row, ``steps`` the buffers and steps
that the kernels have in common, and ``oracle`` the same sums and roundings in plain numpy.

Source of all of them: ops-nn@e5c3fa9 norm/rms_norm, norm/add_rms_norm, norm/add_rms_norm_quant and
norm/add_rms_norm_dynamic_quant, their op_kernel and op_host.
"""
