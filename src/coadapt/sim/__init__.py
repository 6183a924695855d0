"""Floor 4: the virtual world: clock, simulated executor, faults, traces, metrics,
reports.
"""
