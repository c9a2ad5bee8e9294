"""What the operators share that route tokens to experts."""
