"""What may be given in a round, how counts are placed, and how it is said: shared by
all policies.
"""
