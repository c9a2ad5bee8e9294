"""A weight dequantised by the vector cores: what the templates custom, split_k and nz_splitk share.

A *tile* is a rectangle of the weight as it is stored, `(rows, columns)`:

.. code-block:: text

    load    (rows, columns) int8 or int4, and the scales and offsets of its columns or rows
    cast    -> fp16, exactly
    add     the offset, in fp16 or fp32
    mul     the scale, in fp16 or fp32
    store   (rows, columns) fp16 or bf16, in the layout of the weight

See `kernel` for these steps, `ub_tile` for the layout of a tile in the unified buffer, and
`parameters` for scales and offsets there.
"""
