"""Rubick (Zhang et al., MLSys 2025): who pays for speed has it, the rest goes to
whoever gains most by it.
"""
