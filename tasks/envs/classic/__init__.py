"""Classic control as vectorized equations; only environments whose whole state is known belong here."""
