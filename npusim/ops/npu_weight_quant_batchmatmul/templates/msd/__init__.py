"""Template msd: x in digits, times the weight as it is. Each form has its module."""
