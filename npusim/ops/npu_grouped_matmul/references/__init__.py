"""A group of rows in plain numpy, one module a way to compute it: `rows`."""
