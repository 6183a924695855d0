"""What papers published, and the terms under which it was measured: their loop, rounds,
and options of policies.
"""
