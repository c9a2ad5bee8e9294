"""Packed scales, contracts and differences, explained."""
