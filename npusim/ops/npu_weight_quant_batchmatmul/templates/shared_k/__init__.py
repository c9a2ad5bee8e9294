"""Kernels whose cube cores share k: what the templates split_k and nz_splitk have in common.

.. code-block:: text

    vector cores   sums = 0                                                         (sums.Zeros)
                   weight tiles int8 or int4 -> 16-bit, into the ring of their group  (ring)
    cube cores     x (m, its k) @ weight (its k, n), strip by strip, added to sums   (strip)
    vector cores   output = sums x scale + bias                                   (sums.Epilogue)

Sums of several cores, or such that a vector core must finish, are added up in float32 in global
memory, first k first; else a cube core stores its part of the output. See `kernel` for all of
it together.
"""
