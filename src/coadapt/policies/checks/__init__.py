"""Whether a policy keeps the contract: `check_policy`, and the views that it is tried
on.
"""
