"""Floor 2: scheduling policies. One paper, one file."""
