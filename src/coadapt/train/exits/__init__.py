"""Stops and failures: how a run ends before its time."""
