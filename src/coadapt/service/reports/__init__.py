"""Training reports on their way in: read, checked, and handed over in groups."""
