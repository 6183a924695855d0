"""Orders and shares that need no paper: what every other scheduler is compared with."""
