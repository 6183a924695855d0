"""Pollux (Qiao et al., OSDI 2021): its objective, solved to a proven gap, and its
published search.
"""
