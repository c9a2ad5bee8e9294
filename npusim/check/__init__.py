"""Checks before a kernel runs: device rules, races, deadlocks, bounds, uninitialised bytes."""
