"""What a run saves, and the files that it goes to."""
