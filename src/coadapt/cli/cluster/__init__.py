"""Verbs about the running scheduler."""
