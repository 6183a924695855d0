"""Floor 3: the ports, the loop that runs the core over them, stores and solvers."""
