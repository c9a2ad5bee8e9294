"""To go: the name under which others still import :mod:`npusim.ops._operands`."""

from npusim.ops._operands import fixpipe_words

__all__ = ["fixpipe_words"]
