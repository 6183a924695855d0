"""Who trains together, and what replicas tell each other."""
