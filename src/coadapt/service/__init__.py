"""Floor 4: the HTTP service."""
