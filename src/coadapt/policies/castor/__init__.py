"""Castor: GPUs go where they save most completion time. Read noise, play, values, round, placing."""
