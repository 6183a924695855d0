"""Floor 4: executors: the local machine first."""
