"""To go: the name under which others still import :mod:`npusim.ops._matmul_oracle`."""

from npusim.ops._matmul_oracle import cube_product, exact_int, fixpipe_int8, scale_of_words

__all__ = ["cube_product", "exact_int", "fixpipe_int8", "scale_of_words"]
