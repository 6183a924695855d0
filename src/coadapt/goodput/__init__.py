"""Floor 1: goodput = throughput x statistical efficiency. Pure mathematics on numpy arrays."""
