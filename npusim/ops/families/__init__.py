"""Families: operators that one kernel serves, each a row in a table of expressions.

A family is a module or folder here whose `OPERATORS` has an :class:`npusim.ops.Operator` for each
of its rows. Nothing else lists them.
"""
