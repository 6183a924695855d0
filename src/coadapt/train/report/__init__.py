"""What a run tells the scheduler."""
