"""What is checked before a kernel runs: what a chip has, races, deadlocks, bounds, bytes unset."""
