"""Changing the number of replicas: in place or by a checkpoint."""
