"""matmul on whole arrays in plain numpy, where a template's order of sums is its own."""
