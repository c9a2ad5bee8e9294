"""A weight made floats by the vector cores: what the templates custom, split_k and nz_splitk share.

A *tile* is a rectangle of the weight as it lies in memory. See `kernel` for the steps of a tile,
`ub_tile` for how one lies in the unified buffer, and `parameters` for scales and offsets there.
"""
