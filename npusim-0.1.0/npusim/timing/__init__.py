"""Timing: how many cycles each micro-op takes, and which of them overlap."""
