"""To go: the name under which others still import :mod:`npusim.ops._operands`."""

from npusim.ops._operands import INT4_PER_INT32, logical_shape, unpacked_remedy

__all__ = ["INT4_PER_INT32", "logical_shape", "unpacked_remedy"]
