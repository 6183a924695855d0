"""What stands around the user's model, optimiser and gradients."""
