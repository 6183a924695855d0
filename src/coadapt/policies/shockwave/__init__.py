"""Shockwave: fair and efficient scheduling of jobs that change their own batch (NSDI
2023).
"""
