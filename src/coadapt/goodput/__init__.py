"""Floor 1: the mathematics of step time, efficiency and goodput. Pure; numpy, and numba
where it pays.
"""
