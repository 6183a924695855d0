"""Built-in applications and workloads, so that everything works with no download."""
