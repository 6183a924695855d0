"""Rubick (Zhang et al., MLSys 2025): a job that pays for speed has it, the rest goes to
the job that gains most by it.
"""
