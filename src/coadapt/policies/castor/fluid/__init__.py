"""The fluid: what becomes of all jobs if GPUs always go where they are worth most."""
