"""Values: what each micro-op computes, bit for bit, without regard to time."""
