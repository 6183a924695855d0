"""`make demo`: four real training jobs under a real scheduler on this machine, and what
became of them.
"""
