"""From a data set to the passes of a step; validation."""
