"""How the batch is chosen: limits, tuning, the growth trial, the search for what fits
into memory.
"""
