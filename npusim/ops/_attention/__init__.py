"""What the operators of attention share: the call as kernels see it, and the kernels themselves."""
