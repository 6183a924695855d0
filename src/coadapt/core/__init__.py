"""Floor 2: the sans-I/O scheduler. No clock, socket, file, thread or randomness."""
