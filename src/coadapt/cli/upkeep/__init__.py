"""Commands that check, back up, repair and tidy a state directory."""
