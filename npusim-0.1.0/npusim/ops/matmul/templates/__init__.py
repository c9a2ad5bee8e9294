"""The vendor's kernels for matmul: how each splits a call, and what its cores run."""
