"""The commands as they are typed: their words, options and help.

What does the work stands in the module of the same name in :mod:`npusim.cli`, and is loaded by the
command that was typed: ``npusim --help`` loads none of it.
"""
