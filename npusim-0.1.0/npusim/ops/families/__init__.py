"""Families: operators that one kernel serves, each a row in a table of what it computes.

A family is a module or a folder here whose `OPERATORS` holds an :class:`npusim.ops.Operator` for
each of its rows. Nothing else lists them.
"""
